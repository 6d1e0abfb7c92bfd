"""Gauss–Hermite quadrature: a fixed sum in place of an expectation."""

from __future__ import annotations

from numpy.polynomial.hermite_e import hermegauss

from pymc_augconj.typing import Array

__all__ = ["N_NODES", "hermite"]

#: Of log(1 + e^η), the error is 1e-14 with a standard deviation of 1, and 3e-8 with one of 2.
N_NODES = 32


def hermite(n_nodes: int = N_NODES) -> tuple[Array, Array]:
    """Return nodes and weights with E g(z) ≈ Σ w g(z), z ~ N(0, 1)."""
    nodes, weights = hermegauss(n_nodes)
    return nodes, weights / weights.sum()
