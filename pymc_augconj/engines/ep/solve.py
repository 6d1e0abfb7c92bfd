"""Fixed points of expectation propagation (EP), and of quantile propagation (QP).

EP has sites that match the moments of their tilted distributions. The default is parallel sweeps
(:mod:`.sweeps`). If these are stuck the double loop of Opper and Winther takes over, whose evidence
rises at every outer step: let θᵢ be natural parameters of the marginals. Given θ, the inner problem
is convex in the sites s,

    J(s) = log Z_q(s) + (1/η) Σᵢ log ∫ p(yᵢ | f)^η exp((θᵢ − ηsᵢ)·φ(f)) df,    φ = (f, −½f²).

At its minimum q and the tilted distributions have the same moments, and J − (1/η) Σ log Z(θᵢ) is
the evidence. The outer step sets θ to the marginals of these moments. In x = f − μᵢ the covariance
H of (x, −½x²) under q is block-diagonal, with Σ and ½ Σ∘Σ; the covariance T of the tilted
distributions is diagonal in i; Newton's method solves the inner problem with both.

Outer steps converge linearly; near the fixed point Newton's method on the mismatch E_q − E_tilted
finishes, also where sweeps do not converge. Its Jacobian by the sites is H − T (D⁻¹H − ηI), D the
marginal part of H: the cavities change with the marginals of q and with the sites.

QP has sites that match the tilted distributions in the L2 Wasserstein distance. The Gaussian
nearest to a tilted distribution has its mean and the standard deviation

    σ_QP = σ_EP (1 − δ),    δ = ½ E_tilted[(u − z)²],    u = (f − mean)/σ_EP,  z = Φ⁻¹(F(f)).

QP runs EP with tilted standard deviations multiplied by 1 − δ. As δ varies slowly, it is fixed
while sweeps of EP converge, and then recomputed, until the state agrees with its own δ. Where
sweeps fail, Newton steps follow the fixed point from one δ to the next. QP is the optimum of no
known objective: hyperparameters are EP's, and the evidence is EP's formula at QP's sites.

References
----------
Jylänki, P., Vanhatalo, J. & Vehtari, A. (2011). Robust Gaussian process regression with a
Student-t likelihood. JMLR 12.
Opper, M. & Winther, O. (2005). Expectation consistent approximate inference. JMLR 6, algorithm 1.
Zhang, R., Walder, C., Bonilla, E., Rizoiu, M.-A. & Xie, L. (2020). Quantile propagation for
Wasserstein-approximate Gaussian processes. NeurIPS 33.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.linalg import cho_solve

from pymc_augconj.engines.base import Climb
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.latents.posterior import Posterior
from pymc_augconj.linalg.dense import cholesky_with_jitter
from pymc_augconj.quadrature.tilted import Tilted
from pymc_augconj.typing import Array

from .objective import (
    EPEvaluation,
    EPObjective,
    Recorder,
    Report,
    all_moments,
)
from .sweeps import sweep_parallel, sweep_sequential

# Each step has to halve the residual, after shortening to no less than this.
SHORTEST_STEP = 0.1


def polish(recorder: Recorder, current: EPEvaluation) -> EPEvaluation:
    """Take Newton steps as long as each halves the residual; return the last evaluation."""
    objective = recorder.objective
    shrink = np.broadcast_to(objective.shrink, current.h.shape)
    n = current.h.size
    while current.residual > recorder.tol and recorder.left > 0:
        asked = {"power": objective.power, "higher": True}
        tilted = all_moments(objective.groups, current.cavity_mean, current.cavity_var, **asked)
        H = covariance_of_statistics(current.posterior.predictor_cov())
        var, cross, square = tilted_covariance(tilted, current.mean)
        # The change of the cavities, D⁻¹H − ηI, and of the tilted moments.
        change = H / np.concatenate([current.var, 0.5 * current.var**2])[:, None]
        change[np.diag_indices(2 * n)] -= objective.power
        first = var[:, None] * change[:n] + cross[:, None] * change[n:]
        second = cross[:, None] * change[:n] + square[:, None] * change[n:]
        shift = tilted.mean - current.mean
        # −½(s²var + shift²) = s²·(−½E[x²]) + ½(s² − 1) shift²
        H[:n] -= first
        H[n:] -= (shrink**2)[:, None] * second + ((shrink**2 - 1.0) * shift)[:, None] * first
        gap = np.concatenate([-shift, 0.5 * (shrink**2 * tilted.var + shift**2 - current.var)])
        try:
            step = -np.linalg.solve(H, gap)
        except np.linalg.LinAlgError:
            return current
        d_h, d_lam = step[:n] + current.mean * step[n:], step[n:]
        size, candidate = 1.0, None
        while size > SHORTEST_STEP:
            candidate = recorder.attempt(current.h + size * d_h, current.lam + size * d_lam)
            if candidate is not None and candidate.residual <= 0.5 * current.residual:
                break
            size, candidate = 0.5 * size, None
        if candidate is None:
            return current
        current = candidate
        recorder.accept(current, None)
    return current


def covariance_of_statistics(cov: Array) -> Array:
    """Return H, the covariance of (x, −½x²) under q, (2N, 2N)."""
    n = cov.shape[0]
    H = np.zeros((2 * n, 2 * n))
    H[:n, :n] = cov
    H[n:, n:] = 0.5 * cov**2
    return H


def tilted_covariance(tilted: Tilted, mean: Array) -> tuple[Array, Array, Array]:
    """Return T: variance of x, its covariance with −½x², variance of −½x², each (N,)."""
    assert tilted.third is not None
    assert tilted.fourth is not None
    shift = tilted.mean - mean
    cross = -0.5 * tilted.third - shift * tilted.var
    square = tilted.fourth - tilted.var**2 + 4.0 * shift * (tilted.third + shift * tilted.var)
    return tilted.var, cross, 0.25 * square


def solve(
    objective: EPObjective,
    start: tuple[Array, Array] | None = None,
    *,
    schedule: Literal["parallel", "sequential"] = "parallel",
    damping: float = 1.0,
    tol: float = 1e-8,
    max_iter: int = 400,
    accelerate: bool = True,
    double_loop: bool = True,
    report: Report | None = None,
) -> Climb[EPEvaluation]:
    """Find a fixed point of EP, from sites (h, λ)."""
    recorder = Recorder(objective, max_iter, tol, report)
    current = None if start is None else recorder.attempt(*start)
    if current is None:
        current = objective.at_prior()
        recorder.evaluations += 1
    method: str = schedule
    if schedule == "sequential":
        current, failure = sweep_sequential(recorder, current, damping=damping)
    else:
        current, failure = sweep_parallel(recorder, current, damping=damping, accelerate=accelerate)
    stuck = current.residual > tol and recorder.left > 0
    if stuck and double_loop and np.all(objective.shrink == 1.0):
        current, failure = climb_double_loop(recorder, current)
        method = "double loop"
    return recorder.result(current, method, failure)


# The Newton system has two unknowns for each site.
LARGEST_SIZE = 1500
MAX_NEWTON = 60
# Tolerance on the Newton decrement, twice the remaining decrease of J.
DECREMENT = 1e-12
_SMALLEST_STEP = 2.0**-30
# Newton's method on the moment mismatch is tried after this many outer steps.
POLISH_EVERY = 2
_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)


@dataclass(frozen=True)
class InnerOptimum:
    """The sites that minimise J for given θ, with J and the posterior there."""

    h: Array
    lam: Array
    value: float
    posterior: Posterior
    tilted: Tilted
    decrement: float = np.inf


def climb_double_loop(recorder: Recorder, current: EPEvaluation) -> tuple[EPEvaluation, str]:
    """Take outer steps, and Newton's near convergence; return like ``sweep_parallel``."""
    objective = recorder.objective
    if objective.prior.size > LARGEST_SIZE:
        return current, f"stopped: the double loop is for at most {LARGEST_SIZE} sites"
    best, failure = current, "stopped: the double loop made no step"
    marginal = current.mean / current.var, 1.0 / current.var
    h, lam = current.h, current.lam
    outer = 0
    while best.residual > recorder.tol:
        if recorder.left <= 0:
            return best, f"stopped after {recorder.max_iter} sweeps: increase max_iter"
        inner = minimise_inner(objective, *marginal, h, lam)
        if inner is None:
            return best, failure
        candidate = recorder.attempt(inner.h, inner.lam)
        new = inner.posterior.mean / inner.posterior.var, 1.0 / inner.posterior.var
        step = _proper_step(marginal[1], new[1], objective.power * inner.lam)
        nu, tau = (a + step * (b - a) for a, b in zip(marginal, new, strict=True))
        if inner.h is h and np.array_equal(tau, marginal[1]):
            # Nothing has moved, so nothing will.
            return best, failure
        marginal = nu, tau
        h, lam = inner.h, inner.lam
        outer += 1
        if candidate is None:
            # The sites' own cavities are not yet proper, only the cavities of the outer loop.
            recorder.sweeps += 1
            continue
        recorder.accept(candidate, None)
        best = candidate if candidate.residual < best.residual else best
        if outer % POLISH_EVERY == 0 and candidate.residual > recorder.tol:
            end = polish(recorder, candidate)
            best = end if end.residual < best.residual else best
        failure = "stopped: the double loop can take no further step"
    return best, ""


