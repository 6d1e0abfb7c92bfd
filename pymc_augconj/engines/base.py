"""A fit from start to end, whatever rule updates the sites: the contract of every fitting engine.

An engine is a callable ``(FitProblem) -> FitOutcome``. :class:`SiteFit` makes one of a
:class:`~pymc_augconj.engines.variational.bound.SiteRule`; ``registry.py`` names them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.model import Hyperparameter, LatentGaussianModel, Point

from .hyperparameters import HyperClimb, LogPrior, maximise
from .sparse.problem import SparseProblem
from .variational.ascent import Climb, Iteration, climb
from .variational.bound import BoundFamily, Evaluation, SiteRule
from .variational.gradient import bound_gradient

__all__ = ["FitOutcome", "FitProblem", "FitState", "SiteFit", "ascend", "reporter"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class FitState:
    """What a callback sees after every iteration.

    Attributes
    ----------
    count : int
        Iterations so far, over all values of θ.
    iteration : Iteration
        Bound, its terms and the residual; numbered from the last change of θ.
    mean, var : ndarray, shape (N,)
        Moments of the predictors.
    """

    count: int
    iteration: Iteration
    mean: Array
    var: Array


@dataclass(frozen=True)
class FitProblem:
    """What a fitting engine is given.

    Attributes
    ----------
    model : LatentGaussianModel
    point : mapping
        θ to start from, or to stay at.
    probes : sequence of mapping
        Other values of θ at which predictors must agree to be merged.
    members : sequence of Hyperparameter
        Those to optimise; none where θ is fixed.
    log_prior : callable
        Value and derivatives of what is added to the evidence.
    max_iter : int
    tol : float
    callback : callable, optional
        Called with a :class:`FitState` after every iteration.
    options : mapping
        The engine's own, by name; :mod:`~pymc_augconj.engines.options` has checked them.
    sparse : SparseProblem, optional
        Where processes act through inducing points.
    """

    model: LatentGaussianModel
    point: Point
    probes: Sequence[Point]
    members: Sequence[Hyperparameter]
    log_prior: LogPrior
    max_iter: int
    tol: float
    callback: Callable[[FitState], object] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    sparse: SparseProblem | None = None


@dataclass
class FitOutcome:
    """What a fitting engine gives back: a posterior as its sites, and how it was found.

    Attributes
    ----------
    point : dict
        θ.
    h, lam : ndarray, shape (N,)
        Sites of every predictor.
    evidence : float
        The engine's value of log p(y | θ).
    objective : float
        Evidence plus log prior, as far as one was asked for.
    prior : LatentPrior
        The prior at θ.
    groups : RowGroups
    space : str
        In which conditioning is cheapest, see :mod:`pymc_augconj.latents.space`.
    converged : bool
    message : str
    iterations : list of Iteration
    gradient : dict
        Of the objective at θ, by entry of the point.
    diagnostics : dict
        What an engine has to say about its state besides, as numbers and words: those of EP are
        the fields of :class:`~pymc_augconj.engines.ep.EPInfo`.
    inducing : dict
        Inducing inputs, by process, where there are any: ``h`` and ``lam`` are then sites of the
        weights, see :mod:`.sparse_outcome`.
    """

    point: dict[str, np.ndarray]
    h: Array
    lam: Array
    evidence: float
    objective: float
    prior: LatentPrior
    groups: RowGroups
    space: str
    converged: bool
    message: str
    iterations: list[Iteration] = field(default_factory=list)
    gradient: dict[str, Array] = field(default_factory=dict)
    diagnostics: dict[str, float | str] = field(default_factory=dict)
    inducing: dict[str, Array] = field(default_factory=dict)


def reporter(problem: FitProblem) -> Callable[[Iteration, Evaluation], None]:
    """Return what hands every iteration to the problem's callback, counted over all θ."""
    count = 0

    def report(iteration: Iteration, evaluation: Evaluation) -> None:
        nonlocal count
        count += 1
        if problem.callback is not None:
            problem.callback(FitState(count, iteration, evaluation.mean, evaluation.var))

    return report


def ascend(
    family: BoundFamily,
    problem: FitProblem,
    report: Callable[[Iteration, Evaluation], None],
    *,
    inner: Callable[..., Climb] = climb,
    gradient: Callable[..., dict[str, Array]] = bound_gradient,
) -> HyperClimb:
    """Climb at the problem's θ, or over θ with a climb at each, as it asks for.

    Parameters
    ----------
    family, inner, gradient
        As for :func:`~pymc_augconj.engines.hyperparameters.maximise`.
    problem : FitProblem
    report : callable
        From :func:`reporter`.
    """
    limits = {"max_iter": problem.max_iter, "tol": problem.tol, "callback": report}
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


class SiteFit:
    """The engine of a site rule: climbs at a fixed θ, or L-BFGS over θ with a climb at each."""

    def __init__(self, rule: type[SiteRule]):
        self.rule = rule

    def __call__(self, problem: FitProblem) -> FitOutcome:
        """Return the fit; raises what the covariance at the start raises, or a site's refusal."""
        rule = self.rule()
        if rule.augmented:
            problem.model.require_augmentation()
        family = BoundFamily(problem.model, rule, [problem.point, *problem.probes])
        found = ascend(family, problem, reporter(problem))
        if rule.augmented:
            problem.model.require_augmentation(found.point)
        end = found.climb.evaluation
        return FitOutcome(
            found.point,
            end.h,
            end.lam,
            end.bound,
            found.objective,
            family.at(found.point).prior,
            family.priors.groups,
            family.space.space,
            found.converged,
            found.message,
            found.iterations,
            found.gradient,
        )
