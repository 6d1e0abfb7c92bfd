"""Quadrature over an auxiliary variable, so that the contract is tested without Monte Carlo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

LOG_NODES = np.arange(-26.0, 9.0, 0.08)  # log ω: an exponential range at a fixed relative step
LARGEST_THINNED_COUNT = 45  # of Poisson(9): the rest weighs 1e-17


@dataclass(frozen=True)
class Nodes:
    """Nodes ω and their log measure: ∫ g(ω) dω = Σ g(ω_k) exp(log_measure_k)."""

    omega: Any
    log_measure: np.ndarray

    @property
    def scalar(self) -> np.ndarray:
        """The continuous part of ω."""
        return self.omega[1] if isinstance(self.omega, tuple) else self.omega


def _no_nodes(y: float) -> Nodes:
    return Nodes(None, np.zeros(1))


def _positive_nodes(y: float) -> Nodes:
    log_step = np.log(LOG_NODES[1] - LOG_NODES[0])
    return Nodes(np.exp(LOG_NODES), LOG_NODES + log_step)


def _real_nodes(y: float) -> Nodes:
    positive = _positive_nodes(y)
    return Nodes(
        np.concatenate([-positive.omega[::-1], positive.omega]),
        np.concatenate([positive.log_measure[::-1], positive.log_measure]),
    )


def _counted_nodes(y: float) -> Nodes:
    # Pairs (n, ω); no Pólya–Gamma density that is met here reaches far beyond exp(−6) and exp(5).
    keep = (LOG_NODES > -6.0) & (LOG_NODES < 5.0)
    count = np.arange(LARGEST_THINNED_COUNT + 1.0)
    with_density = count[y + count > 0]
    log_omega = np.tile(LOG_NODES[keep], with_density.size)
    n = np.repeat(with_density, keep.sum())
    omega, log_measure = np.exp(log_omega), log_omega + np.log(LOG_NODES[1] - LOG_NODES[0])
    if y == 0:  # PG(0, ·): an atom of ω = 0 with n = 0
        n, omega, log_measure = (np.append(part, 0.0) for part in (n, omega, log_measure))
    return Nodes((n, omega), log_measure)


_KINDS = {
    "none": _no_nodes,
    "positive": _positive_nodes,
    "real": _real_nodes,
    "count and positive": _counted_nodes,
}


@pytest.fixture
def nodes() -> Callable[[str, float], Nodes]:
    """The quadrature nodes of a kind of auxiliary variable, at an observation y."""
    return lambda kind, y: _KINDS[kind](y)


@pytest.fixture
def distance() -> Callable[[np.ndarray, np.ndarray, np.ndarray], float]:
    """√N times the Kolmogorov–Smirnov distance of draws from masses on nodes.

    The two distribution functions are compared between neighbouring nodes, where the midpoint
    rule gives the one of the masses; atoms may be among the nodes.
    """

    def distance_of(draws: np.ndarray, points: np.ndarray, masses: np.ndarray) -> float:
        points, which = np.unique(points, return_inverse=True)
        cdf = np.cumsum(np.bincount(which, weights=masses))[:-1]
        product = points[1:] * points[:-1]
        edges = np.sign(points[1:]) * np.sqrt(np.maximum(product, 0.0))
        empirical = np.searchsorted(np.sort(draws), edges, side="right") / draws.size
        return float(np.sqrt(draws.size) * np.max(np.abs(empirical - cdf)))

    return distance_of