def minimise_inner(
    objective: EPObjective, nu: Array, tau: Array, h: Array, lam: Array
) -> InnerOptimum | None:
    """Minimise J over the sites by Newton steps, for marginals θ = (ν, τ); None if undefined."""
    current = _inner(objective, nu, tau, h, lam)
    for _ in range(MAX_NEWTON):
        if current is None:
            return None
        try:
            direction, decrement = _newton(objective, current)
        except NotPositiveDefiniteError:
            # With variances of such different sizes the system has no digits.
            break
        current = replace(current, decrement=decrement)
        if not decrement > DECREMENT:
            break
        step, candidate = 1.0, None
        while step > _SMALLEST_STEP:
            d_h, d_lam = step * direction[0], step * direction[1]
            candidate = _inner(objective, nu, tau, current.h + d_h, current.lam + d_lam)
            if candidate is not None and candidate.value <= current.value - 1e-4 * step * decrement:
                break
            step, candidate = 0.5 * step, None
        if candidate is None:
            # J has no digits left to compare.
            break
        current = candidate
    return current


def _inner(
    objective: EPObjective, nu: Array, tau: Array, h: Array, lam: Array
) -> InnerOptimum | None:
    power = objective.power
    cavity_tau, cavity_nu = tau - power * lam, nu - power * h
    if not (cavity_tau > 0.0).all():
        return None
    try:
        posterior = objective.prior.condition(h, lam)
        if not (posterior.var > 0.0).all():
            return None
        tilted = all_moments(
            objective.groups, cavity_nu / cavity_tau, 1.0 / cavity_tau, power=power, higher=True
        )
    except (NotPositiveDefiniteError, FloatingPointError):
        return None
    log_partition = tilted.log_Z + 0.5 * (cavity_nu**2 / cavity_tau - np.log(cavity_tau))
    value = posterior.log_normalizer + float(np.sum(log_partition + _HALF_LOG_2PI)) / power
    if not np.isfinite(value):
        return None
    return InnerOptimum(h, lam, value, posterior, tilted)


