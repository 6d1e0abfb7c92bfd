"""Conditioning the latents on their sites, in observation space or in weight space.

Both forms give the same numbers; the cheaper one is chosen by counting multiplications.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..gaussian import observation_space, weight_space
from ..model import LatentGaussianModel
from .latent_prior import LatentPrior, RowGroups

__all__ = ["Conditioner", "ObservationSpace", "WeightSpace", "choose_space"]

Array = NDArray[np.float64]


class Conditioner(Protocol):
    """What the Gibbs step asks of either space; sites are those of the merged rows."""

    def log_evidence(self, prior: LatentPrior, h: Array, lam: Array) -> float:
        """Return log ∫ exp(hᵀη′ − ½ η′ᵀΛη′) p(η′) dη′."""
        ...

    def draw(
        self, rng: np.random.Generator, prior: LatentPrior, h: Array, lam: Array
    ) -> tuple[list[Array], float]:
        """Return one exact joint draw of the whitened blocks v_b, and the log evidence."""
        ...


class _Memory:
    """The last factor, with what it was made from: a step often asks for it again."""

    def __init__(self):
        self._prior: LatentPrior | None = None
        self._lam: Array | None = None
        self._factor = None

    def get(self, prior: LatentPrior, lam: Array):
        if self._prior is prior and self._lam is not None and np.array_equal(self._lam, lam):
            return self._factor
        # The work array is about to be overwritten.
        self._prior = None
        return None

    def put(self, prior: LatentPrior, lam: Array, factor) -> None:
        self._prior, self._lam, self._factor = prior, lam, factor


class ObservationSpace:
    """One R × R factorisation, R the number of distinct predictors."""

    name = "observation space"

    def __init__(self, size: int):
        self._work = np.empty((size, size), order="F")
        self._memory = _Memory()

    def _factorize(self, prior: LatentPrior, lam: Array):
        factor = self._memory.get(prior, lam)
        if factor is None:
            factor = observation_space.factorize(prior.predictor_cov, lam, work=self._work)
            self._memory.put(prior, lam, factor)
        return factor

    def log_evidence(self, prior: LatentPrior, h: Array, lam: Array) -> float:
        """See :class:`Conditioner`."""
        factor = self._factorize(prior, lam)
        return observation_space.condition(factor, np.zeros_like(h), h).log_normalizer

    def draw(self, rng, prior, h, lam):
        """See :class:`Conditioner`."""
        factor = self._factorize(prior, lam)
        xi = [rng.standard_normal(b.block.total_size) for b in prior.blocks]
        eta0 = np.zeros_like(h)
        for A, b, x in zip(prior.maps, prior.blocks, xi, strict=True):
            eta0 += A.apply(b.scale(x))
        w = observation_space.matheron_weights(factor, h, eta0, rng.standard_normal(h.size))
        whitened = [
            x + b.scale_transpose(A.apply_transpose(w))
            for A, b, x in zip(prior.maps, prior.blocks, xi, strict=True)
        ]
        log_evidence = observation_space.condition(factor, np.zeros_like(h), h).log_normalizer
        return whitened, log_evidence


class WeightSpace:
    """One D × D factorisation, D the total number of latent values."""

    name = "weight space"

    def __init__(self, size: int):
        self._work = np.empty((size, size), order="F")
        self._memory = _Memory()

    def _factorize(self, prior: LatentPrior, lam: Array):
        factor = self._memory.get(prior, lam)
        if factor is None:
            factor = weight_space.factorize(prior.whitened_design, lam, work=self._work)
            self._memory.put(prior, lam, factor)
        return factor

    def log_evidence(self, prior: LatentPrior, h: Array, lam: Array) -> float:
        """See :class:`Conditioner`."""
        factor = self._factorize(prior, lam)
        return weight_space.condition(factor, np.zeros_like(h), h).log_normalizer

    def draw(self, rng, prior, h, lam):
        """See :class:`Conditioner`."""
        factor = self._factorize(prior, lam)
        xi = rng.standard_normal(factor.Phi.shape[1])
        v = weight_space.draw_latent(factor, np.zeros_like(h), h, xi)
        sizes = np.cumsum([b.block.total_size for b in prior.blocks])[:-1]
        log_evidence = weight_space.condition(factor, np.zeros_like(h), h).log_normalizer
        return np.split(v, sizes), log_evidence


def choose_space(model: LatentGaussianModel, groups: RowGroups) -> ObservationSpace | WeightSpace:
    """Return the cheaper of the two spaces for ``model``."""
    R, D = float(groups.size), float(model.latent_size)
    dense = sum(float(b.size) ** 3 for b in model.blocks if not b.diagonal)
    # Forming Φ with a dense block costs R·size² more; forming C with one that is not a selection
    # likewise, which happens in either space.
    forming = sum(R * float(b.size) ** 2 * b.copies for b in model.blocks if not b.diagonal)
    observation = R**3 / 3.0
    weight = R * D**2 + D**3 / 3.0 + forming + dense / 3.0
    return WeightSpace(int(D)) if weight < observation else ObservationSpace(int(R))
