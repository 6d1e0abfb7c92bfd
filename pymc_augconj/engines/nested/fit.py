"""The engine of nested approximations.

The mode of p(θ) Z(θ) in the unconstrained scale, its Hessian, and a design about it; Z by
expectation propagation with the leading correction for skewness, or by the variational Gaussian
where an observation has several predictors.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from pymc_augconj.engines.base import FitOutcome, FitProblem
from pymc_augconj.engines.ep.fit import ExpectationPropagation
from pymc_augconj.engines.hyperparameters import HyperClimb, Search
from pymc_augconj.engines.options import NestedOptions
from pymc_augconj.engines.variational.ascent import SiteFit
from pymc_augconj.engines.variational.site_rules import VariationalGaussian
from pymc_augconj.errors import AugmentationError, NotPositiveDefiniteError
from pymc_augconj.latents.posterior import Posterior
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.point import Point
from pymc_augconj.typing import Array

from .density import (
    LARGEST_DESIGN,
    LARGEST_INTERPOLATED,
    LARGEST_LATTICE,
    Scaling,
    density_of,
    lattice,
    proposals,
    scattered,
)
from .importance import NestedPosterior
from .surface import Surface, everywhere

_ENGINES: dict[str, ExpectationPropagation | SiteFit] = {
    "ep": ExpectationPropagation(),
    "vgp": SiteFit(VariationalGaussian),
}

# Points of smaller weight are no components of the mixture.
_SMALLEST_WEIGHT = 1e-6
# Different predictors up to which Z is corrected, which takes all their correlations.
_MOST_CORRELATED = 1000


class NestedApproximations:
    """The engine ``method="nested"``."""

    def __call__(self, problem: FitProblem) -> FitOutcome:
        """Return the fit; its sites are those at the mode.

        Raises
        ------
        AugmentationError
            If there are too many hyperparameters for a design.
        """
        sizes = {h.name: h.size for h in problem.members}
        if sum(sizes.values()) > LARGEST_DESIGN:
            raise AugmentationError(
                f"hyperparameters: expected at most {LARGEST_DESIGN} components, over which "
                f"points integrate, found {sum(sizes.values())} ({sizes}); use pac.sample, "
                "method='ep' with point estimates, or give some of them fixed values"
            )
        # On the unconstrained scale, in which they are integrated over.
        problem = replace(problem, log_prior=_with_jacobian(problem.model))
        name, search, best = self._maximise(problem)
        surface = Surface(search)
        family: Any = search.family
        nested, log_mass, corrected = _nested(surface, problem, name)
        end = best.climb.evaluation
        failed = Counter(node.converged for node in surface.nodes.values())[False]
        message = f"{len(nested.x)} points, sites by {name!r}; mode: {best.message}"
        if failed:
            message = f"sites did not converge at {failed} points; {message}"
        posterior = end.posterior
        return FitOutcome(
            best.point, end.h, end.lam, log_mass, best.objective, family.at(best.point).prior,
            family.priors.groups, family.preferred.name, best.converged and not failed, message,
            search.iterations, best.gradient,
            {"points": len(nested.x), "sites": name, **corrected,
             "evaluations": search.evaluations},
            evidence_error=posterior.error if isinstance(posterior, Posterior) else 0.0,
            nested=nested,
        )  # fmt: skip

    def _maximise(self, problem: FitProblem) -> tuple[str, Search[Any], HyperClimb[Any]]:
        """Return the method of the sites, the search and its maximum."""
        chosen = NestedOptions.of(problem.options).sites
        several = any(site.shape[0] > 1 for site in problem.model.sites)
        names = [chosen] if chosen else ["vgp"] if several else ["ep", "vgp"]
        for name in names:
            search: Search[Any] = _ENGINES[name].search(problem)
            try:
                best = search.ascend()
            except (NotPositiveDefiniteError, FloatingPointError):
                if name == names[-1]:
                    raise
                continue
            search.best = best
            break
        return name, search, best


def _with_jacobian(model: LatentGaussianModel) -> Any:
    def log_prior(point: Point) -> tuple[float, dict[str, Array]]:
        return float(model.log_prior(point)), dict(model.log_prior_gradient(point))

    return log_prior


def _nested(
    surface: Surface, problem: FitProblem, name: str
) -> tuple[NestedPosterior, float, dict[str, float]]:
    """Return the approximations at a design, and log ∫ p(θ) Z(θ) dθ; log Z without members.

    Third are mean and standard deviation over θ of what skewness adds to log Z, if it does.
    """
    search, p = surface.search, surface.mode.size
    nodes = list(surface.nodes.values())
    if p:
        scaling = surface.scaling()
        z = _design(surface, scaling)
        nodes = [surface.at(scaling.theta(row)) for row in z]
        usable = np.isfinite([node.log_density for node in nodes])
        z, nodes = z[usable], [node for node, keep in zip(nodes, usable, strict=True) if keep]
    family: Any = search.family
    nested = NestedPosterior(
        problem.model, family.priors, family.preferred.name, tuple(problem.members),
        dict(problem.point), np.array([node.x for node in nodes]),
        np.array([node.log_density for node in nodes]), np.ones(1),
        np.array([node.h for node in nodes]), np.array([node.lam for node in nodes]), None,
    )  # fmt: skip
    if not p:
        return nested, search.known_best.climb.evaluation.bound, {}
    is_corrected = name == "ep" and nested.priors.groups.size <= _MOST_CORRELATED
    correction = everywhere(nested.corrections, z) if is_corrected else np.zeros(len(z))
    nested.log_density = nested.log_density + correction
    density = nested.density = density_of(scaling, z, nested.log_density)
    nested.weights = np.where(np.abs(density.weights) < _SMALLEST_WEIGHT, 0.0, density.weights)
    mean = float(density.weights @ correction)
    var = float(density.weights @ (correction - mean) ** 2)
    found = {"correction": mean, "correction_sd": float(np.sqrt(max(var, 0.0)))}
    return nested, density.log_mass, found if is_corrected else {}


def _design(surface: Surface, scaling: Scaling) -> Array:
    """Return the points z at which θ is tried."""
    p = surface.mode.size
    if p > LARGEST_LATTICE:
        return scattered(p) if p <= LARGEST_INTERPOLATED else proposals(p)
    return lattice(lambda z: surface.log_density(scaling.theta(z)), p)
