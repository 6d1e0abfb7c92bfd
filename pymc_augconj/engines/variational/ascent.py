"""The loop that every variational engine shares, and the engine that it makes of a site rule.

One iteration moves the sites towards their targets and is accepted only if the bound does not
decrease. Where steps repeat a pattern, an Anderson extrapolation of the last few is tried first,
and dropped for the plain step if the bound is lower there; so the sequence of bounds increases
whatever the extrapolation does.

References
----------
Walker & Ni (2011), Anderson acceleration for fixed-point iterations. SIAM J. Numerical Analysis 49.
Zhang, O'Donoghue & Boyd (2020), Globally convergent type-I Anderson acceleration. SIAM J.
Optimization 30 (the safeguard).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_augconj.engines.base import Climb, Evaluation, FitOutcome, FitProblem, Iteration, SiteRule
from pymc_augconj.engines.hyperparameters import Search
from pymc_augconj.engines.options import VGPOptions
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.latents.posterior import Posterior
from pymc_augconj.typing import Array

from .bound import Bound, BoundFamily, Stage, VariationalGaussian, bound_gradient

DEPTH = 6


class Anderson:
    """Extrapolates x ← g(x) from the last few pairs of x and g(x) − x, least squares weighted."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._x: list[Array] = []
        self._step: list[Array] = []

    def propose(self, x: Array, step: Array, weights: Array) -> Array | None:
        """Return the extrapolated x, or None with too few pairs; remembers (x, step)."""
        self._x = [*self._x[-DEPTH:], x]
        self._step = [*self._step[-DEPTH:], step]
        if len(self._x) < 2:
            return None
        dx = np.diff(np.stack(self._x, axis=1), axis=1)
        d_step = np.diff(np.stack(self._step, axis=1), axis=1)
        scaled = weights[:, None] * d_step
        coefficients = np.linalg.lstsq(scaled, weights * step, rcond=1e-10)[0]
        return x + step - (dx + d_step) @ coefficients


def extrapolate(anderson: Anderson, current: Evaluation) -> tuple[Array, Array] | None:
    """Return extrapolated sites, or None."""
    # In units of q: the effect of changing one site on its marginal.
    std = np.sqrt(current.var)
    weights = np.concatenate([std, current.precision_units])
    x = np.concatenate([current.h, current.lam])
    step = np.concatenate([current.target_h, current.target_lam]) - x
    proposal = anderson.propose(x, step, weights)
    if proposal is None or not np.isfinite(proposal).all():
        return None
    n_rows = current.h.size
    h, lam = proposal[:n_rows], proposal[n_rows:]
    # A precision stays nonnegative if the sites and their targets have it nonnegative.
    diagonal = lam[:n_rows]
    least = 0.5 * np.minimum(current.lam, current.target_lam)[:n_rows]
    lam[:n_rows] = np.where(least >= 0.0, np.maximum(diagonal, least), diagonal)
    return h, lam


_SMALLEST_RATE = 2.0**-20
#: Largest residual for a start at the prior; wide priors exceed it if a log density is rounded to
#: −∞ or grows exponentially. Then the best start with these standard deviations about the prior
#: mean is used.
WILD, NARROW = 1e6, (1.0, 0.1)
#: Where log densities are bounded below, observations (or a whole class) that are lost in the first
#: steps stay lost. So the weight of observations begins at this value, and grows to one
#: geometrically.
LEAST_WEIGHT = 0.01
# Number of steps in which the weight grows, and their rate.
_WARM_UP, _WARM_UP_RATE = 20, 0.5


# Every step is checked for infinities.
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def climb(
    bound: Bound,
    start: tuple[Array, Array] | None = None,
    *,
    max_iter: int,
    tol: float,
    accelerate: bool = True,
    callback: Callable[[Iteration, Evaluation], None] | None = None,
) -> Climb[Evaluation]:
    """Increase the bound over the sites until they are at their targets."""
    current = _first(bound, start)
    anderson, rate = Anderson(), 1.0
    result = Climb(current, False, "", [_describe(0, current)])
    monotone = bound.family.rule.monotone
    for number in range(1, max_iter + 1):
        if current.residual <= tol and current.posterior is not None:
            break
        candidate: Evaluation | None = None
        evaluations, extrapolated = 0, False
        if accelerate and current.posterior is not None:
            candidate = _try(bound, current, extrapolate(anderson, current))
            evaluations += candidate is not None
            extrapolated = candidate is not None and _is_no_worse(candidate, current)
            if candidate is not None and not extrapolated:
                anderson.reset()
        if not extrapolated:
            rate = 1.0 if monotone else min(1.0, 2.0 * rate)
            candidate, tried, rate = _plain(bound, current, rate, monotone)
            evaluations += tried
            if candidate is None:
                result.message = _explain_stop(current, monotone)
                break
        assert candidate is not None
        current = candidate
        shown_rate = 1.0 if extrapolated else rate
        done = _describe(number, current, shown_rate, extrapolated, evaluations)
        result.iterations.append(done)
        result.evaluation = current
        if callback is not None:
            callback(done, current)
    if not result.message:
        result.converged = bool(current.residual <= tol)
        result.message = f"converged: residual {current.residual:.1e} ≤ {tol:.1e}"
        if not result.converged:
            stopped = f"stopped after {max_iter} iterations with residual {current.residual:.1e}"
            result.message = f"{stopped} > {tol:.1e}; increase max_iter"
    return result


