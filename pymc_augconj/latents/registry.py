"""The kinds of prior that a block of latents may have; a new one is its file and a line here."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pymc_augconj.block import LatentBlock

from .base import BlockPrior
from .dense import DensePrior, FactorPrior
from .diagonal import DiagonalPrior, StandardPrior
from .kronecker import KroneckerPrior
from .markov import MarkovPrior
from .pivots import PivotPrior
from .precision import IntrinsicPrior, PrecisionPrior

_ALL = (
    *(DensePrior, DiagonalPrior, FactorPrior, PrecisionPrior, IntrinsicPrior, StandardPrior),
    *(MarkovPrior, PivotPrior, KroneckerPrior),
)
_KINDS: dict[str, type[BlockPrior]] = {kind.kind: kind for kind in _ALL}


def kind_of(block: LatentBlock) -> type[BlockPrior]:
    """Return the kind of prior that ``block`` names."""
    return _KINDS[block.kind]


def block_prior(block: LatentBlock, array: NDArray[np.float64], jitter: float = 0.0) -> BlockPrior:
    """Return the prior of ``block`` given the value of its ``scale``, with ``jitter`` included.

    Raises NotPositiveDefiniteError if ``array`` is no valid value.
    """
    return kind_of(block)(block, array, jitter)
