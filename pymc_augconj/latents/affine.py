"""The Gaussian posterior given sites as an affine map of standard normal numbers, v = T(ν).

v are the whitened latents, η′ = Φ v with v ~ N(0, I_D), and with M = I + ΦᵀΛΦ

    v | sites ~ N(M⁻¹Φᵀh, M⁻¹).

In weight space ν has D entries, and T is invertible:

    v = M⁻¹Φᵀh + L⁻ᵀ ν,        M = L Lᵀ,        ν = Lᵀ (v − M⁻¹Φᵀh).

In observation space ν = (ξ, ε) has D + R entries, R the number of merged rows, and M is never
formed: by Matheron's rule, with C = ΦΦᵀ + Λ⁻¹,

    v = ξ + ΦᵀC⁻¹(Λ⁻¹h − Φξ − Λ^−½ ε) = M⁻¹Φᵀh + G ν,        G = M⁻¹ [I, −ΦᵀΛ^½].

Every v has many ν there. As GGᵀ = M⁻¹ and Gᵀ M = [I; −Λ^½Φ], a draw from ν | v is

    ν = ν* + [I; −Λ^½Φ] (v − T(ν*)),        ν* ~ N(0, I),

which leaves N(ν; 0, I) the joint distribution of which v is a marginal.

References
----------
Murray & Adams (2010), Slice sampling covariance hyperparameters of latent Gaussian models.
Doucet (2010), A note on efficient conditional simulation of Gaussian distributions.
"""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dtrsv

from pymc_augconj.gaussian import observation_space
from pymc_augconj.gaussian.observation_space import ObservationSpaceFactor
from pymc_augconj.linalg.blas import lower_transpose_product

from .joint import LatentPrior

__all__ = ["AffinePosterior", "ByObservations", "ByWeights"]

Array = NDArray[np.float64]


class AffinePosterior(Protocol):
    """The posterior of the whitened latents v, all blocks in one vector of D entries.

    It is valid until the space that made it factorises another matrix.

    Attributes
    ----------
    size : int
        Length of ν.
    log_evidence : float
        log ∫ exp(hᵀη′ − ½ η′ᵀΛη′) p(η′) dη′.
    mean : ndarray, shape (D,)
        E[v].
    """

    size: int
    log_evidence: float
    mean: Array

    def apply(self, nu: Array) -> Array:
        """Return v = T(ν), a draw from the posterior where ν is one from N(0, I)."""
        ...

    def solve(self, rng: np.random.Generator, v: Array) -> Array:
        """Return ν with T(ν) = v; where there are many, a draw from N(0, I) given that."""
        ...


class ByWeights:
    """From the factor of M; ``half`` is L⁻¹Φᵀh."""

    def __init__(self, chol: Array, half: Array, log_det: float):
        self._chol, self._half = chol, half
        self.size = half.size
        self.log_evidence = 0.5 * float(half @ half - log_det)

    @cached_property
    def mean(self) -> Array:
        """E[v]."""
        return dtrsv(self._chol, self._half, lower=1, trans=1)

    def apply(self, nu: Array) -> Array:
        """See :class:`AffinePosterior`."""
        return dtrsv(self._chol, self._half + nu, lower=1, trans=1, overwrite_x=1)

    def solve(self, rng: np.random.Generator, v: Array) -> Array:
        """See :class:`AffinePosterior`."""
        return lower_transpose_product(self._chol, v) - self._half


class ByObservations:
    """From the factor of C."""

    def __init__(self, prior: LatentPrior, factor: ObservationSpaceFactor, h: Array):
        self._prior, self._factor, self._h = prior, factor, h
        self._n_latent = sum(b.block.total_size for b in prior.blocks)
        self.size = self._n_latent + h.size
        posterior = observation_space.condition(factor, np.zeros_like(h), h)
        self._alpha, self.log_evidence = posterior.alpha, posterior.log_normalizer

    @cached_property
    def mean(self) -> Array:
        """E[v]."""
        return self._prior.whitened_transpose(self._alpha)

    def apply(self, nu: Array) -> Array:
        """See :class:`AffinePosterior`."""
        xi, eps = nu[: self._n_latent], nu[self._n_latent :]
        eta0 = self._prior.whitened_product(xi)
        w = observation_space.matheron_weights(self._factor, self._h, eta0, eps)
        return xi + self._prior.whitened_transpose(w)

    def solve(self, rng: np.random.Generator, v: Array) -> Array:
        """See :class:`AffinePosterior`."""
        nu = rng.standard_normal(self.size)
        away = v - self.apply(nu)
        nu[: self._n_latent] += away
        nu[self._n_latent :] -= np.sqrt(self._factor.lam) * self._prior.whitened_product(away)
        return nu
