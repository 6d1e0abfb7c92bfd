"""Sweeps of EP, parallel or sequential.

A parallel sweep moves every site towards its target by a fraction, the damping, which is halved
where a sweep fails and recovers where sweeps succeed. A sweep fails if there is no posterior, a
cavity is not proper, or a marginal variance or the residual grows too much. An Anderson
extrapolation of the last sweeps is taken where it lowers the residual.

A sequential sweep changes one site at a time. A change of (Δh, Δλ) changes the posterior covariance
by −Δλ s sᵀ/(1 + Δλ Σᵢᵢ), s its i-th column (Rasmussen & Williams 2006, algorithm 3.5).
"""

from __future__ import annotations

import numpy as np

from pymc_augconj.engines.options import SMALLEST_DAMPING
from pymc_augconj.engines.variational.ascent import Anderson, extrapolate
from pymc_augconj.likelihoods.contract import LikelihoodDensity, select_params, site_moments
from pymc_augconj.typing import Array

from .objective import EPEvaluation, EPObjective, Recorder, SiteGroup

LARGEST_GROWTH = 4.0
LARGEST_WORSENING = 2.0
# Factors of the damping after a sweep that lowered the residual, and after another one.
_RECOVERY, _SETBACK = 1.25, 0.5
# Sweeps without a halving of the residual that count as stuck.
PATIENCE = 40


def sweep_parallel(
    recorder: Recorder,
    current: EPEvaluation,
    *,
    damping: float = 1.0,
    accelerate: bool = True,
    patience: int = PATIENCE,
) -> tuple[EPEvaluation, str]:
    """Sweep until converged or stuck; return the best evaluation and the reason of the end."""
    anderson, rate = Anderson(), damping
    best, milestone, since = current, current.residual, 0
    while current.residual > recorder.tol:
        if recorder.left <= 0:
            return best, f"stopped after {recorder.max_iter} sweeps: increase max_iter"
        if since >= patience:
            return best, f"stopped: no progress over {patience} sweeps"
        candidate = None
        if accelerate:
            proposal = extrapolate(anderson, current)
            candidate = None if proposal is None else recorder.attempt(*proposal)
            if candidate is not None and not (
                candidate.residual < current.residual and _grows_little(candidate, current)
            ):
                candidate = None
            if proposal is not None and candidate is None:
                anderson.reset()
            used = None
        if candidate is None:
            candidate, rate = _damped(recorder, current, rate)
            if candidate is None:
                return best, "stopped: sweeps fail at any damping"
            used = rate
            better = candidate.residual < current.residual
            rate = min(damping, rate * _RECOVERY) if better else rate * _SETBACK
            rate = max(rate, SMALLEST_DAMPING)
        current = candidate
        recorder.accept(current, used)
        best = current if current.residual < best.residual else best
        since += 1
        if best.residual <= 0.5 * milestone:
            milestone, since = best.residual, 0
    return current, ""


def _damped(
    recorder: Recorder, current: EPEvaluation, rate: float
) -> tuple[EPEvaluation | None, float]:
    while rate >= SMALLEST_DAMPING:
        h = current.h + rate * (current.target_h - current.h)
        lam = current.lam + rate * (current.target_lam - current.lam)
        if rate == 1.0:
            h, lam = current.target_h, current.target_lam
        candidate = recorder.attempt(h, lam)
        if (
            candidate is not None
            and candidate.residual <= LARGEST_WORSENING * current.residual
            and _grows_little(candidate, current)
        ):
            return candidate, rate
        rate *= 0.5
    return None, rate


def _grows_little(candidate: EPEvaluation, current: EPEvaluation) -> bool:
    return bool((candidate.var <= LARGEST_GROWTH * current.var).all())


def sweep_sequential(
    recorder: Recorder, current: EPEvaluation, *, damping: float = 1.0
) -> tuple[EPEvaluation, str]:
    """Sweep until converged or stuck; return the best evaluation and the reason of the end.

    Sites without a proper cavity wait for the next sweep; a sweep that fails halves the damping.
    """
    objective = recorder.objective
    singles = _singles(objective.groups, objective.prior.size)
    best, since, rate = current, 0, damping
    while current.residual > recorder.tol:
        if recorder.left <= 0:
            return best, f"stopped after {recorder.max_iter} sweeps: increase max_iter"
        if since >= PATIENCE:
            return best, f"stopped: no progress over {PATIENCE} sweeps"
        candidate = recorder.attempt(*_one_sweep(objective, singles, current, rate))
        since += 1
        if candidate is None:
            current, rate = best, 0.5 * rate
            continue
        if candidate.residual > current.residual:
            rate *= 0.5
        if candidate.residual < 0.5 * best.residual:
            since = 0
        recorder.accept(candidate, rate)
        current = candidate
        best = current if current.residual < best.residual else best
    return current, ""


def _one_sweep(
    objective: EPObjective, singles: list[LikelihoodDensity], at: EPEvaluation, rate: float
) -> tuple[Array, Array]:
    power, shrink = objective.power, np.broadcast_to(objective.shrink, at.h.shape)
    h, lam, mean = at.h.copy(), at.lam.copy(), at.mean.copy()
    cov = np.array(at.posterior.predictor_cov(), order="F")
    for i, density in enumerate(singles):
        var = cov[i, i]
        cavity_precision = 1.0 / var - power * lam[i]
        if not cavity_precision > 0.0:
            continue
        v = np.array([1.0 / cavity_precision])
        m = mean[i : i + 1] - power * v * (h[i] - lam[i] * mean[i])
        tilted = site_moments(density, m, v, power=power)
        matched = tilted.var[0] * shrink[i] ** 2
        d_lam = rate * (1.0 / matched - 1.0 / var) / power
        d_h = rate * (tilted.mean[0] / matched - mean[i] / var) / power
        growth = 1.0 + d_lam * var
        if not (growth > 0.0 and np.isfinite(d_h)):
            continue
        column = cov[:, i].copy()
        mean += column * ((d_h - d_lam * mean[i]) / growth)
        cov -= np.multiply.outer(column * (d_lam / growth), column)
        h[i] += d_h
        lam[i] += d_lam
    return h, lam


def _singles(groups: tuple[SiteGroup, ...], size: int) -> list[LikelihoodDensity]:
    singles = {}
    for group in groups:
        density = group.density
        for position, row in enumerate(range(size)[group.rows]):
            index = np.array([position])
            params = select_params(density.params, index, density.size)
            singles[row] = LikelihoodDensity(density.likelihood, density.y[index], params)
    return [singles[row] for row in range(size)]