def _newton(objective: EPObjective, at: InnerOptimum) -> tuple[tuple[Array, Array], float]:
    """Return the Newton direction (Δh, Δλ) and the decrement."""
    power, n = objective.power, at.h.size
    mean = at.posterior.mean
    # E_q − E_tilted of (x, −½x²).
    shift = at.tilted.mean - mean
    gradient = np.concatenate([-shift, 0.5 * (at.tilted.var + shift**2 - at.posterior.var)])
    H = covariance_of_statistics(at.posterior.predictor_cov())
    first, second = np.arange(n), np.arange(n, 2 * n)
    var, cross, square = tilted_covariance(at.tilted, mean)
    H[first, first] += power * var
    H[second, second] += power * square
    H[first, second] += power * cross
    H[second, first] += power * cross
    # Diagonal scaling: the unknowns' units differ by powers of the standard deviations.
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = 1.0 / np.sqrt(np.diagonal(H))
        H *= scale
        H *= scale[:, None]
    chol, _ = cholesky_with_jitter(H, relative_jitters=(0.0, 1e-8), name="the Newton system")
    step = -scale * cho_solve((chol, True), scale * gradient, check_finite=False)
    d_lam = step[n:]
    # h̃ = h − λμ is the coefficient of x = f − μ.
    return (step[:n] + mean * d_lam, d_lam), float(-gradient @ step)


