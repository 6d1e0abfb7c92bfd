"""A Gaussian process at new inputs, given draws of its values at the old ones.

    f* | f ~ N( m* + K*ₓ K⁻¹ (f − m),  K** − K*ₓ K⁻¹ Kₓ* ),

as ``gp.conditional`` has it, for all draws that share a kernel at once: one factorisation and two
matrix products, however many draws there are.

References
----------
Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, section 2.2.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dtrtrs

from ..gaussian.cholesky import cholesky_with_jitter

__all__ = ["draw_conditional"]

Array = NDArray[np.float64]

# Relative to the new inputs' variance.
_ROUNDING = 1e-10


def draw_conditional(
    rng: np.random.Generator,
    f: Array,
    parts: Mapping[str, Array],
    *,
    jitter: float,
    joint: bool,
) -> Array:
    """Return a draw of f* for every draw of f.

    Parameters
    ----------
    rng : numpy.random.Generator
    f : ndarray, shape (S, n)
    parts : mapping
        ``"mean_old"`` (n,), ``"mean_new"`` (P,), ``"old"`` (n, n), ``"cross"`` (P, n), and
        ``"new"`` (P, P) if ``joint``, else ``"new_diagonal"`` (P,).
    jitter : float
        Added to the diagonal of the old inputs' covariance, as ``gp.prior`` does.
    joint : bool
        Whether a draw's entries are correlated as the process is; else each has its own law only.

    Returns
    -------
    ndarray, shape (S, P)
    """
    n_old, n_new = f.shape[1], len(parts["mean_new"])
    chol, half = _factorize(parts, n_old, n_new, jitter, joint)
    deviation = f - parts["mean_old"]
    if len(f) > n_new:
        weights, _ = dtrtrs(chol[:n_old, :n_old], half, lower=1, trans=1)
        mean = parts["mean_new"] + deviation @ weights
    else:
        whitened, _ = dtrtrs(chol[:n_old, :n_old], deviation.T, lower=1)
        mean = parts["mean_new"] + whitened.T @ half
    noise = rng.standard_normal(mean.shape)
    if joint:
        return mean + noise @ chol[n_old:, n_old:].T
    var = parts["new_diagonal"] - np.einsum("ij,ij->j", half, half)
    return mean + np.sqrt(np.maximum(var, 0.0)) * noise


def _factorize(
    parts: Mapping[str, Array], n_old: int, n_new: int, jitter: float, joint: bool
) -> tuple[Array, Array]:
    """Return the Cholesky factor, and L⁻¹ Kₓ* of shape (n, P) for the old inputs' factor L.

    The factor of all inputs together holds all there is to say: its lower left block is K*ₓ L⁻ᵀ,
    its lower right one the factor of the conditional covariance.
    """
    name = "the covariance at the old and new inputs"
    size = n_old + n_new if joint else n_old
    K = np.empty((size, size), order="F")
    K[:n_old, :n_old] = parts["old"].T
    diagonal = np.full(size, jitter)
    if joint:
        K[n_old:, :n_old] = parts["cross"]
        K[:n_old, n_old:] = 0.0
        K[n_old:, n_old:] = parts["new"].T
        # New inputs that repeat old ones leave no variance but rounding.
        diagonal[n_old:] = _ROUNDING * np.mean(np.diagonal(parts["new"]))
    K[np.diag_indices_from(K)] += diagonal
    chol, _ = cholesky_with_jitter(K, name=name)
    if joint:
        return chol, chol[n_old:, :n_old].T
    half, _ = dtrtrs(chol, np.asfortranarray(parts["cross"].T), lower=1)
    return chol, half
