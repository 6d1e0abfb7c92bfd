"""The density of PG(h, c) for shapes h that are counts; PG(0, c) is an atom at ω = 0.

An observation with h = 0 has no factor, and its site is (0, 0).
"""

from __future__ import annotations

import numpy as np

from .distribution import logpdf_polya_gamma

__all__ = ["log_polya_gamma"]


def log_polya_gamma(omega: np.ndarray, h: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return log PG(ω | h, c), with respect to Lebesgue measure plus the atom at ω = 0.

    Parameters
    ----------
    omega, h, c : array_like
        Broadcast against each other; h ≥ 0.
    """
    omega, h, c = np.broadcast_arrays(omega, h, c)
    atom = h == 0
    density = logpdf_polya_gamma(omega, np.where(atom, 1.0, h), c)
    return np.where(atom, np.where(omega == 0, 0.0, -np.inf), density)
