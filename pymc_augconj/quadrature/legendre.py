"""The Gauss–Legendre rule of 16 nodes on [−1, 1], and the polynomial through its nodes.

With values gⱼ at the nodes xⱼ the interpolating polynomial is Σₖ cₖ Pₖ, with

    cₖ = (k + ½) Σⱼ wⱼ Pₖ(xⱼ) gⱼ.
"""

from __future__ import annotations

import numpy as np
from numpy.polynomial import legendre

__all__ = ["FROM_LEFT", "FROM_RIGHT", "NODES", "ORDER", "TO_COEFFICIENTS", "WEIGHTS"]

ORDER = 16
NODES, WEIGHTS = legendre.leggauss(ORDER)

#: Legendre coefficients from values at the nodes, (16, 16).
TO_COEFFICIENTS = np.ascontiguousarray(
    (np.arange(ORDER) + 0.5)[:, None] * legendre.legvander(NODES, ORDER - 1).T * WEIGHTS
)
#: What the value at node j adds to ∫₋₁ˣ and to ∫ₓ¹ of the polynomial at node k, as [j, k].
FROM_LEFT = np.ascontiguousarray(
    TO_COEFFICIENTS.T
    @ np.stack([legendre.legval(NODES, legendre.legint(c, lbnd=-1)) for c in np.eye(ORDER)])
)
FROM_RIGHT = WEIGHTS[:, None] - FROM_LEFT
