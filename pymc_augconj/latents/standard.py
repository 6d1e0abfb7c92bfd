"""Independent standard normal latents whose design alone depends on θ: K = S = I."""

from __future__ import annotations

from pymc_augconj.linalg.linear_map import LinearMap
from pymc_augconj.typing import Array

from .diagonal import DiagonalPrior

__all__ = ["StandardPrior"]


class StandardPrior(DiagonalPrior):
    """As :class:`.DiagonalPrior` with ones; its whitened design is the design itself, no copy."""

    kind = "standard"

    def whitened_design(self, A: LinearMap) -> Array:
        return A.dense()
