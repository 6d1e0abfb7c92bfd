"""The double loop of Opper and Winther: EP whose evidence rises at every outer step.

Let θᵢ be natural parameters of the marginals. Given θ, the inner problem is convex in the sites s,

    J(s) = log Z_q(s) + (1/η) Σᵢ log ∫ p(yᵢ | f)^η exp((θᵢ − ηsᵢ)·φ(f)) df,    φ = (f, −½f²).

At its minimum q and the tilted distributions have the same moments, and J − (1/η) Σ log Z(θᵢ) is
the evidence. The outer step sets θ to the marginals of these moments, which raises the evidence. A
fixed point is a fixed point of EP.

The inner problem is solved by Newton's method. In x = f − μᵢ the covariance H of (x, −½x²) under q
is block-diagonal, with Σ and ½ Σ∘Σ; the covariance T of the tilted distributions is diagonal in i.
Outer steps converge linearly; near the fixed point :mod:`.newton` finishes.

References
----------
Opper, M. & Winther, O. (2005). Expectation consistent approximate inference. JMLR 6, algorithm 1.
Heskes, T. & Zoeter, O. (2002). Expectation propagation for approximate inference in dynamic
Bayesian networks. UAI.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.latents.posterior import Posterior
from pymc_augconj.linalg.cholesky import cholesky_with_jitter
from pymc_augconj.quadrature.tilted import Tilted
from pymc_augconj.typing import Array

from .newton import covariance_of_statistics, polish, tilted_covariance
from .objective import EPEvaluation, EPObjective
from .record import Recorder, Sweep
from .sites import all_moments

__all__ = ["InnerOptimum", "climb_double_loop", "minimise_inner"]


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
    """The sites that minimise J for given θ, with J and the posterior there.

    Attributes
    ----------
    h, lam : ndarray, shape (N,)
    value : float
        J.
    posterior : Posterior
    decrement : float
        Newton decrement, a measure of the distance from the minimum.
    """

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
            recorder.history.append(_unfinished(inner, objective, marginal[1]))
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
    """Minimise J over the sites by Newton's method, from (h, λ), for marginals θ = (ν, τ).

    Returns None where J is not defined at the start.
    """
    current = _inner(objective, nu, tau, h, lam)
    for _ in range(MAX_NEWTON):
        if current is None:
            return None
        try:
            direction, decrement = _newton(objective, current)
        except NotPositiveDefiniteError:
            # With variances of such different sizes the system has no digits.
            break
        current = InnerOptimum(
            current.h, current.lam, current.value, current.posterior, current.tilted, decrement
        )
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
    gradient = _mismatch(at.tilted, mean, at.posterior.var)
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


def _mismatch(tilted: Tilted, mean: Array, var: Array) -> Array:
    """Return E_q − E_tilted of (x, −½x²), shape (2N,)."""
    shift = tilted.mean - mean
    return np.concatenate([-shift, 0.5 * (tilted.var + shift**2 - var)])


def _unfinished(inner: InnerOptimum, objective: EPObjective, tau: Array) -> Sweep:
    """Describe an outer step whose sites do not have proper cavities yet."""
    cavity = tau - objective.power * inner.lam
    negative = int(np.count_nonzero(inner.lam < 0.0))
    return Sweep(np.inf, np.nan, None, negative, float(cavity.min()))
