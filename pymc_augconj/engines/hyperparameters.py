"""Hyperparameters that maximise the bound: L-BFGS on the unconstrained scale.

The outer function is J(θ) = max over sites of the bound, plus a log prior. Each value of θ takes an
inner climb, which starts at the sites of the best θ so far, and one gradient by
:mod:`.variational.gradient`. J's error is of second order in what the inner climb leaves, its
gradient's of first, so a climb ends early while the gradient is large.

References
----------
Nocedal & Wright (2006), Numerical Optimization, 2nd ed., section 7.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from scipy.optimize import minimize

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.model import Hyperparameter, Point
from pymc_augconj.typing import Array

from .base import Climb, FitProblem, Iteration, LogPrior, SiteEvaluation

__all__ = ["Family", "HyperClimb", "ascend", "maximise"]


# What a value of θ without a posterior counts for: a bowl around the best θ, so steep that a line
# search turns back, in units of the bound.
_BOWL = 1e3

# How SciPy's L-BFGS-B says that its line search failed, and what the quadratic model may then at
# most expect of another step, in nats: far below any relevant difference of evidences, and
# above its rounding.
_NO_STEP, _NOTHING_TO_GAIN = 2, 1e-6

# Residual of the sites at which a climb ends, for a largest derivative of one nat.
_OF_SLOPE = 1e-3


class Family(Protocol):
    """An objective over sites for every θ."""

    def at(self, point: Point) -> Any:
        """Return the objective over sites at ``point``, as ``inner`` takes it."""
        ...


@dataclass
class HyperClimb[E: SiteEvaluation]:
    """The end of an optimisation of hyperparameters.

    Attributes
    ----------
    point : dict
        The best θ.
    climb : Climb
        The inner climb there.
    objective : float
        Bound plus log prior.
    converged : bool
    message : str
    iterations : list of Iteration
        All inner iterations, those of one value of θ after the other's; each starts at number 0.
        Bounds need not increase from one value that a line search tries to the next.
    evaluations : int
        Values of θ that were tried.
    gradient : dict
        Of the objective, at the best θ.
    """

    point: dict[str, np.ndarray]
    climb: Climb[E]
    objective: float
    converged: bool = False
    message: str = ""
    iterations: list[Iteration] = field(default_factory=list)
    evaluations: int = 0
    gradient: dict[str, Array] = field(default_factory=dict)


def maximise[E: SiteEvaluation](
    family: Family,
    members: Sequence[Hyperparameter],
    point: Point,
    log_prior: LogPrior,
    *,
    max_iter: int,
    tol: float,
    gradient_tol: float = 1e-4,
    callback: Callable[[Iteration, SiteEvaluation], None] | None = None,
    inner: Callable[..., Climb[E]],
    gradient: Callable[..., dict[str, Array]],
) -> HyperClimb[E]:
    """Maximise the bound plus ``log_prior`` over ``members``.

    Parameters
    ----------
    family : Family
    members : sequence of Hyperparameter
        Continuous; every other entry of ``point`` stays.
    point : mapping
        Where to start.
    log_prior : callable
        Value and derivatives.
    max_iter : int
        Iterations of each inner climb, and of L-BFGS.
    tol : float
        Of the inner climbs.
    gradient_tol : float
        On the largest derivative of the objective, in nats per unit of the unconstrained scale.
    callback : callable, optional
        Called after every inner iteration.
    inner, gradient : callable
        What runs at each θ, with the signature of
        :func:`~pymc_augconj.engines.variational.ascent.climb`, and the derivatives of what it
        reaches: another engine's, where ``family`` is another's.

    Raises
    ------
    NotPositiveDefiniteError
        If there is no posterior at the start.
    """
    search = _Search(family, members, point, log_prior, max_iter, tol, callback, inner, gradient)
    start = search.flatten(point)
    search.attempt(start)
    found = minimize(
        search,
        start,
        jac=True,
        method="L-BFGS-B",
        options={
            "maxiter": max_iter,
            "maxfun": 4 * max_iter,
            "gtol": gradient_tol,
            "ftol": 1e-12,
            "maxcor": 10,
        },
    )
    search.finish()
    best = search.known_best
    slope = max((np.abs(g).max(initial=0.0) for g in best.gradient.values()), default=0.0)
    # L-BFGS-B also ends where the objective's digits are used up, which is as good: by itself, or
    # with a line search that finds nothing where nothing is left to gain.
    g = search.flatten(best.gradient)
    gain = 0.5 * float(g @ found.hess_inv.matvec(g))
    ended = found.status == 0 or (found.status == _NO_STEP and gain <= _NOTHING_TO_GAIN)
    best.converged = bool(best.climb.converged and ended)
    best.message = (
        f"hyperparameters: {found.message.lower()} after {search.evaluations} evaluations, largest "
        f"derivative {slope:.1e}, {gain:.0e} nats to gain; sites: {best.climb.message}"
    )
    best.evaluations = search.evaluations
    best.iterations = search.iterations
    return best


class _Search[E: SiteEvaluation]:
    """The objective as L-BFGS sees it, to be minimised, with the best θ so far."""

    def __init__(
        self,
        family: Family,
        members: Sequence[Hyperparameter],
        point: Point,
        log_prior: LogPrior,
        max_iter: int,
        tol: float,
        callback: Callable[[Iteration, SiteEvaluation], None] | None,
        inner: Callable[..., Climb[E]],
        gradient: Callable[..., dict[str, Array]],
    ) -> None:
        self.family, self.members, self.log_prior = family, tuple(members), log_prior
        self.template, self.max_iter, self.tol, self.callback = dict(point), max_iter, tol, callback
        self.inner, self.gradient = inner, gradient
        self.best: HyperClimb[E] | None = None
        self.last: HyperClimb[E] | None = None
        self.iterations: list[Iteration] = []
        self.evaluations = 0
        self._slope = np.inf
        self._known: tuple[bytes, tuple[float, Array]] | None = None

    @property
    def known_best(self) -> HyperClimb[E]:
        """The best θ, once there has been an attempt that did not raise."""
        assert self.best is not None
        return self.best

    def flatten(self, point: Point) -> Array:
        return np.concatenate([np.ravel(point[h.value_name]).astype(float) for h in self.members])

    def point_of(self, x: Array) -> dict[str, np.ndarray]:
        point, start = dict(self.template), 0
        for h in self.members:
            point[h.value_name] = np.array(x[start : start + h.size].reshape(h.shape))
            start += h.size
        return point

    def __call__(self, x: Array) -> tuple[float, Array]:
        try:
            return self.attempt(x)
        except (NotPositiveDefiniteError, FloatingPointError):
            best = self.known_best
            away = x - self.flatten(best.point)
            return -best.objective + _BOWL * (1.0 + float(away @ away)), 2.0 * _BOWL * away

    def attempt(self, x: Array) -> tuple[float, Array]:
        key = x.tobytes()
        if self._known is not None and self._known[0] == key:
            return self._known[1]
        point = self.point_of(x)
        prior, prior_gradient = self.log_prior(point)
        if not np.isfinite(prior):
            raise NotPositiveDefiniteError("the log prior is not finite at these hyperparameters")
        self.evaluations += 1
        bound = self.family.at(point)
        start = None
        if self.best is not None:
            last = self.best.climb.evaluation
            start = (last.target_h, last.target_lam)
        # Where θ still has far to go its gradient needs few digits.
        tol = max(self.tol, _OF_SLOPE * min(1.0, self._slope))
        limits = {"max_iter": self.max_iter, "tol": tol, "callback": self.callback}
        inner = self.inner(bound, start, **limits)
        self.iterations.extend(inner.iterations)
        value = inner.evaluation.bound + prior
        if not np.isfinite(value) or inner.evaluation.posterior is None:
            raise NotPositiveDefiniteError("the bound is not finite at these hyperparameters")
        gradient = self.gradient(bound, inner.evaluation)
        for name, term in prior_gradient.items():
            gradient[name] = gradient[name] + term if name in gradient else np.asarray(term)
        named = {
            h.value_name: np.broadcast_to(gradient.get(h.value_name, 0.0), h.shape)
            for h in self.members
        }
        self.last = HyperClimb(point, inner, value, gradient=named)
        if self.best is None or value > self.best.objective:
            self.best = self.last
        answer = -value, -self.flatten(named)
        self._slope = float(np.abs(answer[1]).max(initial=0.0))
        self._known = (key, answer)
        return answer

    def finish(self) -> None:
        """Climb to the tolerance at the best θ, where that was not asked for."""
        if self.known_best.climb.evaluation.residual > self.tol:
            self._slope, self._known = 0.0, None
            with suppress(NotPositiveDefiniteError):
                self.attempt(self.flatten(self.known_best.point))
                self.best = self.last


def ascend[E: SiteEvaluation](
    family: Family,
    problem: FitProblem,
    report: Callable[[Iteration, SiteEvaluation], None],
    *,
    inner: Callable[..., Climb[E]],
    gradient: Callable[..., dict[str, Array]],
) -> HyperClimb[E]:
    """Climb at the problem's θ, or over θ with a climb at each, as it asks for.

    Parameters
    ----------
    family, inner, gradient
        As for :func:`~pymc_augconj.engines.hyperparameters.maximise`.
    problem : FitProblem
    report : callable
        From :func:`reporter`.
    """
    limits: dict[str, Any] = {
        "max_iter": problem.max_iter, "tol": problem.tol, "callback": report,
    }  # fmt: skip
    if problem.members:
        return maximise(
            family,
            problem.members,
            problem.point,
            problem.log_prior,
            inner=inner,
            gradient=gradient,
            **limits,
        )
    point = dict(problem.point)
    end = inner(family.at(point), **limits)
    objective = end.evaluation.bound + problem.log_prior(point)[0]
    return HyperClimb(point, end, objective, end.converged, end.message, end.iterations)
