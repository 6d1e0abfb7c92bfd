"""Draws of θ, of the latents given θ, and their importance ratios.

Given θ the latents have the Gaussian q(u | θ) = p(u | θ) Π siteᵢ(ηᵢ) / Z_s(θ), with sites
interpolated between the points of the design. Whatever the sites are,

    p(y, θ) = p(θ) Z_s(θ) E_q[ Π p(yᵢ | ηᵢ) / siteᵢ(ηᵢ) ],

so that a mean over a few draws of u estimates p(y, θ) without bias. Draws come in pairs on both
sides of the mean, in which what skewness there is cancels to first order.

With EP's sites the factors are 1 + εᵢ, the tilted density over the marginal, of mean one. As tilted
densities have the moments of the marginals up to the second, εᵢ = γᵢ He₃(zᵢ)/6 + … in the
standardised predictor zᵢ, with the skewness γᵢ of the tilted density. Hermite polynomials of normal
variables with correlation ρ have E[He₃(zᵢ) He₃(zⱼ)] = 6 ρ³, so that to leading order

    log p(y | θ) = log Z_EP(θ) + (1/12) Σ_{i≠j} γᵢ γⱼ ρᵢⱼ³.

References
----------
Opper, M., Paquet, U. & Winther, O. (2013). Perturbative corrections for approximate inference in
Gaussian latent variable models. JMLR 14.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from pymc_augconj.engines.hyperparameters import entries_of
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.latents.choice import condition
from pymc_augconj.latents.joint import LatentPrior, LatentPriors
from pymc_augconj.latents.posterior import Posterior
from pymc_augconj.likelihoods.contract import LikelihoodDensity, site_moments
from pymc_augconj.model import Hyperparameter, LatentGaussianModel, Site
from pymc_augconj.point import Point
from pymc_augconj.typing import Array, Generator, Index

from .density import ThetaDensity

# Smallest variance that is divided by.
_TINY = np.finfo(float).tiny
# Squared mean of a site, in standard deviations, up to which its precision is seen as a scale.
_NEAR = 100.0


@dataclass(frozen=True)
class Given:
    """The Gaussian of the latents given θ."""

    #: θ.
    point: Point
    #: Sites.
    h: Array
    lam: Array
    prior: LatentPrior
    posterior: Posterior

    def draw(self, rng: Generator) -> tuple[list[Array], list[Array]]:
        """Return a draw of every block: the innovations u, and the whitened latents v."""
        whitened = [part[0] for part in self.posterior.draw(rng, 1)]
        return [b.scale(v) for b, v in zip(self.prior.blocks, whitened, strict=True)], whitened


@dataclass
class NestedPosterior:
    """Site approximations at the points of a design, and the density over θ."""

    model: LatentGaussianModel
    priors: LatentPriors
    #: The cheapest solver, see :mod:`pymc_augconj.latents.choice`.
    solver: str
    #: Hyperparameters that are integrated over.
    members: Sequence[Hyperparameter]
    #: The other entries of the point.
    start: Point
    #: θ at the points, flat, on the unconstrained scale, shape (n, p); the mode is first.
    x: Array
    #: log p(θ) + log Z(θ), shape (n,).
    log_density: Array
    #: Weights of the points in a mixture, of sum one, shape (n,); see :class:`.ThetaDensity`.
    weights: Array
    #: Sites at the points, shape (n, …).
    h: Array
    lam: Array
    #: Density over θ; None without hyperparameters.
    density: ThetaDensity | None

    def entries(self, x: Array) -> dict[str, Array]:
        """Return the entries of hyperparameters, with the first axes of ``x``, (…, p)."""
        return entries_of(self.members, x)

    def point(self, x: Array) -> dict[str, Array]:
        """Return the point of one θ."""
        return {**self.start, **self.entries(x)}

    def given(self, x: Array, h: Array, lam: Array) -> Given:
        """Return the latents given θ and sites; raises NotPositiveDefiniteError."""
        return self.at(self.point(x), h, lam)

    def at(self, point: Point, h: Array | None = None, lam: Array | None = None) -> Given:
        """Return the latents at a point of some entries, by default with the first sites."""
        point = {**self.start, **point}
        h, lam = self.h[0] if h is None else h, self.lam[0] if lam is None else lam
        prior = self.priors.at(point).factorized()
        posterior = condition(prior, self.priors.groups, h, lam, solver=self.solver)
        return Given(point, h, lam, prior, posterior)

    def components(self) -> Iterator[tuple[float, Given]]:
        """Yield weight and Gaussian of each point that counts."""
        for k in np.argsort(-self.weights):
            if self.weights[k] != 0.0:
                yield float(self.weights[k]), self.given(self.x[k], self.h[k], self.lam[k])

    def along(self, z: Array) -> Iterator[Given | None]:
        """Yield the latents given each row of z; None where their prior has no factor.

        The sites are interpolated, within the range that they have at the points.
        """
        if self.density is None:
            given = self.given(self.x[0], self.h[0], self.lam[0])
            yield from (given for _ in z)
            return
        every = self.density.scaling.theta(z)
        # The sites of a prior follow its scale over orders of magnitude. Others may have precisions
        # near zero and means far away.
        rows = np.zeros(0, dtype=int)
        if self.lam.shape == self.h.shape:
            near = (self.lam > 0.0) & (self.h**2 < _NEAR * self.lam)
            rows = np.flatnonzero(near.all(axis=0))
        root = np.sqrt(self.lam[:, rows])
        known = (self.h, self.lam, self.h[:, rows] / root, np.log(root))
        bounds = [(s.min(axis=0), s.max(axis=0)) for s in known]
        for x, row, weights in zip(every, z, self.density.site_weights(z), strict=True):
            pairs = zip(known, bounds, strict=True)
            h, lam, ratio, log_root = (np.clip(weights @ values, *ends) for values, ends in pairs)
            root = np.exp(log_root)
            h[rows], lam[rows] = ratio * root, root**2
            k = int(np.argmin(np.sum((self.density.z - row) ** 2, axis=1)))
            for sites in ((h, lam), (self.h[k], self.lam[k])):
                try:
                    yield self.given(x, *sites)
                    break
                except NotPositiveDefiniteError:
                    continue
            else:
                yield None

    def draw(
        self, rng: Generator, draws: int
    ) -> tuple[Array, list[tuple[Given, list[Array], list[Array]]]]:
        """Return draws of z, and with each the latents given θ, and a draw of u and v."""
        z = np.zeros((draws, 0)) if self.density is None else self.density.draw(rng, draws)
        found = []
        kept = []
        for i, given in enumerate(self.along(z)):
            if given is not None:
                found.append((given, *given.draw(rng)))
                kept.append(i)
        if len(kept) == draws:
            return z, found
        more, rest = self.draw(rng, draws - len(kept))
        return np.concatenate([z[kept], more]), [*found, *rest]

    def _cavity(self, given: Given, site: Site) -> tuple[Array, tuple[Array, Array]]:
        """Return the log integral of each site under its cavity, and means and variances of these.

        Raises NotPositiveDefiniteError if a cavity is not proper.
        """
        mean, var = (site.select(x)[0] for x in (given.posterior.mean, given.posterior.var))
        h, lam = given.h[site.rows], given.lam[site.rows]
        remaining, r = 1.0 - lam * var, h - lam * mean
        if not (remaining > 0.0).all():
            raise NotPositiveDefiniteError("a cavity is not proper")
        cavity_var = var / remaining
        of_site = (h - 0.5 * lam * mean) * mean + 0.5 * (np.log(remaining) - r**2 * cavity_var)
        return of_site, (mean - cavity_var * r, cavity_var)

    def _scales(self, given: Given, site: Site) -> tuple[Array, Array, tuple[Array, Array]]:
        """Return log Ẑᵢ, log cᵢ with Ẑᵢ = cᵢ ∫ siteᵢ under the cavity, and the cavity."""
        of_site, cavity = self._cavity(given, site)
        left_out = site_moments(self._density(given, site), *cavity).log_Z
        return left_out, left_out - of_site, cavity

    def _density(self, given: Given, site: Site) -> LikelihoodDensity:
        return LikelihoodDensity(site.likelihood, site.y(given.point), site.params(given.point))

    def log_evidence(self, given: Given) -> float:
        """Return the evidence of expectation propagation, log p(y | θ), at sites that may be near.

        All observations have one predictor. The error is of second order in that of the sites.
        """
        scales = [self._scales(given, site)[1].sum() for site in self.model.sites]
        return float(given.posterior.log_normalizer + np.sum(scales))

    def corrections(self, rows: Index) -> Array:
        """Return what skewness adds to the evidence of expectation propagation at some points.

        Zero where a cavity is not proper, or so much wider than its site that moments are not
        finite.
        """
        found = np.zeros(len(rows))
        for i, k in enumerate(rows):
            with suppress(NotPositiveDefiniteError, FloatingPointError), np.errstate(all="ignore"):
                found[i] = self._correction(self.given(self.x[k], self.h[k], self.lam[k]))
        return np.where(np.isfinite(found), found, 0.0)

    def _correction(self, given: Given) -> float:
        gamma = np.zeros(self.model.n_rows)
        for site in self.model.sites:
            cavity = self._cavity(given, site)[-1]
            tilted = site_moments(self._density(given, site), *cavity, higher=True)
            assert tilted.third is not None  # which is asked for
            # A predictor that hardly varies, as under a small scale, is not skewed.
            root = np.sqrt(np.maximum(tilted.var, _TINY))
            gamma[site.rows] = tilted.third / root / root / root
        groups = self.priors.groups
        group = np.arange(gamma.size) if groups.inverse is None else groups.inverse
        V, total = self._cov(given, groups.first), np.bincount(group, gamma)
        std = np.sqrt(np.maximum(np.diag(V), _TINY))
        rho = V / std / std[:, None]
        return float(total @ rho**3 @ total - gamma @ gamma) / 12.0

    def log_predictive(self, given: Given, site: Site) -> tuple[Array, Array]:
        """Return log p(yᵢ | y₋ᵢ, θ), and log E[p(yᵢ | ηᵢ) | y, θ], of a site's observations.

        They are integrals under cavities: log Ẑᵢ, and that of the squared density less log Ẑᵢ.
        Raises as :meth:`_cavity`.
        """
        left_out, _, cavity = self._scales(given, site)
        squared = site_moments(self._density(given, site), *cavity, power=2.0)
        return left_out, squared.log_Z - left_out

    def log_predictive_of_blocks(self, given: Given, site: Site, blocks: Sequence[Index]) -> Array:
        """Return log p(y_B | y₋B, θ) of blocks of a site's observations.

        It is the ratio of the evidences with and without the block: Σ log cᵢ and the integral of
        its sites under one cavity for all,

            hᵀm − ½ mᵀΛm + ½ log|I − ΛV| − ½ rᵀV(I − ΛV)⁻¹r,    r = h − Λm,

        with mean m and covariance V of the predictors. Raises as :meth:`_cavity`.
        """
        _, scales, _ = self._scales(given, site)
        rows, found = site.row_numbers[0], np.empty(len(blocks))
        for k, block in enumerate(blocks):
            mean, h, lam = (x[rows[block]] for x in (given.posterior.mean, given.h, given.lam))
            r, V = h - lam * mean, self._cov(given, rows[block])
            remaining = np.eye(len(block)) - lam[:, None] * V
            sign, log_det = np.linalg.slogdet(remaining)
            if sign <= 0.0:
                raise NotPositiveDefiniteError("a cavity is not proper")
            found[k] = scales[block].sum() + (h - 0.5 * lam * mean) @ mean
            found[k] += 0.5 * (log_det - r @ V @ np.linalg.solve(remaining, r))
        return found

    def _cov(self, given: Given, rows: Index) -> Array:
        groups = self.priors.groups
        chosen = np.zeros((rows.size, groups.size))
        chosen[np.arange(rows.size), rows if groups.inverse is None else groups.inverse[rows]] = 1.0
        slopes = [A.apply_transpose(chosen) for A in given.prior.maps]
        half = given.posterior.pull(given.posterior.innovations_transpose(slopes))
        return np.asarray(half @ half.T)

    def log_ratio(self, given: Given, eta: Array) -> Array:
        """Return Σ log p(yᵢ | ηᵢ) − log siteᵢ(ηᵢ) at draws of η, (S, N)."""
        found = np.zeros(len(eta))
        for site in self.model.sites:
            found += site.log_densities(given.point, eta).sum(axis=1)
        pull = self.priors.groups.coupling.product(given.lam, eta)
        return np.asarray(found - eta @ given.h + 0.5 * np.vecdot(pull, eta))

    def log_joint(self, rng: Generator, z: Array, pairs: int, *, common: bool = False) -> Array:
        """Return estimates of log p(y, θ), as a density of z, by 2·pairs draws of the latents.

        The mean of the exponential is exact; −∞ is returned where the prior has no factor. With
        ``common`` the draws at every θ are made of the same normal numbers.
        """
        found, nu = np.full(len(z), -np.inf), np.zeros((0, 0))
        for i, given in enumerate(self.along(z)):
            if given is None:
                continue
            posterior = given.posterior
            if not common or nu.shape[1] != posterior.size:
                nu = rng.standard_normal((pairs, posterior.size))
            x = posterior.apply(np.vstack([nu, -nu]))
            eta = given.prior.predictor(posterior.innovations(x))
            with np.errstate(all="ignore"):
                ratio = self.log_ratio(given, eta)
            ratio[np.isnan(ratio)] = -np.inf
            log_prior = float(self.model.log_prior(given.point))
            mean = float(logsumexp(ratio)) - np.log(2 * pairs)
            found[i] = log_prior + posterior.log_normalizer + mean
        return found if self.density is None else found + self.density.scaling.log_jacobian(z)
