"""The Gaussian posterior given sites as an affine map of standard normal numbers, v = T(ν).

v are the whitened latents, η′ = Φ v with v ~ N(0, I_D), and with M = I + ΦᵀΛΦ

    v | sites ~ N(M⁻¹Φᵀh, M⁻¹).

In weight space ν has D entries, and T is invertible:

    v = M⁻¹Φᵀh + L⁻ᵀ ν,        M = L Lᵀ,        ν = Lᵀ (v − M⁻¹Φᵀh).

In observation space ν = (ξ, ε) has D + R entries, R the number of merged rows, and M is not
formed. By Matheron's rule, with C = ΦΦᵀ + Λ⁻¹,

    v = ξ + ΦᵀC⁻¹(Λ⁻¹h − Φξ − Λ^−½ ε) = M⁻¹Φᵀh + G ν,        G = M⁻¹ [I, −ΦᵀΛ^½].

Many ν give the same v. As GGᵀ = M⁻¹ and Gᵀ M = [I; −Λ^½Φ], a draw from ν | v is

    ν = ν* + [I; −Λ^½Φ] (v − T(ν*)),        ν* ~ N(0, I),

so that the joint distribution of ν and v is unchanged.

Where the prior is given by its precision, going from v to u and back takes a solve. So a space may
have coordinates x of its own, linear in v; moves on the latents change x.

References
----------
Murray & Adams (2010), Slice sampling covariance hyperparameters of latent Gaussian models.
Doucet (2010), A note on efficient conditional simulation of Gaussian distributions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.linalg.rounding import EPS, SMALL_ERROR
from pymc_augconj.typing import Array

from .joint import LatentPrior
from .rows import SiteSum

__all__ = [
    "AffinePosterior",
    "Conditioner",
    "DifferentiablePosterior",
    "FactorMemory",
    "WhitenedCoordinates",
    "add_constant",
]


class AffinePosterior(Protocol):
    """The posterior of the latents in the space's coordinates x, a vector of D entries.

    It is valid until its space factorises another matrix. Several x are the rows of an array.

    Attributes
    ----------
    size : int
        Length of ν.
    log_evidence : float
        log ∫ exp(hᵀη′ − ½ η′ᵀΛη′) p(η′) dη′; from :class:`FactorMemory` with the sites' constant.
    log_volume : float
        −½ log|M|, by which it exceeds the log joint density at the mean.
    error, factor_error : float
        Its estimated rounding error; and that of the factor and the mean, which draws depend on.
    """

    size: int
    log_evidence: float
    log_volume: float
    error: float
    factor_error: float

    @property
    def mean(self) -> Array:
        """E[x], shape (D,)."""
        ...

    def apply(self, nu: Array) -> Array:
        """Return x = T(ν), a draw from the posterior for ν ~ N(0, I).

        ``nu`` is (size,), or (count, size) for several.
        """
        ...

    def solve(self, rng: np.random.Generator, x: Array) -> Array:
        """Return ν with T(ν) = x: a draw from N(0, I) given T(ν) = x if there are many."""
        ...

    def coordinates(self, v: Array) -> Array:
        """Return x for the whitened latents v."""
        ...

    def whitened(self, x: Array) -> Array:
        """Return the whitened latents v."""
        ...

    def innovations(self, prior: LatentPrior, x: Array) -> list[Array]:
        """Return u of every block, given the prior of this posterior."""
        ...


class WhitenedCoordinates:
    """The coordinates of an :class:`AffinePosterior` whose x is v."""

    def coordinates(self, v: Array) -> Array:
        """See :class:`AffinePosterior`."""
        return v

    def whitened(self, x: Array) -> Array:
        """See :class:`AffinePosterior`."""
        return x

    def innovations(self, prior: LatentPrior, x: Array) -> list[Array]:
        """See :class:`AffinePosterior`."""
        return prior.innovations(x)


class DifferentiablePosterior(AffinePosterior, Protocol):
    """An affine posterior in the coordinates v that pulls gradients back through T."""

    def pull(self, slope: Array) -> Array:
        """Return the gradient by ν of a function of v = T(ν), given its gradient by v."""
        ...


class Conditioner(Protocol):
    """Contract between the Gibbs sampler and a space.

    It keeps its work array and its last factor. A subclass takes the order of its matrix and the
    coupling of the rows.
    """

    #: Whether posteriors are :class:`DifferentiablePosterior`.
    differentiable: bool = False

    def __init__(self, size: int, coupling: Coupling) -> None: ...

    def compile(self) -> None:
        """Compile before chains start, each in a process of its own."""
        return

    def posterior(self, prior: LatentPrior, sites: SiteSum) -> AffinePosterior:
        """Return the posterior of the latents; valid until another factorisation."""
        ...


class FactorMemory[T: AffinePosterior]:
    """The last posterior, with what it was made from: a step often asks for it again."""

    def __init__(self) -> None:
        self._prior: LatentPrior | None = None
        self._sites: SiteSum | None = None
        self._factor: T | None = None

    def get(self, prior: LatentPrior, sites: SiteSum, make: Callable[[], T]) -> T:
        """Return the posterior for ``prior`` and ``sites``, made anew where either is another."""
        known = self._prior is prior and self._sites is not None and sites.equals(self._sites)
        if not known or self._factor is None:
            # The work array is about to be overwritten.
            self._prior = None
            self._factor = make()
            add_constant(self._factor, prior, sites)
            self._prior, self._sites = prior, sites
        return self._factor


def add_constant(posterior: AffinePosterior, prior: LatentPrior, sites: SiteSum) -> None:
    """Add the sites' constant to the log evidence, which may cancel.

    Where data are many noise standard deviations from the prior mean, the constant is −½ Σλ(z − m)²
    and the evidence has ½ hᵀΦM⁻¹Φᵀh, as large. Their sum is the log joint density at the posterior
    mean v, which is computed at its predictors,

        log Z = Σ (h η − ½ λ η²) − ½ |v|² − ½ log|M|.

    An error of v changes it by the second order alone: by the product of the errors of the factor
    and of the evidence. With α = h − Λη, rounding of the predictors changes it by ε Σ |α| |η|, and
    rounding of a covariance K by ½ αᵀ ΔK α, |ΔKᵢⱼ| ≤ ε √(Kᵢᵢ Kⱼⱼ).
    """
    # That of the mean is half its square in standard deviations of the posterior.
    posterior.factor_error *= 1.0 + posterior.error
    constant, away = sites.constants
    n = sites.terms[0].lam.size
    square = posterior.log_evidence - posterior.log_volume
    posterior.log_evidence += constant
    posterior.error += EPS * math.sqrt(n) * away
    if posterior.error <= SMALL_ERROR or sites.about is None:
        return
    x = posterior.mean
    v = posterior.whitened(x)
    at = sites.about(prior.predictor(posterior.innovations(prior, x)))
    norm = 0.5 * float(v @ v)
    at_mean, magnitude = at.constants
    error = EPS * (math.sqrt(n) * magnitude + norm)
    error += 2.0 * EPS * math.sqrt(magnitude * (away + abs(square)))
    error += posterior.factor_error + n * EPS * posterior.error
    for b, A in zip(prior.blocks, prior.maps, strict=True):
        if b.diagonal_scale is None and not b.scale_error:
            slope = A.apply_transpose(at.h)
            error += 0.5 * EPS * math.sqrt(slope.size) * float(slope**2 @ b.var())
    if error < posterior.error:
        posterior.log_evidence = at_mean - norm + posterior.log_volume
        posterior.error = error