def _proper_step(old: Array, new: Array, lam: Array) -> float:
    """Return the largest step of 1, ½, ¼, … after which all cavities τ − λ are proper."""
    step = 1.0
    while step > _SMALLEST_STEP and not (old + step * (new - old) - lam > 0.0).all():
        step *= 0.5
    return step


# Sweeps at one δ reduce the mismatch from its update to this share.
_PART = 0.01
_PATIENCE = 20
# Shortest step towards a new δ, as a share of the way.
_SHORTEST_STEP = 1.0 / 64.0


def solve_qp(
    objective: EPObjective,
    start: tuple[Array, Array] | None = None,
    *,
    tol: float = 1e-8,
    max_iter: int = 400,
    report: Report | None = None,
) -> Climb[EPEvaluation]:
    """Find a fixed point of QP; its residual is evaluated with the δ of the state."""
    if start is None:
        end = solve(objective, tol=tol, max_iter=max_iter).evaluation
        start = end.h, end.lam
    recorder = Recorder(objective, max_iter, tol, report)
    current = recorder.attempt(*start)
    if current is None:
        current = objective.at_prior()
    best, held, failure, repelled = None, np.ones(current.h.size), "", False
    while True:
        shrink = 1.0 - _deltas(objective, current)
        current = objective.rematched(current, shrink)
        if best is None or current.residual < best.residual:
            best = current
        if best.residual <= tol or failure:
            break
        if recorder.left <= 0:
            failure = f"stopped after {max_iter} sweeps: increase max_iter"
            break
        recorder.tol = max(_PART * current.residual, 0.5 * tol)
        recorder.objective = objective.shrunk(shrink)
        if not repelled:
            following, failure = sweep_parallel(recorder, current, patience=_PATIENCE)
            repelled = bool(failure) and recorder.left > 0
        if repelled:
            following, failure = _follow(recorder, objective, current, held, shrink)
        current, held = following, shrink
    recorder.tol = tol
    return recorder.result(best, "parallel", failure)


def _follow(
    recorder: Recorder, objective: EPObjective, at: EPEvaluation, old: Array, new: Array
) -> tuple[EPEvaluation, str]:
    """Follow the fixed point from factors ``old`` to ``new`` by Newton steps, even if it repels."""
    if at.h.size > LARGEST_SIZE:
        return at, f"stopped: sweeps fail, and Newton steps are for at most {LARGEST_SIZE} sites"
    done, step = 0.0, 1.0
    while done < 1.0 and recorder.left > 0:
        aim = min(1.0, done + step)
        shrink = old + aim * (new - old)
        recorder.objective = objective.shrunk(shrink)
        found = polish(recorder, objective.rematched(at, shrink))
        if found.residual <= recorder.tol:
            at, done = found, aim
            continue
        step *= 0.5
        if step < _SHORTEST_STEP:
            return at, "stopped: neither sweeps nor Newton steps reach a fixed point"
    return at, ""


def _deltas(objective: EPObjective, at: EPEvaluation) -> Array:
    if at.tilted.panels is not None:
        # Starts from the panels of the moments.
        return at.tilted.panels.delta()
    asked = {"power": objective.power, "delta": True}
    delta = all_moments(objective.groups, at.cavity_mean, at.cavity_var, **asked).delta
    assert delta is not None
    return delta
