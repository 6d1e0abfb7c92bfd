"""Joint draws of latents by conjugate gradients, where a factor of their precision is too large.

With sites (h, λ) of the rows and M = I + ΦᵀΛΦ, for standard normal ε and ε′ of as many numbers as
rows and latents,

    v = M⁻¹ (Φᵀ(h + Λ^½ ε) + ε′)  ~  N(M⁻¹Φᵀh, M⁻¹),

as the right-hand side has the covariance M. Products with M take time linear in the rows. No
eigenvalue of M is below one: the error of v is at most as long as the residual.

References
----------
Papandreou & Yuille (2010), Gaussian sampling by local perturbations. NeurIPS.
Pandolfi, Papaspiliopoulos & Zanella (2024), Conjugate gradient methods for high-dimensional GLMMs.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array, hstack

from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.linalg.linear_map import RowSelection
from pymc_augconj.typing import Array, Generator

# Length of the residual relative to the draw's, and the iterations after which it is not waited
# for.
TOLERANCE, MOST_ITERATIONS = 1e-8, 2000
# Columns of a design that is no selection.
_FEW_COLUMNS = 32


def design(prior: LatentPrior) -> csr_array | None:
    """Return Φ of the merged rows; None where more than a few columns are dense."""
    parts = []
    for A, block in zip(prior.maps, prior.blocks, strict=True):
        if isinstance(A, RowSelection) and block.diagonal_scale is not None:
            values = A.entries * block.diagonal_scale[A.index]
            parts.append(
                csr_array((values, A.index, np.arange(A.index.size + 1)), (A.index.size, A.size))
            )
        elif A.size > _FEW_COLUMNS:
            return None
        else:
            parts.append(csr_array(block.whitened_design(A)))
    return hstack(parts, format="csr")


def draw_iteratively(rng: Generator, Phi: csr_array, h: Array, lam: Array) -> tuple[Array, int]:
    """Return the whitened latents given sites of the merged rows, and the iterations."""
    right = Phi.T @ (h + np.sqrt(lam) * rng.standard_normal(h.size))
    return solve(Phi, lam, right + rng.standard_normal(right.size))


def solve(Phi: csr_array, lam: Array, right: Array) -> tuple[Array, int]:
    """Return M⁻¹ times a vector, and the iterations, preconditioned by the diagonal of M."""
    diagonal = 1.0 + Phi.power(2).T @ lam
    v, residual = np.zeros_like(right), right.copy()
    direction, product = np.zeros_like(right), 1.0
    for iterations in range(MOST_ITERATIONS):
        if np.linalg.norm(residual) <= TOLERANCE * np.linalg.norm(v):
            return v, iterations
        z = residual / diagonal
        before, product = product, float(residual @ z)
        direction = z + (product / before) * direction
        moved = direction + Phi.T @ (lam * (Phi @ direction))
        step = product / float(direction @ moved)
        v += step * direction
        residual -= step * moved
    return v, MOST_ITERATIONS
