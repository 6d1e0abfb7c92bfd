"""Vectors of hyperparameters whose entries each scale one latent, and nothing else.

An example is the local scales λ of a horseshoe, as ``Normal(0, tau * lam)`` or ``z * tau * lam``:
the standard deviation, or the factor of the column, of coefficient j depends on λⱼ and on shared
parameters, and the priors of the entries are independent.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from pytensor.graph.basic import Variable

from pymc_augconj.block import LatentBlock
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap
from pymc_augconj.model import ColumnScales
from pymc_augconj.point import Key, Point, PointMap
from pymc_augconj.recognition.graph.affine import depends_on
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.graph.space import ValueSpace
from pymc_augconj.typing import Array

from .entries import find_owners, separate_entries


def find_columns(
    value: Variable,
    blocks: Sequence[LatentBlock],
    maps: Sequence[PointMap[LinearMap]],
    others: Collection[Key],
    prior_terms: Sequence[Variable],
    space: ValueSpace,
    points: Sequence[Point],
) -> ColumnScales | None:
    """Return the latents that the vector scales; None if it has another or no such effect.

    All graphs except the blocks' scales and maps depend on ``others``.
    """
    name: str = value.name
    pairs = list(zip(blocks, maps, strict=True))
    scaled = [i for i, (b, A) in enumerate(pairs) if name in (*b.scale.names, *A.names)]
    if name in others or len(scaled) != 1:
        return None
    block, read = pairs[scaled[0]]
    if not (block.is_independent or block.is_standard) or block.is_flat or block.transform:
        return None
    matrices = [A.matrix if type(A) is DenseMap else None for A in map(read, points)]
    if any(M is None or M is not matrices[0] for M in matrices):
        return None
    of_all = ColumnScales(scaled[0], np.arange(block.total_size), None, block.scale, read)  # type: ignore[arg-type]

    def scales(point: Point) -> list[Array]:
        std, factors = of_all(point)
        return [std * factors]

    owner = find_owners(name, scales, points)
    size = points[0][name].size
    if owner is None or not np.array_equal(np.sort(owner[owner >= 0]), np.arange(size)):
        return None
    own = [term for term in prior_terms if depends_on(term, value)]
    densities = separate_entries(name, PointFunction(own, space.model.inputs, space.mode), points)
    if densities is None:
        return None
    latents = np.empty(size, dtype=np.intp)
    latents[owner[owner >= 0]] = np.flatnonzero(owner >= 0)
    return ColumnScales(scaled[0], latents, densities, block.scale, read)
