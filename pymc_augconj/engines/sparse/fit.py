"""The evidence lower bound through inducing points, on all the data at once.

As :mod:`.bound`, with the same rules and the same loop: the sites are those of the observations,
and the posterior they stand for is one of D weights; see :mod:`.design`, and :mod:`.separate` for
several predictors. The bound is that of Titsias (2009) and Hensman et al. (2015), at most the dense
one, and equal to it where the inducing inputs are the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_augconj.engines.base import Evaluation, FitOutcome, FitProblem, SiteRule, reporter
from pymc_augconj.engines.hyperparameters import ascend
from pymc_augconj.engines.variational.ascent import climb
from pymc_augconj.engines.variational.bound import Stage
from pymc_augconj.errors import AugmentationError
from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.latents.derivatives import accumulate
from pymc_augconj.model import LatentGaussianModel, Point
from pymc_augconj.typing import Array

from .chunked import ChunkedFamily, chunked_gradient
from .design import SeparateDesign, SparseDesign
from .gradient import DesignGradient, slopes_of_components
from .outcome import outcome_of
from .posterior import SeparatePosterior, WeightsPosterior
from .separate import SeparateModel, sparse_model
from .sites import SparseSites, separable

__all__ = ["SparseFit"]


_EPS = 1000.0 * np.finfo(float).eps
# Entries of the whitened design (2.4 GB) beyond which all the data at once are refused.
_LARGEST_DESIGN = 300_000_000


@dataclass
class _SparsePosterior:
    """What the gradient needs of an evaluation."""

    q: WeightsPosterior | SeparatePosterior
    half: Any


class _SparseFamily:
    """The bound for every θ: what the loop and the optimiser ask of a family of bounds."""

    #: Sites of rows are not kept by a fit.
    first: tuple[Array, Array] | None = None

    def __init__(self, problem: FitProblem, rule: SiteRule) -> None:
        self.rule = rule
        self.warms_up = problem.model.has_bounded_densities
        sparse = problem.sparse
        assert sparse is not None
        self.model = sparse_model(problem)
        self.sites = SparseSites(problem.model, rule, problem.point)
        self.inducing = list(sparse.inducing)
        self.stages = _stages(problem.model, rule)
        entries = self.model.entries(self.inducing)
        if entries > _LARGEST_DESIGN:
            raise AugmentationError(
                f"{self.model.n_observations} observations through "
                f"{self.model.size(self.inducing)} weights take {entries * 8 / 1e9:.1f} GB at "
                f"once, expected at most {_LARGEST_DESIGN * 8 / 1e9:.1f}; use method='svi' with a "
                "batch_size, or data=… in chunks"
            )

    def at(self, point: Point) -> SparseBound:
        return SparseBound(self, point, self.model.design(point, self.inducing, slice(None)))


class SparseBound:
    """The bound at one θ."""

    def __init__(
        self, family: _SparseFamily, point: Point, design: SparseDesign | SeparateDesign
    ) -> None:
        self.family, self.point, self.design = family, point, design

    def at_prior(self) -> Evaluation:
        """Return the evaluation at q = p."""
        zeros = np.zeros(self.family.model.n_rows)
        return self.evaluate(zeros, zeros)

    def evaluate(self, h: Array, lam: Array, keep: Evaluation | None = None) -> Evaluation:
        """Return the evaluation at the sites (h, λ) of the observations.

        Raises
        ------
        NotPositiveDefiniteError
            If negative precisions outweigh the prior.
        """
        # Any, because a design goes with the posterior that it makes.
        q: Any = self.design.posterior(h, lam)
        mean, var, half = self.design.moments(q)
        sites = self.family.sites
        value, target_h, target_lam = sites.targets(self.point, slice(None), mean, var)
        magnitude = float(np.sum(np.abs(value))) + abs(q.divergence) + abs(q.log_det)
        return Evaluation(
            h, lam, target_h, target_lam, mean, var, float(np.sum(value)), q.divergence,
            magnitude * _EPS, Coupling(mean.size), _SparsePosterior(q, half),
        )  # fmt: skip


def _gradient(bound: SparseBound, at: Evaluation) -> dict[str, Array]:
    """Return d bound/dθ at sites that equal their targets."""
    q, half, model = at.posterior.q, at.posterior.half, bound.family.model
    if isinstance(model, SeparateModel):
        assert isinstance(bound.design, SeparateDesign)
        halves = [each.copy(order="F") for each in half]
        found, _ = slopes_of_components(model, bound.design, q, halves, at.h, at.lam, at.mean)
    else:
        assert isinstance(bound.design, SparseDesign)
        through = DesignGradient(model, bound.design)
        found = through.of_sites(q, half, at.h, at.lam, at.mean, q.precision)[0]
    accumulate(found, bound.family.sites.gradient(bound.point, slice(None), at.mean, at.var))
    return found


def _stages(lgm: LatentGaussianModel, rule: SiteRule) -> list[Stage]:
    """Return one stage a group of predictors: coordinate ascent moves these in turn."""
    groups = [site.terms.groups for site in lgm.sites] if rule.monotone else [((0,),)]
    count = max(map(len, groups))
    if count == 1:
        return [Stage()]
    stages = []
    for k in range(count):
        rows = np.zeros(lgm.n_rows, dtype=bool)
        for site, own in zip(lgm.sites, groups, strict=True):
            if k < len(own):
                rows[site.row_numbers[list(own[k])]] = True
        stages.append(Stage(rows, rows))
    return stages


class SparseFit:
    """The fit of a site rule through inducing points."""

    def __init__(self, rule: type[SiteRule]) -> None:
        self.rule = rule

    def __call__(self, problem: FitProblem) -> FitOutcome:
        """Return the fit; raises what the covariances at the start raise."""
        rule = separable(self.rule, problem.model)
        several = [site.label for site in problem.model.sites if site.shape[0] > 1]
        if several and problem.options.get("structure") == "full":
            raise AugmentationError(
                f"structure: expected 'factorised' for {several} through inducing points, got "
                "'full'; leave it out, or fit without inducing points"
            )
        if rule.augmented:
            problem.model.require_augmentation()
            problem.model.require_bound()
        chunked = problem.sparse is not None and problem.sparse.data is not None
        family = (ChunkedFamily if chunked else _SparseFamily)(problem, rule)
        gradient = chunked_gradient if chunked else _gradient
        found = ascend(family, problem, reporter(problem), inner=climb, gradient=gradient)
        if rule.augmented:
            problem.model.require_augmentation(found.point)
        end = found.climb.evaluation
        return outcome_of(
            family.model, found.point, family.inducing, end.posterior.q, end.bound,
            found.objective, found.converged, found.message, found.iterations, found.gradient,
        )  # fmt: skip
