"""Hyperparameters that maximise the bound: L-BFGS on the unconstrained scale.

The objective is max over sites of the bound, plus a log prior. Each θ takes an inner optimiser run,
started at the sites of the best θ so far, and one gradient. The error of the objective is of second
order in the residual of the inner run, that of its gradient of first order; so an inner run ends
early while the gradient is large (Nocedal & Wright 2006, Numerical Optimization, section 7.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import minimize

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.latents.derivatives import accumulate
from pymc_augconj.model import Hyperparameter
from pymc_augconj.point import Point
from pymc_augconj.typing import Array

from .base import Climb, Evaluation, FitProblem, FitState, Iteration

# Objective at a θ without a posterior, in units of the bound: a bowl around the best θ, so steep
# that a line search turns back.
_BOWL = 1e3

# Largest gains of another step by the quadratic model, in nats, where SciPy's L-BFGS-B ends by
# itself (as it does, too, where the density of a scale has no bound at zero), and after a failed
# line search: far below any relevant difference of evidences, and above its rounding.
_ENDS = {0: 1.0, 2: 1e-6}

# Residual of the sites at which an inner run ends, for a largest derivative of one nat.
_OF_SLOPE = 1e-3
# Tolerance on the largest derivative, in nats per unit of the unconstrained scale.
_GRADIENT_TOL = 1e-4


@dataclass
class HyperClimb[E: Evaluation]:
    """The end of an optimisation of hyperparameters."""

    point: dict[str, np.ndarray]
    climb: Climb[E]
    objective: float
    converged: bool = False
    message: str = ""
    # Of all inner runs, numbered from 0 for each θ; bounds need not increase from one to the next.
    iterations: list[Iteration] = field(default_factory=list)
    gradient: dict[str, Array] = field(default_factory=dict)


def entries_of(members: Sequence[Hyperparameter], x: Array) -> dict[str, Array]:
    """Return the entries of hyperparameters, with the first axes of ``x``, (…, p)."""
    parts = np.split(x, np.cumsum([h.size for h in members])[:-1], axis=-1)
    pairs = zip(members, parts, strict=False)
    return {h.value_name: np.array(own.reshape((*x.shape[:-1], *h.shape))) for h, own in pairs}


class Search[E: Evaluation]:
    """The bound plus the log prior as a function of θ, with the best θ so far.

    ``family.at(point)`` is the objective over sites; ``inner`` maximises it like
    :func:`~pymc_augconj.engines.variational.ascent.climb`, and ``gradient`` has the derivatives of
    the maximum by θ.
    """

    def __init__(
        self,
        family: Any,
        problem: FitProblem,
        inner: Callable[..., Climb[E]],
        gradient: Callable[..., dict[str, Array]],
    ) -> None:
        self.family, self.problem = family, problem
        self.members, self.inner, self.gradient = problem.members, inner, gradient
        self.best: HyperClimb[E] | None = None
        self.last: HyperClimb[E] | None = None
        self.iterations: list[Iteration] = []
        self.evaluations = self._reported = 0
        self._slope = np.inf
        self._known: tuple[bytes, tuple[float, Array]] | None = None

    @property
    def known_best(self) -> HyperClimb[E]:
        """The best θ; at least one attempt must have succeeded."""
        assert self.best is not None
        return self.best

    def report(self, iteration: Iteration, at: Evaluation) -> None:
        """Pass an iteration to the callback of the problem, counted over all θ."""
        self._reported += 1
        if self.problem.callback is not None:
            self.problem.callback(FitState(self._reported, iteration, at.mean, at.var))

    def ascend(self) -> HyperClimb[E]:
        """Return the maximum over the problem's members, or the end at its fixed θ."""
        problem = self.problem
        if not self.members:
            point = dict(problem.point)
            limits = {"max_iter": problem.max_iter, "tol": problem.tol}
            climb = self.inner(self.family.at(point), callback=self.report, **limits)
            objective = climb.evaluation.bound + problem.log_prior(point)[0]
            return HyperClimb(
                point, climb, objective, climb.converged, climb.message, climb.iterations
            )
        start = self.flatten(problem.point)
        self.attempt(start)
        limits = {"maxiter": problem.max_iter, "maxfun": 4 * problem.max_iter, "ftol": 1e-12}
        options = {**limits, "gtol": _GRADIENT_TOL, "maxcor": 10}
        end = minimize(self, start, jac=True, method="L-BFGS-B", options=options)
        self.finish()
        best = self.known_best
        slope = max((np.abs(g).max(initial=0.0) for g in best.gradient.values()), default=0.0)
        # L-BFGS-B also ends where the objective has no more digits, which counts as convergence: by
        # itself, or with a failed line search where nothing is left to gain.
        g = self.flatten(best.gradient)
        gain = 0.5 * float(g @ end.hess_inv.matvec(g))
        ended = gain <= _ENDS.get(end.status, -1.0)
        best.converged = bool(best.climb.converged and ended)
        best.message = (
            f"hyperparameters: {end.message.lower()} after {self.evaluations} evaluations, largest "
            f"derivative {slope:.1e}, {gain:.0e} nats to gain; sites: {best.climb.message}"
        )
        if not gain <= 1.0:
            best.message += (
                "; a density without a maximum, such as one that grows as a scale goes to zero, "
                "needs a prior that keeps it away (InverseGamma), method='nested', or pac.sample"
            )
        best.iterations = self.iterations
        return best

    def flatten(self, point: Point) -> Array:
        """Return the entries of the members, joined."""
        parts = [np.ravel(point[h.value_name]).astype(float) for h in self.members]
        return np.concatenate([np.zeros(0), *parts])

    def point_of(self, x: Array) -> dict[str, np.ndarray]:
        """Return the problem's point with the members' entries replaced."""
        return {**self.problem.point, **entries_of(self.members, x)}

    def __call__(self, x: Array) -> tuple[float, Array]:
        try:
            return self.attempt(x)
        except (NotPositiveDefiniteError, FloatingPointError):
            best = self.known_best
            away = x - self.flatten(best.point)
            return -best.objective + _BOWL * (1.0 + float(away @ away)), 2.0 * _BOWL * away

    def attempt(self, x: Array) -> tuple[float, Array]:
        """Return the negative objective and its gradient; raises where there is no posterior."""
        key = x.tobytes()
        if self._known is not None and self._known[0] == key:
            return self._known[1]
        # Far from the optimum the gradient needs few digits.
        tol = max(self.problem.tol, _OF_SLOPE * min(1.0, self._slope))
        self.last = last = self.run(x, tol)
        if self.best is None or last.objective > self.best.objective:
            self.best = last
        answer = -last.objective, -self.flatten(last.gradient)
        self._slope = float(np.abs(answer[1]).max(initial=0.0))
        self._known = (key, answer)
        return answer

    def run(
        self,
        x: Array,
        tol: float,
        start: tuple[Array, Array] | None = None,
        *,
        differentiate: bool = True,
    ) -> HyperClimb[E]:
        """Return the inner run at ``x`` from given sites or the best ones, with its slopes."""
        point = self.point_of(x)
        prior, prior_gradient = self.problem.log_prior(point)
        if not np.isfinite(prior):
            raise NotPositiveDefiniteError("the log prior is not finite at these hyperparameters")
        self.evaluations += 1
        bound = self.family.at(point)
        if start is None and self.best is not None:
            last = self.best.climb.evaluation
            start = (last.target_h, last.target_lam)
        inner = self.inner(
            bound, start, max_iter=self.problem.max_iter, tol=tol, callback=self.report
        )
        self.iterations.extend(inner.iterations)
        value = inner.evaluation.bound + prior
        if not np.isfinite(value) or inner.evaluation.posterior is None:
            raise NotPositiveDefiniteError("the bound is not finite at these hyperparameters")
        found = HyperClimb(point, inner, value)
        if differentiate:
            gradient = self.gradient(bound, inner.evaluation)
            accumulate(gradient, prior_gradient)
            entries = [(h.value_name, h.shape) for h in self.members]
            found.gradient = {k: np.broadcast_to(gradient.get(k, 0.0), s) for k, s in entries}
        return found

    def finish(self) -> None:
        """Run to the tolerance at the best θ, if the last run had a looser one."""
        if self.known_best.climb.evaluation.residual > self.problem.tol:
            self._slope, self._known = 0.0, None
            with suppress(NotPositiveDefiniteError):
                self.attempt(self.flatten(self.known_best.point))
                self.best = self.last
