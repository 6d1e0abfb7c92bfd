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
from scipy.linalg.lapack import dpotrs, dtrtrs

from ..gaussian.cholesky import cholesky_with_jitter

__all__ = ["draw_conditional"]

Array = NDArray[np.float64]


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
    old = np.array(parts["old"], order="F")
    old[np.diag_indices_from(old)] += jitter
    chol, _ = cholesky_with_jitter(old, name="the covariance at the old inputs", work=old.copy("F"))
    half, _ = dtrtrs(chol, parts["cross"].T, lower=1)
    weights, _ = dpotrs(chol, np.asfortranarray(parts["cross"].T), lower=1)
    mean = parts["mean_new"] + (f - parts["mean_old"]) @ weights
    noise = rng.standard_normal(mean.shape)
    if not joint:
        var = parts["new_diagonal"] - np.einsum("ij,ij->j", half, half)
        return mean + np.sqrt(np.maximum(var, 0.0)) * noise
    cov = parts["new"] - half.T @ half
    # New inputs that repeat old ones leave no variance: rounding may make it negative.
    scale = np.mean(np.diagonal(parts["new"]))
    cov[np.diag_indices_from(cov)] += 1e-10 * scale
    chol_new, _ = cholesky_with_jitter(cov, name="the covariance at the new inputs")
    return mean + noise @ chol_new.T
