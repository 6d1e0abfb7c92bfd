"""The evidence lower bound as a function of the sites, at one θ.

With q(u) ∝ p(u) Π exp(hᵢηᵢ − ½ λᵢηᵢ²) and mᵢ, vᵢ its moments of ηᵢ,

    bound = Σᵢ ℓᵢ(mᵢ, vᵢ) − KL(q‖p),

where an engine's *rule* defines ℓ: the augmented bound with ω integrated out for CAVI, and
E[log p(y | η)] for the VGP. The gradient of the bound with respect to q's natural parameters is the
difference between these *target* sites and the sites of q (Khan & Lin 2017),

    λ̂ᵢ = −2 ∂ℓᵢ/∂vᵢ,        ĥᵢ = ∂ℓᵢ/∂mᵢ + λ̂ᵢ mᵢ,

so that moving the sites towards their targets is a natural-gradient step, and sites equal to their
targets are a stationary point. There the sites may be fixed while θ changes. Hence, with C, α and R
as in :mod:`~pymc_augconj.latents.posterior`,

    d bound/dθ = ∂ log Z(θ; sites)/∂θ + ∂/∂θ Σ ℓᵢ(mᵢ, vᵢ; params(θ)) at fixed m, v,
    ∂ log Z/∂C = G = ½ (α αᵀ − R),        ∂ log Z/∂offset = h − λμ,

and through C = Σ A_b K_b A_bᵀ: ∂/∂K_b = A_bᵀ G A_b, ∂/∂A_b = 2 G A_b K_b. The three are pulled
back by the model's vector–Jacobian products; Σ ℓ is differentiated numerically.

References
----------
Khan & Lin (2017), Conjugate-computation variational inference. AISTATS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pymc_augconj.engines.base import Evaluation, SiteRule
from pymc_augconj.errors import AugmentationError
from pymc_augconj.gaussian.sites import Coupling, SiteLayout
from pymc_augconj.latents.choice import choose_solver, solver_of_fit
from pymc_augconj.latents.components import find_components
from pymc_augconj.latents.derivatives import accumulate, difference_slopes
from pymc_augconj.latents.joint import LatentPrior, LatentPriors
from pymc_augconj.latents.posterior import Posterior
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.point import Point
from pymc_augconj.typing import Array, Mask


@dataclass(frozen=True)
class Stage:
    """Sites that move at once: masks of ``h`` and of ``lam``."""

    rows: Mask | bool = True
    entries: Mask | bool = True


def stages_in_turn(model: LatentGaussianModel, coupling: Coupling) -> list[Stage]:
    """Return a stage for each group of predictors, which coordinate ascent moves in turn."""
    groups = [site.likelihood.groups for site in model.sites]
    count = max(map(len, groups))
    if count == 1:
        return [Stage()]
    stages = []
    for k in range(count):
        rows = np.zeros(coupling.n_rows, dtype=bool)
        for site, own in zip(model.sites, groups, strict=True):
            if k < len(own):
                rows[site.row_numbers[list(own[k])]] = True
        stages.append(Stage(rows, np.concatenate([rows, rows[coupling.first]])))
    return stages


class BoundFamily:
    """The bound of one model under one rule, for every θ."""

    #: Default starting sites of an optimiser run; None for the prior.
    first: tuple[Array, Array] | None = None

    def __init__(
        self, model: LatentGaussianModel, rule: SiteRule | None, points: Sequence[Point]
    ) -> None:
        self.model = model
        # Any, because engines with targets of their own do not use the rule.
        self.rule: Any = rule
        self.warms_up = model.has_bounded_densities
        self.layout = SiteLayout(
            [site.shape for site in model.sites],
            [rule is not None and rule.full(site) for site in model.sites],
        )
        self.priors = LatentPriors(model, points, self.layout.coupling)
        groups = self.priors.groups
        self.preferred = choose_solver(model.blocks, groups, fit=True)
        self.solver = solver_of_fit(model.blocks, groups, self.preferred.name)
        size = self.preferred.order(model.blocks, groups)
        self.solver.preferred.scratch = np.empty((size, size), order="F")
        self.y = [site.y(points[0]) for site in model.sites]
        self.stages = [Stage()]
        if rule is not None and rule.monotone:
            in_turn = [site.likelihood.groups for site in model.sites]
            find_components(model, in_turn, [[read(p) for read in model.maps] for p in points])
            self.stages = stages_in_turn(model, self.layout.coupling)
        elif rule is not None:
            self._check_independence(points)

    def _check_independence(self, points: Sequence[Point]) -> None:
        """Raise if a rule assumes independence of predictors that share a latent."""
        spans = self.layout.spans
        if all(span.full or span.shape[0] == 1 for span in spans):
            return
        groups = [
            (tuple(range(span.shape[0])),)
            if span.full
            else tuple((p,) for p in range(span.shape[0]))
            for span in spans
        ]
        try:
            find_components(self.model, groups, [[A(p) for A in self.model.maps] for p in points])
        except AugmentationError:
            names = [
                f"{site.label} ({site.likelihood.name}, {site.likelihood.link})"
                for site, span in zip(self.model.sites, spans, strict=True)
                if not span.full
            ]
            raise AugmentationError(
                f"{', '.join(names)}: expected each latent variable to enter one predictor, since "
                "the variational Gaussian factorises over them, found some that enter, or are tied "
                "to, several; sample with pac.sample, or use another likelihood of classes"
            ) from None

    def at(self, point: Point, *, factorized: bool = False) -> Bound:
        """Return the bound as a function of the sites at ``point``."""
        prior = self.priors.at(point)
        factorized = factorized or self.preferred.takes_factors
        return Bound(self, point, prior.factorized() if factorized else prior)


class Bound:
    """The bound at one θ."""

    def __init__(self, family: BoundFamily, point: Point, prior: LatentPrior) -> None:
        self.family, self.prior, self.point = family, prior, point
        self.params = [site.params(point) for site in family.model.sites]

    def _targets(self, mean: Array, cov: Array) -> tuple[float, float, Array, Array]:
        family = self.family
        linear, precisions = [], []
        total = magnitude = 0.0
        moments = family.layout.moments(mean, cov)
        parts = zip(family.model.sites, family.y, self.params, moments, strict=True)
        for site, y, params, own in parts:
            value, h, lam = family.rule.targets(site, y, *own, params)
            total += float(np.sum(value))
            magnitude += float(np.sum(np.abs(value)))
            linear.append(h)
            precisions.append(lam)
        layout = family.layout
        return total, magnitude, layout.stack_rows(linear), layout.stack_precisions(precisions)

    def at_prior(self) -> Evaluation:
        """Return the evaluation at sites (0, 0), or at the first ones of an improper prior."""
        prior, groups = self.prior, self.family.priors.groups
        first = prior.first_sites(groups.coupling)
        if first[1].any():
            return self.evaluate(*first)
        cov = groups.expand(self.family.solver.preferred.prior_cov(prior))
        mean = prior.offset.copy()
        total, magnitude, h, lam = self._targets(mean, cov)
        return Evaluation(
            np.zeros_like(h), np.zeros_like(lam), h, lam, mean, cov,
            total, 0.0, magnitude * _EPS, groups.coupling, None,
        )  # fmt: skip

    def evaluate(self, h: Array, lam: Array, keep: Evaluation | None = None) -> Evaluation:
        """Return the evaluation at the sites (h, λ); ``keep`` stays valid."""
        groups = self.family.priors.groups
        sites = groups.sites(h, lam, self.prior.offset)
        kept = None if keep is None else keep.posterior
        assert kept is None or isinstance(kept, Posterior)
        posterior = self.family.solver.of_fit(self.prior, sites, kept)
        # Square roots follow, and rounding may have made a variance negative.
        cov = posterior.cov.copy()
        np.maximum(posterior.var, 0.0, out=cov[: h.size])
        total, magnitude, target_h, target_lam = self._targets(posterior.mean, cov)
        return Evaluation(
            h, lam, target_h, target_lam, posterior.mean, cov, total, posterior.divergence,
            (magnitude + posterior.divergence_magnitude) * _EPS, groups.coupling, posterior,
        )  # fmt: skip


# Sums of n terms and a factorisation accumulate some hundreds of rounding units.
_EPS = 1000.0 * np.finfo(float).eps


def bound_gradient(bound: Any, evaluation: Evaluation) -> dict[str, Array]:
    """Return d bound/dθ at sites that equal their targets."""
    model, point = bound.family.model, bound.point
    posterior = evaluation.posterior
    assert isinstance(posterior, Posterior)  # of a converged run
    gradient: dict[str, Array] = {}
    for index, (block, read) in enumerate(zip(posterior.prior.blocks, model.maps, strict=True)):
        A = posterior.prior.maps[index]
        if block.block.scale.names and block.block.scale_pullback is not None:
            accumulate(gradient, block.block.scale_pullback(point, posterior.pull_cov(index)))
        if read.names:
            _accumulate_map(gradient, bound, posterior, index, A)
    weights = evaluation.h - posterior.groups.coupling.product(evaluation.lam, posterior.mean)
    accumulate(gradient, model.predictor_pullback(point, _innovations(bound), weights))
    _accumulate_likelihood(gradient, bound, evaluation)
    return gradient


def _innovations(bound: Any) -> dict[str, Array]:
    return {b.name: np.zeros(b.total_size) for b in bound.family.model.blocks}


def _accumulate_map(
    gradient: dict[str, Array], bound: Any, posterior: Posterior, index: int, A: LinearMap
) -> None:
    """Add ⟨∂ log Z/∂A, ∂A/∂θ⟩, as a sum of ⟨w, ∂A/∂θ u⟩ over pairs (w, u)."""
    model, point = bound.family.model, bound.point
    first, name = bound.family.priors.groups.first, model.blocks[index].name
    if isinstance(A, DenseMap):
        derivative = posterior.pull_map(index)
        pairs = [(derivative[:, j], unit) for j, unit in enumerate(np.eye(A.size))]
    else:
        # Each row has one entry, whose derivative is selected; all are pulled back at once.
        pairs = [(posterior.pull_selection(index), np.ones(A.size))]
    for weights, u in pairs:
        full = np.zeros(model.n_rows)
        full[first] = weights
        innovations = _innovations(bound)
        at_zero = model.predictor_pullback(point, innovations, full)
        at_u = model.predictor_pullback(point, {**innovations, name: u}, full)
        accumulate(gradient, {key: at_u[key] - at_zero[key] for key in at_u})


def _accumulate_likelihood(gradient: dict[str, Array], bound: Any, evaluation: Evaluation) -> None:
    family, point = bound.family, bound.point
    moments = family.layout.moments(evaluation.mean, evaluation.cov)
    for site, y, own in zip(family.model.sites, family.y, moments, strict=True):
        total = partial(_expected, family.rule, site, y, own)
        accumulate(gradient, difference_slopes(total, point, site.params.names))


def _expected(
    rule: SiteRule, site: Site, y: Array, moments: tuple[Array, Array], point: Point
) -> float:
    """Return Σ ℓ of one observed variable at fixed moments."""
    value = rule.value(site, y, *moments, site.params(point))
    return float(np.sum(np.broadcast_to(value, y.shape)))
