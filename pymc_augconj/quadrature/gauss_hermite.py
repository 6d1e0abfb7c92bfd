"""Gauss–Hermite quadrature: expectations under a normal distribution, one for each site."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import ArrayLike, NDArray

__all__ = ["gauss_hermite_expectation", "gauss_hermite_rule"]

Array = NDArray[np.float64]

DEFAULT_ORDER = 32


@lru_cache(maxsize=16)
def gauss_hermite_rule(order: int) -> tuple[Array, Array]:
    """Return nodes zₖ and weights wₖ with E[g(z)] ≈ Σₖ wₖ g(zₖ) for z ~ N(0, 1).

    Exact for polynomials of degree up to 2·order − 1 (probabilists' convention; Σₖ wₖ = 1).

    Parameters
    ----------
    order : int
        Number of nodes.

    Returns
    -------
    nodes, weights : array, shape (order,)
        Read-only, since they are cached.
    """
    nodes, weights = hermegauss(order)
    weights = weights / weights.sum()
    nodes.setflags(write=False)
    weights.setflags(write=False)
    return nodes, weights


def gauss_hermite_expectation(
    func: Callable[[Array], Array],
    mean: ArrayLike,
    var: ArrayLike,
    order: int = DEFAULT_ORDER,
) -> Array:
    """Return E[func(x)], x ~ N(mean, var), elementwise over sites.

    Parameters
    ----------
    func : callable
        Maps an array of shape (order, *S) to one of shape (order, *S), elementwise. Nodes are on
        the first axis, so data of the sites' shape S broadcasts inside `func` as it is.
    mean, var : array_like, broadcast to shape S
        Means and variances, var ≥ 0.
    order : int
        Number of nodes.

    Returns
    -------
    array, shape S

    Raises
    ------
    ValueError
        If a variance is negative or NaN.

    References
    ----------
    Golub & Welsch (1969), Calculation of Gauss quadrature rules.
    """
    mean, var = np.broadcast_arrays(np.asarray(mean, float), np.asarray(var, float))
    if not np.all(var >= 0.0):
        raise ValueError(f"expected variances ≥ 0, got a smallest variance of {np.min(var)}")
    nodes, weights = gauss_hermite_rule(order)
    column = nodes.reshape(-1, *(1,) * mean.ndim)
    return np.tensordot(weights, func(mean + np.sqrt(var) * column), axes=1)
