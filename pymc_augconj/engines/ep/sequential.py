"""Sequential EP: one site at a time, the posterior kept up to date by rank-one updates.

A change of one site by (Δh, Δλ) changes the posterior covariance by −Δλ s sᵀ/(1 + Δλ Σᵢᵢ), s its
i-th column. It costs O(N²) for each site, and tilted moments are not vectorised: it serves as a
check, and where parallel sweeps oscillate. The posterior is recomputed after every sweep, so that
rounding does not accumulate.

References
----------
Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, algorithm 3.5.
"""

from __future__ import annotations

import numpy as np

from pymc_augconj.likelihoods.density import LikelihoodDensity, select_params, site_moments
from pymc_augconj.quadrature.density import SiteDensity
from pymc_augconj.typing import Array, Index

from .objective import EPEvaluation, EPObjective
from .record import Recorder
from .sites import SiteGroup

__all__ = ["sweep_sequential"]


PATIENCE = 40


def sweep_sequential(
    recorder: Recorder, current: EPEvaluation, *, damping: float = 1.0
) -> tuple[EPEvaluation, str]:
    """Sweep until converged or stuck; return the best evaluation and the reason of the end.

    Sites whose update has no proper cavity or posterior wait for the next sweep; a sweep that
    increases the residual halves the damping.
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
    objective: EPObjective, singles: list[SiteDensity], at: EPEvaluation, rate: float
) -> tuple[Array, Array]:
    power, shrink = objective.power, np.broadcast_to(objective.shrink, at.h.shape)
    h, lam, mean = at.h.copy(), at.lam.copy(), at.mean.copy()
    cov = np.array(objective.prior.cov(at.posterior), order="F")
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


class _Single:
    """One site of a density."""

    size = 1

    def __init__(self, density: SiteDensity, index: int) -> None:
        self._density, self._index = density, np.array([index])
        self.landmarks = density.landmarks[:, index : index + 1]

    def __call__(self, eta: Array, sites: Index) -> Array:
        return self._density(eta, np.broadcast_to(self._index, sites.shape))


def _singles(groups: tuple[SiteGroup, ...], size: int) -> list[SiteDensity]:
    singles: dict[int, SiteDensity] = {}
    for group in groups:
        density = group.density
        for position, row in enumerate(range(size)[group.rows]):
            one: SiteDensity
            if isinstance(density, LikelihoodDensity):
                index = np.array([position])
                params = select_params(density.params, index, density.size)
                one = LikelihoodDensity(density.likelihood, density.y[index], params)
            else:
                one = _Single(density, position)
            singles[row] = one
    return [singles[row] for row in range(size)]