def _first(bound: Bound, start: tuple[Array, Array] | None) -> Evaluation:
    if start is None:
        start = bound.family.first
    resumed = _try(bound, None, start)
    if resumed is not None:
        return resumed
    first = bound.at_prior()
    if bound.family.warms_up:
        return _warm_up(bound, first)
    if bound.family.rule.monotone or (np.isfinite(first.bound) and first.residual <= WILD):
        return first
    best, finite = first, np.isfinite(first.bound) and np.isfinite(first.residual)
    for std in NARROW:
        found = _try(bound, best, first.narrow(std))
        if found is not None and not (finite and best.bound >= found.bound):
            best, finite = found, True
    return best


def _warm_up(bound: Bound, current: Evaluation) -> Evaluation:
    """Climb from the prior while the weight of the observations grows to one."""
    for weight in np.geomspace(LEAST_WEIGHT, 1.0, _WARM_UP):
        rate = _WARM_UP_RATE
        while rate >= _SMALLEST_RATE:
            h = current.h + rate * (weight * current.target_h - current.h)
            lam = current.lam + rate * (weight * current.target_lam - current.lam)
            found = _try(bound, current, (h, lam))
            if found is not None and _weighted(found, weight) >= _weighted(current, weight):
                current = found
                break
            rate *= 0.5
    return current


def _weighted(at: Evaluation, weight: float) -> float:
    return weight * at.expected - at.divergence


def _describe(number: int, at: Evaluation, *details: Any) -> Iteration:
    return Iteration(number, at.bound, at.expected, at.divergence, at.residual, *details)


def _try(
    bound: Bound, current: Evaluation | None, sites: tuple[Array, Array] | None
) -> Evaluation | None:
    if sites is None:
        return None
    try:
        evaluation = bound.evaluate(*sites, keep=current)
    except NotPositiveDefiniteError:
        return None
    finite = np.isfinite(evaluation.bound) and np.isfinite(evaluation.residual)
    return evaluation if finite else None


def _is_no_worse(candidate: Evaluation, current: Evaluation) -> bool:
    if candidate.bound >= current.bound:
        return True
    # If the bound has no digits left to compare, the sites must come closer to their targets.
    close = candidate.bound >= current.bound - current.rounding - candidate.rounding
    return close and candidate.residual < current.residual


def _plain(
    bound: Bound, current: Evaluation, rate: float, monotone: bool
) -> tuple[Evaluation | None, int, float]:
    """Move the sites towards their targets, one stage after another."""
    tried, moved = 0, False
    for stage in bound.family.stages:
        candidate, more, rate = _move(bound, current, rate, monotone, stage)
        tried += more
        if candidate is None:
            return (current if moved else None), tried, rate
        current, moved = candidate, True
    return current, tried, rate


def _move(
    bound: Bound, current: Evaluation, rate: float, monotone: bool, stage: Stage
) -> tuple[Evaluation | None, int, float]:
    tried = 0
    target_h = np.where(stage.rows, current.target_h, current.h)
    target_lam = np.where(stage.entries, current.target_lam, current.lam)
    while rate >= _SMALLEST_RATE:
        h = current.h + rate * (target_h - current.h)
        lam = current.lam + rate * (target_lam - current.lam)
        if rate == 1.0:
            h, lam = target_h, target_lam
        candidate = _try(bound, current, (h, lam))
        tried += 1
        if candidate is not None and _is_no_worse(candidate, current):
            return candidate, tried, rate
        if monotone and candidate is not None:
            slack = current.rounding + candidate.rounding
            return (candidate if candidate.bound >= current.bound - slack else None), tried, rate
        rate *= 0.5
    return None, tried, rate


def _explain_stop(current: Evaluation, monotone: bool) -> str:
    if monotone:
        return (
            "stopped: a sweep of coordinate ascent decreased the bound by more than rounding "
            f"(residual {current.residual:.1e}), which exact updates do only where numbers of too "
            "different sizes meet: noise far below the process, say, which a prior that keeps it "
            "from zero mends; please report anything else"
        )
    return (
        f"stopped: no step towards the target sites, however small, increases the bound "
        f"(residual {current.residual:.1e})"
    )


class SiteFit:
    """The engine of a site rule: optimiser runs at a fixed θ, or at each θ of L-BFGS."""

    def __init__(self, rule: type[SiteRule]) -> None:
        self.rule = rule

    def search(self, problem: FitProblem) -> Search[Evaluation]:
        """Return the bound and the log prior as a function of the hyperparameters."""
        rule = self.rule()
        if VGPOptions.of(problem.options).structure == "factorised":
            rule = VariationalGaussian(factorised=True)
        problem.model.require_support()
        if rule.augmented:
            problem.model.require_augmentation()
            problem.model.require_bound()
        family = BoundFamily(problem.model, rule, [problem.point, *problem.probes])
        return Search(family, problem, climb, bound_gradient)

    def __call__(self, problem: FitProblem) -> FitOutcome:
        """Return the fit; errors are those of the covariance at the start and of the sites."""
        search = self.search(problem)
        family, run = search.family, search.ascend()
        if family.rule.augmented:
            problem.model.require_augmentation(run.point)
        end = run.climb.evaluation
        error = end.posterior.divergence_error if isinstance(end.posterior, Posterior) else 0.0
        return FitOutcome(
            run.point, end.h, end.lam, end.bound, run.objective, family.at(run.point).prior,
            family.priors.groups, family.preferred.name, run.converged, run.message,
            run.iterations, run.gradient, evidence_error=error,
        )  # fmt: skip
