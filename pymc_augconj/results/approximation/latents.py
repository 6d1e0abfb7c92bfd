"""The Gaussian latents of a fit, to be conditioned on its sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pymc_augconj.errors import AugmentationError
from pymc_augconj.latents.base import BlockPrior
from pymc_augconj.latents.choice import condition
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.latents.posterior import Posterior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.typing import Array

from .layout import AffineMean

__all__ = ["FittedLatents"]


@dataclass(frozen=True)
class FittedLatents:
    """The latents' prior at the θ of a fit.

    Attributes
    ----------
    prior : LatentPrior
    groups : RowGroups
    space : str
        The cheapest solver, see :mod:`pymc_augconj.latents.choice`.
    means : sequence of AffineMean
        Prior mean of each latent, as a function of other latents.
    """

    prior: LatentPrior
    groups: RowGroups
    space: str
    means: Sequence[AffineMean]

    @property
    def blocks(self) -> tuple[BlockPrior, ...]:
        """The prior of each latent's innovation."""
        return self.prior.blocks

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the latents in the user's model."""
        return tuple(b.block.name for b in self.blocks)

    def index(self, name: str) -> int:
        """Return the index of a latent; raises AugmentationError if there is none."""
        if name not in self.names:
            raise AugmentationError(
                f"expected the name of a Gaussian latent, got {name!r}; use one of "
                f"{list(self.names)}"
            )
        return self.names.index(name)

    def size(self, index: int) -> int:
        """Return the number of entries of a latent."""
        return self.blocks[index].block.total_size

    def condition(self, h: Array, lam: Array, *, factorized: bool = False) -> Posterior:
        """Return the posterior given sites; ``factorized`` adds the jitter that draws need."""
        prior = self.prior.factorized() if factorized else self.prior
        return condition(prior, self.groups, h, lam, solver=self.space)

    def values(self, innovations: Sequence[Array]) -> list[Array]:
        """Return the latents for innovations of shape (…, size)."""
        known: dict[str, Array] = {}
        waiting = dict(zip(self.names, zip(innovations, self.means, strict=True), strict=True))
        while waiting:
            # A mean needs the values of the latents on which it depends.
            name = next(n for n, (_, mean) in waiting.items() if set(mean.matrices) <= set(known))
            innovation, mean = waiting.pop(name)
            value = innovation + mean.constant
            for other, matrix in mean.matrices.items():
                value = value + known[other] @ matrix.T
            known[name] = value
        return [known[name] for name in self.names]

    def coefficients(self, index: int) -> dict[int, Array | None]:
        """Return the coefficient of each innovation in a latent's value; None is the identity."""
        maps: dict[int, Array | None] = {index: None}
        for other, matrix in self.means[index].matrices.items():
            for i, inner in self.coefficients(self.index(other)).items():
                found = matrix if inner is None else matrix @ inner
                known = maps.get(i)
                maps[i] = found if known is None else known + found
        return maps

    def mean_in_innovations(self, name: str) -> tuple[Array, dict[int, Array]]:
        """Return a latent's prior mean as constant + Σ matrix @ innovation of another latent."""
        index = self.index(name)
        zeros = [np.zeros(self.size(i)) for i in range(len(self.blocks))]
        maps = self.coefficients(index)
        del maps[index]
        return self.values(zeros)[index], {
            i: np.eye(self.size(i)) if matrix is None else matrix for i, matrix in maps.items()
        }
