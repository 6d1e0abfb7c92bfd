"""The evidence lower bound as a function of the sites, at one θ.

With q(u) ∝ p(u) Π exp(hᵢηᵢ − ½ λᵢηᵢ²) and mᵢ, vᵢ its moments of ηᵢ,

    bound = Σᵢ ℓᵢ(mᵢ, vᵢ) − KL(q‖p),

where an engine's *rule* says what ℓ is: CAVI's is the augmented bound with ω integrated out, the
VGP's is E[log p(y | η)]. The gradient of the bound with respect to q's natural parameters is the
difference of these *target* sites from q's own (Khan & Lin 2017),

    λ̂ᵢ = −2 ∂ℓᵢ/∂vᵢ,        ĥᵢ = ∂ℓᵢ/∂mᵢ + λ̂ᵢ mᵢ,

so that moving the sites towards their targets is a natural-gradient step, and sites equal to their
targets are a stationary point of the bound.

References
----------
Khan & Lin (2017), Conjugate-computation variational inference. AISTATS.
Opper & Archambeau (2009), The variational Gaussian approximation revisited. Neural Computation 21.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pymc_augconj.engines.base import Evaluation, SiteRule
from pymc_augconj.latents.joint import LatentPrior, LatentPriors
from pymc_augconj.latents.space import choose_space
from pymc_augconj.likelihoods.base import Params
from pymc_augconj.model import LatentGaussianModel, Point, Site

__all__ = ["Bound", "BoundFamily"]

Array = NDArray[np.float64]


class BoundFamily:
    """The bound of one model under one rule, for every θ.

    Parameters
    ----------
    model : LatentGaussianModel
    rule : SiteRule, optional
        None for an engine with targets of its own.
    points : sequence of mapping
        A point of θ, and others at which predictors must agree to be merged.
    """

    def __init__(self, model: LatentGaussianModel, rule: SiteRule | None, points: Sequence[Point]):
        self.model, self.rule = model, rule
        self.priors = LatentPriors(model, points)
        self.space = choose_space(model, self.priors.groups)
        size = self.space.order(model, self.priors.groups)
        # The current evaluation keeps one of the first two, a candidate gets the other.
        self.buffers = [np.empty((size, size), order="F") for _ in range(2)]
        self.scratch = np.empty((size, size), order="F")
        self.y = [np.array(site.y(points[0]), dtype=float) for site in model.sites]

    def at(self, point: Point, *, factorized: bool = False) -> Bound:
        """Return the bound as a function of the sites at ``point``."""
        prior = self.priors.at(point)
        factorized = factorized or self.space.takes_factors
        return Bound(self, point, prior.factorized() if factorized else prior)


class Bound:
    """The bound at one θ."""

    def __init__(self, family: BoundFamily, point: Point, prior: LatentPrior):
        self.family, self.prior, self.point = family, prior, point
        self.params = [site.params(point) for site in family.model.sites]

    def _per_site(self) -> list[tuple[Site, Array, Params]]:
        return list(zip(self.family.model.sites, self.family.y, self.params, strict=True))

    def values(self, mean: Array, var: Array) -> float:
        """Return Σ ℓ at given moments."""
        rule = self.family.rule
        return float(
            sum(
                np.sum(rule.value(site.likelihood, y, site.select(mean), site.select(var), params))
                for site, y, params in self._per_site()
            )
        )

    def _targets(self, mean: Array, var: Array) -> tuple[float, float, Array, Array]:
        h, lam = np.empty_like(mean), np.empty_like(mean)
        total = magnitude = 0.0
        for site, y, params in self._per_site():
            value, site_h, site_lam = self.family.rule.targets(
                site.likelihood, y, site.select(mean), site.select(var), params
            )
            total += float(np.sum(value))
            magnitude += float(np.sum(np.abs(value)))
            several = len(site.rows) > 1
            for i, rows in enumerate(site.rows):
                h[rows] = site_h[i] if several else site_h
                lam[rows] = site_lam[i] if several else site_lam
        return total, magnitude, h, lam

    def at_prior(self) -> Evaluation:
        """Return the evaluation at q = p, all sites (0, 0), without a factorisation."""
        prior, inverse = self.prior, self.family.priors.groups.inverse
        var = self.family.space.prior_var(prior)
        var = np.array(var if inverse is None else var[inverse])
        mean = prior.offset.copy()
        zeros = np.zeros_like(mean)
        total, magnitude, h, lam = self._targets(mean, var)
        return Evaluation(zeros, zeros, h, lam, mean, var, total, 0.0, magnitude * _EPS, buffer=-1)

    def evaluate(self, h: Array, lam: Array, keep: Evaluation | None = None) -> Evaluation:
        """Return the evaluation at the sites (h, λ); ``keep`` stays valid.

        Raises
        ------
        NotPositiveDefiniteError
            If there is no posterior: negative precisions outweigh the prior.
        """
        family = self.family
        which = 1 if keep is not None and keep.buffer == 0 else 0
        posterior = family.space(
            self.prior,
            family.priors.groups,
            h,
            lam,
            work=family.buffers[which],
            second_work=family.scratch,
        )
        # A variance that rounding has made negative would be passed to a square root.
        var = np.maximum(posterior.var, 0.0)
        total, magnitude, target_h, target_lam = self._targets(posterior.mean, var)
        return Evaluation(
            h,
            lam,
            target_h,
            target_lam,
            posterior.mean,
            var,
            total,
            posterior.divergence,
            (magnitude + posterior.rounding) * _EPS,
            posterior,
            which,
        )


# Sums of n terms and a factorisation accumulate some hundreds of rounding units.
_EPS = 1000.0 * np.finfo(float).eps
