"""What expectation propagation works on: a Gaussian prior, and sites with tilted moments.

The two contracts are small. A *prior* conditions itself on sites and gives marginal moments; a
*site group* gives tilted moments from cavities. :class:`CovariancePrior` is the plain one, N(m, C);
:class:`ModelPrior` that of a recognised model, in whichever space is cheaper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pymc_augconj.gaussian.signed_space import SignedPosterior
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.latents.posterior import SitePosterior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.latents.space import condition
from pymc_augconj.likelihoods.density import site_moments
from pymc_augconj.quadrature.density import SiteDensity
from pymc_augconj.quadrature.tilted import Tilted
from pymc_augconj.typing import Array

__all__ = [
    "ConditionedPrior",
    "CovariancePrior",
    "GaussianPrior",
    "ModelPrior",
    "SiteGroup",
    "all_moments",
]


class ConditionedPrior(Protocol):
    """The Gaussian posterior given sites, of N predictors."""

    @property
    def mean(self) -> Array:
        """Marginal means."""
        ...

    @property
    def var(self) -> Array:
        """Marginal variances."""
        ...

    @property
    def log_normalizer(self) -> float:
        """Log ∫ of prior and sites."""
        ...


class GaussianPrior(Protocol):
    """A Gaussian prior of N predictors."""

    @property
    def size(self) -> int:
        """N."""
        ...

    def condition(self, h: Array, lam: Array) -> ConditionedPrior:
        """Return the posterior given sites of either sign; NotPositiveDefiniteError if none."""
        ...

    def cov(self, posterior: Any) -> Array:
        """Return the posterior covariance, (N, N)."""
        ...


class CovariancePosterior:
    """N(m, C) given sites.

    Attributes
    ----------
    mean, var : ndarray, shape (N,)
    alpha : ndarray, shape (N,)
        C⁻¹(μ − m) = h − Λμ, the derivative of the log normaliser by m.
    log_normalizer : float
        log ∫ exp(hᵀf − ½ fᵀΛf) N(f | m, C) df.
    """

    def __init__(self, prior: CovariancePrior, h: Array, lam: Array) -> None:
        self._prior, self._lam, self._shifted = prior, lam, h - lam * prior.m
        signed = self._factorized(prior.lend(self))
        self.alpha = signed.alpha
        self.mean = prior.m + signed.mean
        self.var = signed.var(work=prior.scratch)
        constant = 0.5 * float(prior.m @ (h + self._shifted))
        self.log_normalizer = signed.log_normalizer + constant
        self._signed = signed

    def _factorized(self, work: Array | None) -> SignedPosterior:
        return SignedPosterior(self._prior.C, self._shifted, self._lam, work=work)

    @property
    def signed(self) -> SignedPosterior:
        """The factorisation, made anew where its array has been given to another posterior."""
        if not self._prior.still_lent(self):
            self._signed = self._factorized(None)
        return self._signed

    def gradient_wrt_cov(self) -> Array:
        """Return G = ½ (α αᵀ − R), the derivative of the log normaliser by C, (N, N)."""
        return 0.5 * (np.multiply.outer(self.alpha, self.alpha) - self.signed.response())

    def cov(self) -> Array:
        """Return C − C R C, (N, N)."""
        return self._prior.C - self.signed.explained(self._prior.C)


class CovariancePrior:
    """f ~ N(m, C).

    Parameters
    ----------
    C : ndarray, shape (N, N)
        Symmetric, perhaps singular.
    m : ndarray, shape (N,)
    """

    def __init__(self, C: Array, m: Array) -> None:
        self.C, self.m = np.asfortranarray(C, dtype=float), np.asarray(m, dtype=float)
        # Two, so that the last posterior keeps its own during an attempt at the next.
        self._arrays = [np.empty(C.shape, order="F") for _ in range(2)]
        self._borrowers: list[CovariancePosterior | None] = [None, None]
        self.scratch = np.empty(C.shape, order="F")

    def lend(self, posterior: CovariancePosterior) -> Array:
        """Return the array that was lent the longer ago."""
        self._arrays.reverse()
        self._borrowers = [posterior, self._borrowers[0]]
        return self._arrays[0]

    def still_lent(self, posterior: CovariancePosterior) -> bool:
        """Return whether no other posterior has been given this one's array."""
        return any(borrower is posterior for borrower in self._borrowers)

    @property
    def size(self) -> int:
        """N."""
        return self.m.size

    def condition(self, h: Array, lam: Array) -> CovariancePosterior:
        """See :class:`GaussianPrior`."""
        return CovariancePosterior(self, h, lam)

    def cov(self, posterior: CovariancePosterior) -> Array:
        """See :class:`GaussianPrior`."""
        return posterior.cov()


class ModelPrior:
    """The predictors of a recognised model at one θ."""

    def __init__(self, prior: LatentPrior, groups: RowGroups, *, space: str) -> None:
        self.prior, self.groups, self.space = prior, groups, space

    @property
    def size(self) -> int:
        """Number of predictors, before equal ones are merged."""
        return self.prior.offset.size

    def condition(self, h: Array, lam: Array) -> SitePosterior:
        """See :class:`GaussianPrior`."""
        return condition(self.prior, self.groups, h, lam, space=self.space)

    def cov(self, posterior: SitePosterior) -> Array:
        """See :class:`GaussianPrior`."""
        C = self.prior.predictor_cov
        cov = C - posterior.explained(C)
        inverse = self.groups.inverse
        return cov if inverse is None else cov[np.ix_(inverse, inverse)]


@dataclass(frozen=True)
class SiteGroup:
    """One observed variable: the rows of the stacked predictors it reads, and its density."""

    rows: slice
    density: SiteDensity


def all_moments(
    groups: Sequence[SiteGroup], cavity_mean: Array, cavity_var: Array, **asked: Any
) -> Tilted:
    """Return the tilted moments of all predictors; ``asked`` as for ``site_moments``.

    The panels of several groups are not joined.
    """
    parts = [
        site_moments(group.density, cavity_mean[group.rows], cavity_var[group.rows], **asked)
        for group in groups
    ]
    if len(groups) == 1 and parts[0].mean.size == cavity_mean.size:
        return parts[0]
    fields: dict[str, Any] = {}
    for name in ("log_Z", "mean", "var", "third", "fourth", "delta", "error"):
        values = [getattr(part, name) for part in parts]
        if all(value is None for value in values):
            continue
        fields[name] = np.zeros(cavity_mean.shape)
        for group, value in zip(groups, values, strict=True):
            fields[name][group.rows] = 0.0 if value is None else value
    return Tilted(**fields)
