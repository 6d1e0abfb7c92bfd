"""Fixed nodes: Gauss–Legendre on [−1, 1], and sums over independent standard normal numbers.

With values gⱼ at the Legendre nodes xⱼ the interpolating polynomial is Σₖ cₖ Pₖ, with

    cₖ = (k + ½) Σⱼ wⱼ Pₖ(xⱼ) gⱼ.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.polynomial import legendre
from numpy.polynomial.hermite_e import hermegauss

from pymc_augconj.typing import Array

from .quasi_monte_carlo import fixed_points

__all__ = [
    "FROM_LEFT",
    "FROM_RIGHT",
    "NODES",
    "N_NODES",
    "ORDER",
    "TO_COEFFICIENTS",
    "WEIGHTS",
    "normal_nodes",
]

#: The Gauss–Legendre rule of 16 nodes.
ORDER = 16
NODES, WEIGHTS = legendre.leggauss(ORDER)
#: Legendre coefficients from values at the nodes, (16, 16).
TO_COEFFICIENTS = np.ascontiguousarray(
    (np.arange(ORDER) + 0.5)[:, None] * legendre.legvander(NODES, ORDER - 1).T * WEIGHTS
)
#: Weight of the value at node j in ∫₋₁ˣ and in ∫ₓ¹ of the polynomial, x the node k, as [j, k].
FROM_LEFT = np.ascontiguousarray(
    TO_COEFFICIENTS.T
    @ np.stack([legendre.legval(NODES, legendre.legint(c, lbnd=-1)) for c in np.eye(ORDER)])
)
FROM_RIGHT = WEIGHTS[:, None] - FROM_LEFT

#: Error for log(1 + e^η): 1e-14 at a standard deviation of 1, and 3e-8 at 2.
N_NODES = 32

# Nodes an axis by the dimension; higher dimensions use no product rule. With 8 the error of the log
# of a sum of three exponentials, whose standard deviations are 1, is 1e-5.
_BY_DIMENSION = {1: N_NODES, 2: N_NODES, 3: 8}


@cache
def normal_nodes(
    dimension: int, refinement: int = 1, *, n_nodes: int | None = None
) -> tuple[Array, Array]:
    """Return nodes and weights with E g(z) ≈ Σ_q w_q g(z_q), z ~ N(0, I).

    They are a product of Gauss–Hermite nodes, ``n_nodes`` an axis: by default 32, and 8 in three
    dimensions. Higher dimensions use the points of :mod:`.quasi_monte_carlo`. A ``refinement`` of k
    takes k times as many nodes an axis, or adds k − 1 rotations of the points.

    Returns
    -------
    nodes : ndarray, shape (dimension, n)
    weights : ndarray, shape (n,)
    """
    n_nodes = n_nodes or _BY_DIMENSION.get(dimension)
    if n_nodes is None:
        rng, points = np.random.default_rng(0), [fixed_points(dimension)]
        for _ in range(refinement - 1):
            rotation, _ = np.linalg.qr(rng.standard_normal((dimension, dimension)))
            points.append(rotation @ points[0])
        rotated = np.hstack(points)
        return rotated, np.full(rotated.shape[1], 1.0 / rotated.shape[1])
    nodes, weights = hermegauss(refinement * n_nodes)
    weights = weights / weights.sum()
    each = np.meshgrid(*[np.arange(nodes.size)] * dimension, indexing="ij")
    chosen = np.stack([axis.ravel() for axis in each])
    return nodes[chosen], weights[chosen].prod(axis=0)
