"""The evidence lower bound as a function of the sites, at one θ, and the rules that define it.

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

For every likelihood with a log density, the Gaussian q(f) that maximises E[log p(y | f)] − KL(q‖p)
has, with mean m and covariance Σ,

    m = prior mean + K α,  αᵢ = E[∂ log p(yᵢ | ηᵢ)],
    Σ = (K⁻¹ + Λ)⁻¹,       λᵢ = −E[∂² log p(yᵢ | ηᵢ)],

2n numbers; λ < 0 where log p is not concave. By the theorems of Bonnet and Price these expectations
are the derivatives of ℓ(m, v) = E[log p(y | η)] above: ∂ℓ/∂m = α, ∂ℓ/∂v = −½λ.
A whole step may overshoot; the loop halves it until the bound increases. With P predictors αᵢ is a
vector and λᵢ a P × P matrix under their joint distribution, unless the expectation is known for
independent predictors alone. Without a closed form a nested trapezoidal rule of up to four
predictors, or of any number where log p is a sum over these, has an error of 1e-10, see
:mod:`pymc_augconj.quadrature.expectation`.

Coordinate ascent on the augmented model has q(f) q(ω), each optimal given the other. The update of
q(ω) given q(f) is in closed form, and q(f) depends on it through the expected site only. With q(ω)
at its optimum, the bound of one site is

    ℓ(m, v) = log ∫ exp( h(ω) m − ½ λ(ω) (m² + v) + log_base(y, ω) ) dω,

whose derivatives are ∂ℓ/∂m = E[h] − E[λ] m and ∂ℓ/∂v = −½ E[λ]: the target sites
are the expected sites, and a step onto them is a sweep of coordinate ascent, which
never decreases the bound. Since ℓ ≤ E[log p(y | η)], the bound is below the bound of the VGP.

References
----------
Khan & Lin (2017), Conjugate-computation variational inference. AISTATS.
Opper, M. & Archambeau, C. (2009). The variational Gaussian approximation revisited. Neural
Computation 21.
Galy-Fajou, T., Wenzel, F. & Opper, M. (2020). Automated augmented conjugate inference for
non-conjugate Gaussian process models. AISTATS, algorithm 1.
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
from pymc_augconj.likelihoods.base import Expected, Params
from pymc_augconj.likelihoods.contract import MultiDensity, params_at_nodes
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.point import Point
from pymc_augconj.quadrature.expectation import (
    MOST_PREDICTORS,
    Integrand,
    expectation_of_sum,
    gaussian_cubature,
    is_sum,
    nonzero_variances,
    quasi_monte_carlo_by_values,
)
from pymc_augconj.typing import Array, Index, Mask


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
        full = [rule is not None and rule.full(site) for site in model.sites]
        self.layout = SiteLayout([site.shape for site in model.sites], full)
        self.priors = LatentPriors(model, points, self.layout.coupling)
        groups = self.priors.groups
        self.preferred = choose_solver(model.blocks, groups, fit=True)
        self.solver = solver_of_fit(model.blocks, groups, self.preferred.name)
        size = self.preferred.order(model.blocks, groups)
        self.solver.preferred.scratch = np.empty((size, size), order="F")
        self.y = [site.y(points[0]) for site in model.sites]
        self.stages = [Stage()]
        if rule is not None:
            self._check_independence(rule, points)
            if rule.monotone:
                self.stages = stages_in_turn(model, self.layout.coupling)

    def _check_independence(self, rule: SiteRule, points: Sequence[Point]) -> None:
        """Raise if the rule assumes independence of predictors that share a latent."""
        sites, groups = self.model.sites, [rule.groups(site) for site in self.model.sites]
        if all(len(own) == 1 for own in groups):
            return
        try:
            find_components(self.model, groups, [[A(p) for A in self.model.maps] for p in points])
        except AugmentationError:
            if rule.monotone:
                raise
            apart = [site for site, own in zip(sites, groups, strict=True) if len(own) > 1]
            names = [f"{s.label} ({s.likelihood.name}, {s.likelihood.link})" for s in apart]
            raise AugmentationError(
                f"{', '.join(names)}: expected each latent variable to enter one predictor, since "
                "the variational Gaussian factorises over them, found some that enter, or are tied "
                "to, several; sample with pac.sample, or use another likelihood of classes"
            ) from None

    def at(self, point: Point, *, factorized: bool = False) -> Bound:
        """Return the bound as a function of the sites at ``point``."""
        return Bound(self, point, self.prior_at(point, factorized=factorized))

    def prior_at(self, point: Point, *, factorized: bool) -> LatentPrior:
        """Return the latents' prior at ``point``, factorised also where the solver needs it."""
        prior = self.priors.at(point)
        factorized = factorized or self.preferred.takes_factors
        return prior.factorized() if factorized else prior


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
            total, 0.0, magnitude * self.family.rule.error, groups.coupling, None,
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
        error = magnitude * self.family.rule.error + posterior.divergence_magnitude * _EPS
        return Evaluation(
            h, lam, target_h, target_lam, posterior.mean, cov, total, posterior.divergence,
            error, groups.coupling, posterior,
        )  # fmt: skip


