"""The engine of a site rule: the bound climbed at one θ, or over θ with a climb at each."""

from __future__ import annotations

from pymc_augconj.engines.base import FitOutcome, FitProblem, SiteRule, reporter
from pymc_augconj.engines.hyperparameters import ascend

from .ascent import climb
from .bound import BoundFamily
from .gradient import bound_gradient
from .vgp import VariationalGaussian

__all__ = ["SiteFit"]


class SiteFit:
    """The engine of a site rule: climbs at a fixed θ, or L-BFGS over θ with a climb at each."""

    def __init__(self, rule: type[SiteRule]) -> None:
        self.rule = rule

    def __call__(self, problem: FitProblem) -> FitOutcome:
        """Return the fit; errors are those of the covariance at the start and of the sites."""
        rule = self.rule()
        if problem.options.get("structure") == "factorised":
            rule = VariationalGaussian(factorised=True)
        if rule.augmented:
            problem.model.require_augmentation()
            problem.model.require_bound()
        family = BoundFamily(problem.model, rule, [problem.point, *problem.probes])
        found = ascend(family, problem, reporter(problem), inner=climb, gradient=bound_gradient)
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
            evidence_error=0.0 if end.posterior is None else end.posterior.error,
        )
