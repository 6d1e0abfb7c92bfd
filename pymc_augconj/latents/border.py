"""Blocks of independent coefficients that are kept out of covariances of predictors.

They are the flat ones, and others as long as there are few columns, which cost as much in the
border of :mod:`~pymc_augconj.gaussian.observations` as in a covariance. A wide one would leave
no digits of the rest there.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_

import numpy as np

from pymc_augconj.linalg.linear_map import LinearMap
from pymc_augconj.typing import Array

from .base import BlockPrior

__all__ = ["Border"]

# Merged rows for each column of the border, at least.
_SHARE = 8


class Border:
    """The border's blocks, and its design at the last θ.

    Parameters
    ----------
    blocks : sequence of BlockPrior
    n_rows : int
        Number of merged rows.

    Attributes
    ----------
    blocks : tuple of int
        Their indices.
    mask : ndarray of bool, shape (D,)
        Whether each latent belongs to one of them.
    """

    def __init__(self, blocks: Sequence[BlockPrior], n_rows: int) -> None:
        sizes = [b.block.total_size for b in blocks]
        coefficients = [i for i, b in enumerate(blocks) if b.diagonal_scale is not None]
        chosen, total = [], 0
        for i in sorted(coefficients, key=lambda i: (not blocks[i].block.is_flat, sizes[i])):
            total += sizes[i]
            if blocks[i].block.is_flat or total * _SHARE <= n_rows:
                chosen.append(i)
        self.blocks = tuple(sorted(chosen))
        self.mask = np.repeat([i in chosen for i in range(len(blocks))], sizes)
        self._known: Sequence[object] = ()
        self._design = np.empty((n_rows, 0))

    def design(self, blocks: Sequence[BlockPrior], maps: Sequence[LinearMap]) -> Array:
        """Return Φ of its blocks, Fortran-ordered, given all blocks and maps at one θ."""
        used = [part[i] for i in self.blocks for part in (blocks, maps)]
        if len(used) != len(self._known) or not all(map(is_, used, self._known)):
            parts = [blocks[i].whitened_design(maps[i]) for i in self.blocks]
            self._known, self._design = used, np.asfortranarray(np.hstack(parts))
        return self._design