# Sums of n terms and a factorisation accumulate some hundreds of rounding units.
_EPS = 1000.0 * float(np.finfo(float).eps)


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


class CoordinateAscent:
    """The rule of CAVI; see :class:`~pymc_augconj.engines.base.SiteRule`."""

    monotone = True
    augmented = True
    error = _EPS

    def full(self, site: Site) -> bool:
        return site.likelihood.traits.coupled

    def groups(self, site: Site) -> tuple[tuple[int, ...], ...]:
        return site.likelihood.groups

    def value(self, site: Site, y: Array, mean: Array, cov: Array, params: Params) -> Array:
        return site.likelihood.expected_log_bound(y, mean, cov, params)

    def targets(
        self, site: Site, y: Array, mean: Array, cov: Array, params: Params
    ) -> tuple[Array, Array, Array]:
        value = site.likelihood.expected_log_bound(y, mean, cov, params)
        return value, *site.likelihood.expected_sites(y, mean, cov, params)


# The most predictors for which a few digits are not cheaper than the grid: three take 10^4 nodes.
_CHEAP_PREDICTORS = 2
# Relative accuracy of a few digits, and the most nodes of a halving for them.
_ROUGH, _FEW_NODES = 1e-6, 10_000


class VariationalGaussian:
    """The rule of the VGP; see :class:`~pymc_augconj.engines.base.SiteRule`."""

    monotone = False
    augmented = False

    def __init__(self, factorised: bool = False, *, rough: bool = False) -> None:
        self.factorised, self.rough = factorised, rough
        self.error = _ROUGH if rough else _EPS

    def full(self, site: Site) -> bool:
        return not (self.factorised or site.likelihood.traits.factorises)

    def groups(self, site: Site) -> tuple[tuple[int, ...], ...]:
        own = tuple(range(site.shape[0]))
        return (own,) if self.full(site) else tuple((p,) for p in own)

    def value(self, site: Site, y: Array, mean: Array, cov: Array, params: Params) -> Array:
        return expectations(site.likelihood, y, mean, cov, params, rough=self.rough)[0]

    def targets(
        self, site: Site, y: Array, mean: Array, cov: Array, params: Params
    ) -> tuple[Array, Array, Array]:
        value, d_mean, d_cov = expectations(site.likelihood, y, mean, cov, params, rough=self.rough)
        lam = -2.0 * d_cov
        if cov.ndim == mean.ndim:
            return value, d_mean + lam * mean, lam
        return value, d_mean + np.einsum("pqn,qn->pn", lam, mean), lam


def expectations(
    terms: MultiDensity, y: Array, mean: Array, cov: Array, params: Params, *, rough: bool = False
) -> Expected:
    """Return E[log p(y | η)], η ~ N(mean, cov), and its derivatives by mean and by cov.

    Shapes are those of :meth:`.MultiDensity.expected_log_density`. For independent predictors
    ``cov`` and its derivative have the shape (P, N). With ``rough`` a few digits suffice.
    """
    P = len(mean)
    if cov.ndim == mean.ndim:
        var = nonzero_variances(mean, cov)
        found = terms.expected_log_density_apart(y, mean, var, params)
        if found is not None:
            return found
        whole = np.einsum("pq,pn->pqn", np.eye(P), var)
        value, d_mean, d_cov = expectations(terms, y, mean, whole, params, rough=rough)
        return value, d_mean, np.einsum("ppn->pn", d_cov)
    cov = cov.copy()
    diagonal = np.arange(P)
    cov[diagonal, diagonal] = nonzero_variances(mean, cov[diagonal, diagonal])
    closed = terms.expected_log_density(y, mean, cov, params)
    if closed is not None:
        return closed
    log_density = of_sites(terms, y, params)
    of_sum = expectation_of_sum(log_density, mean, cov) if P > 1 else None
    if of_sum is not None:
        return of_sum
    if rough and P > _CHEAP_PREDICTORS:
        return quasi_monte_carlo_by_values(log_density, mean, cov)
    if P > MOST_PREDICTORS:
        raise AugmentationError(
            f"{terms.name}: expected at most {MOST_PREDICTORS} predictors of an observation where "
            "a fit needs the expectation of its log density by quadrature, or one that is a sum of "
            f"functions of one predictor each, found {P} predictors, which would take some 10^{P} "
            "nodes; use pac.sample, which is exact without it"
        )
    if rough:
        return gaussian_cubature(log_density, mean, cov, rtol=_ROUGH, most_nodes=_FEW_NODES)
    return gaussian_cubature(log_density, mean, cov)


def of_sites(terms: MultiDensity, y: Array, params: Params) -> Integrand:
    """Return log p(y | η) as a function of nodes of η, (P, sites, nodes), and of the sites."""

    def log_density(eta: Array, which: Index) -> Array:
        return terms.log_density(y[which, None], eta, params_at_nodes(params, which, y.size))

    return log_density


def is_sum_over_predictors(site: Site, point: Point) -> bool:
    """Return whether log p is a sum of functions of one predictor each, by a thousand rows."""
    zeros = np.zeros((site.shape[0], min(site.shape[1], 1_000)))
    return is_sum(of_sites(site.likelihood, site.y(point), site.params(point)), zeros, zeros)
