"""Expectations under many normal distributions at once, to a stated accuracy.

The trapezoidal rule on a uniform grid of z = (η − m)/√v converges exponentially for an integrand
that is analytic around the real axis: its error is about exp(−2πa/Δ) for a nearest singularity at
distance a·√v and exp(−2π²/Δ²) for the normal density itself. Nodes are nested: the step is halved
until the result converges, one site at a time, so that only sites with a wide variance or a sharp
likelihood take many nodes.

For a few predictors, with a root V = L Lᵀ and η = m + L z, the rule applies to every coordinate of
z, on the nodes with |z| ≤ 10. With a first step of 0.8, two predictors take 489 nodes, then 1 941
and 7 825; four, the most, take 120 225.

References
----------
Trefethen & Weideman (2014), The exponentially convergent trapezoidal rule. SIAM Review 56.
Opper & Archambeau (2009), The variational Gaussian approximation revisited. Neural Computation 21.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations_with_replacement

import numpy as np

from pymc_augconj.typing import Array, Index

# Beyond ten standard deviations lies 1e-23 of the mass.
HALF_WIDTH = 10.0
FIRST_STEP = 0.8
_LARGEST_LEVEL = 9
# Below this variance, differences of values within one standard deviation are rounding.
_SMALLEST_VAR = 1e-12
_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)


def gaussian_expectation(
    func: Callable[[Array, Index], Array], mean: Array, var: Array, *, rtol: float = 1e-10
) -> tuple[Array, Array, Array]:
    """Return E[g(η)], η ~ N(mean, var), and its derivatives by mean and by var, all of shape (N,).

    The derivatives take no derivative of g: ∂E/∂m = E[z g]/√v (Bonnet) and ∂E/∂v = E[(z² − 1)
    g]/(2v) (Price). ``func(eta, which)`` is g of each site in the index array ``which``, with
    ``eta`` and the result of shape (len(which), nodes). ``rtol`` is relative to 1 + |E|; a site may
    miss it with 6 000 nodes, where g has a kink.
    """
    size = mean.size
    std = np.sqrt(np.maximum(var, _SMALLEST_VAR))
    everyone = np.arange(size)
    centre = func(mean[:, None], everyone)[:, 0]
    # Rows: Σ w, Σ z w, Σ (z² − 1) w times g(η) − g(m), which the subtraction keeps accurate.
    totals = np.zeros((3, size))
    moments = np.zeros((3, size))
    active, step = everyone, FIRST_STEP
    for level in range(_LARGEST_LEVEL):
        nodes = _new_nodes(step, level)
        totals[:, active] += _sums(func, nodes, mean, std, centre, active)
        updated = step * totals[:, active]
        change = np.abs(updated - moments[:, active]).max(axis=0)
        moments[:, active] = updated
        if level > 0:
            active = _unconverged(active, change, updated, centre, rtol)
        if active.size == 0:
            break
        step *= 0.5
    return centre + moments[0], moments[1] / std, 0.5 * moments[2] / std**2


def _unconverged(active: Index, change: Array, updated: Array, centre: Array, rtol: float) -> Index:
    """Return the sites whose moments have changed by more than the tolerance."""
    scale = 1.0 + np.abs(centre[active]) + np.abs(updated).max(axis=0)
    with np.errstate(invalid="ignore"):
        # NaN counts as converged, as halving the step does not change it.
        return active[change > rtol * scale]


def _new_nodes(step: float, level: int) -> Array:
    """Return the nodes of this level that no earlier level had."""
    if level == 0:
        return np.arange(-HALF_WIDTH, HALF_WIDTH + 0.5 * step, step)
    return np.arange(-HALF_WIDTH + step, HALF_WIDTH + step, 2.0 * step)


def _sums(
    func: Callable[[Array, Index], Array],
    nodes: Array,
    mean: Array,
    std: Array,
    centre: Array,
    active: Index,
) -> Array:
    weights = np.exp(-0.5 * nodes**2 - _HALF_LOG_2PI)
    eta = mean[active, None] + std[active, None] * nodes
    values = func(eta, active) - centre[active, None]
    basis = np.stack([weights, weights * nodes, weights * (nodes**2 - 1.0)], axis=1)
    return (values @ basis).T


#: The largest P: five predictors take 1.6 million nodes, chosen from a grid of ten million.
MOST_PREDICTORS = 4
# Halvings for one site; a site that has not converged by then (a kink) is not refined further.
_MOST_NODES = 1_000_000
# As in :mod:`.expectation`, relative to the largest variance if above 1.

# Values of the integrand at once: 16 MB.
_CHUNK = 2_000_000


def gaussian_cubature(
    func: Callable[[Array, Index], Array], mean: Array, cov: Array, *, rtol: float = 1e-10
) -> tuple[Array, Array, Array]:
    """Return E[g(η)], η ~ N(mean, cov) in R^P, and its derivatives by mean and by cov.

    The derivatives take no derivative of g: ∂E/∂m = L⁻ᵀ E[z g] (Bonnet) and
    ∂E/∂V = ½ L⁻ᵀ E[(z zᵀ − I) g] L⁻¹ (Price).

    Parameters
    ----------
    func : callable
        ``(eta, which) -> values``: g of each site in the index array ``which``, for ``eta`` of
        shape (P, len(which), nodes).
    mean : array, shape (P, N)
        P is at most :data:`MOST_PREDICTORS`.
    cov : array, shape (P, P, N)
        Symmetric, like its derivative. For ``d_cov`` a direction without variance gets the variance
        1e-12, which leaves four digits; no Gaussian without variance along it depends on that.
    rtol : float
        Accuracy, relative to 1 + |E|.
    """
    P, size = mean.shape
    if P == 1:
        known = gaussian_expectation(lambda x, i: func(x[None], i), mean[0], cov[0, 0], rtol=rtol)
        return known[0], known[1][None], known[2][None, None]
    values, vectors = np.linalg.eigh(np.moveaxis(cov, -1, 0))
    floor = _SMALLEST_VAR * np.maximum(values[:, -1:], 1.0)
    root = vectors * np.sqrt(np.maximum(values, floor))[:, None, :]
    entries = list(combinations_with_replacement(range(P), 2))
    everyone = np.arange(size)
    centre = func(mean[:, :, None], everyone)[:, 0]
    # Rows: Σ w, Σ z_p w, Σ (z_p z_q − δ_pq) w times g(η) − g(m), which the subtraction keeps
    # accurate.
    totals = np.zeros((1 + P + len(entries), size))
    moments = np.zeros_like(totals)
    active, step, level = everyone, FIRST_STEP, 0
    while active.size and (nodes := _nodes(P, step, new_only=level > 0)).shape[1] <= _MOST_NODES:
        weights = np.exp(-0.5 * np.sum(nodes**2, axis=0)) / (2.0 * np.pi) ** (0.5 * P)
        second = [nodes[p] * nodes[q] - (p == q) for p, q in entries]
        basis = weights * np.vstack([np.ones_like(weights), nodes, *second])
        length = max(_CHUNK // (P * weights.size), 1)
        for some in (active[i : i + length] for i in range(0, active.size, length)):
            eta = mean[:, some, None] + np.einsum("npq,qk->pnk", root[some], nodes)
            differences = func(eta, some) - centre[some, None]
            totals[:, some] += (differences @ basis.T).T
        updated = step**P * totals[:, active]
        change = np.abs(updated - moments[:, active]).max(axis=0)
        moments[:, active] = updated
        if level > 0:
            active = _unconverged(active, change, updated, centre, rtol)
        level, step = level + 1, 0.5 * step
    inverse = np.linalg.inv(root)
    d_mean = np.einsum("nqp,qn->pn", inverse, moments[1 : 1 + P])
    outer = np.empty((P, P, size))
    for (p, q), entry in zip(entries, moments[1 + P :], strict=True):
        outer[p, q] = outer[q, p] = entry
    d_cov = 0.5 * np.einsum("nrp,rsn,nsq->pqn", inverse, outer, inverse)
    return centre + moments[0], d_mean, d_cov


def _nodes(P: int, step: float, *, new_only: bool) -> Array:
    """Return the nodes, shape (P, K), that a grid adds to the grid of twice its step."""
    steps = round(HALF_WIDTH / step)
    index = np.arange(-steps, steps + 1)
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*[index] * P, indexing="ij")])
    keep = np.sum(grid**2, axis=0) * step**2 <= HALF_WIDTH**2
    if new_only:
        keep &= (grid % 2 != 0).any(axis=0)
    return np.asarray(step * grid[:, keep], dtype=np.float64)
