"""log p(θ) + log Z(θ) in the unconstrained scale, with the sites at each θ that was tried.

p(θ) includes the Jacobian of the transforms, as in the Gibbs sampler, and Z is the evidence of the
site approximation. The Hessian at the mode is by central differences of exact gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.interpolate import RBFInterpolator

from pymc_augconj.engines.hyperparameters import Search
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.typing import Array, Index

from .density import REFERENCE, Scaling

_FAILURES = (NotPositiveDefiniteError, FloatingPointError)

# Step of the differences, in standard deviations of a first guess or of the unconstrained scale.
_STEP = 0.05
# Largest standard deviation along an axis that the Hessian may give: widths follow the density.
_LARGEST_STD = 5.0
# How often widths are tried.
_MOST_TRIES = 8
# Tolerances of the sites: log Z has an error of second order in it, its gradient of first order.
_TOL, _TOL_OF_GRADIENT = 1e-3, 1e-6
# Functions of θ are computed at so many points for each coefficient of a quadratic, checked at so
# many, and interpolated at the others if the largest error there is below so many nats.
_PER_COEFFICIENT, _CHECKED, _INTERPOLATED = 3, 8, 0.02


@dataclass(frozen=True)
class Node:
    """The approximation at one θ.

    Attributes
    ----------
    x : ndarray, shape (p,)
        θ, flat, on the unconstrained scale.
    log_density : float
        log p(θ) + log Z(θ); −∞ where there is no approximation.
    h, lam : ndarray
        Sites of all predictors, stacked.
    converged : bool
    """

    x: Array
    log_density: float
    h: Array
    lam: Array
    converged: bool


class Surface:
    """The log density as a function of θ, and every θ at which it was computed.

    Parameters
    ----------
    search : Search
        Of the evidence and the log prior, at its maximum.
    """

    def __init__(self, search: Search[Any]) -> None:
        self.search = search
        self.tol = max(_TOL, search.problem.tol)
        best = search.known_best
        self.mode = search.flatten(best.point)
        self.nodes: dict[bytes, Node] = {}
        self._precision = np.eye(self.mode.size)
        end = best.climb.evaluation
        self._add(Node(self.mode, best.objective, end.h, end.lam, best.climb.converged))

    def _add(self, node: Node) -> Node:
        self.nodes[node.x.tobytes()] = node
        return node

    def at(self, x: Array) -> Node:
        """Return the approximation at ``x``, begun at the sites of the nearest known one."""
        if x.tobytes() in self.nodes:
            return self.nodes[x.tobytes()]
        usable = [node for node in self.nodes.values() if np.isfinite(node.log_density)]
        away = np.array([x - node.x for node in usable])
        near = usable[int(np.argmin(np.einsum("ij,jk,ik->i", away, self._precision, away)))]
        try:
            run, _ = self.search.run(x, self.tol, (near.h, near.lam), differentiate=False)
        except _FAILURES:
            return self._add(Node(x, -np.inf, near.h, near.lam, True))
        end = run.climb.evaluation
        return self._add(Node(x, run.objective, end.h, end.lam, run.climb.converged))

    def log_density(self, x: Array) -> float:
        """Return log p(θ) + log Z(θ)."""
        return self.at(x).log_density

    def scaling(self) -> Scaling:
        """Return coordinates in which the density is about N(0, I)."""
        values, axes = np.linalg.eigh(self._hessian())
        self._precision = axes @ np.diag(np.maximum(values, _LARGEST_STD**-2)) @ axes.T
        std = 1.0 / np.sqrt(np.maximum(values, _LARGEST_STD**-2))
        widths = [
            [self._width(sign * axis, s) for axis, s in zip(axes.T, std, strict=True)]
            for sign in (-1.0, 1.0)
        ]
        return Scaling.of_widths(self.mode, axes, np.array(widths[0]), np.array(widths[1]))

    def _hessian(self) -> Array:
        """Return minus the matrix of second derivatives at the mode."""
        p, rows = self.mode.size, []
        for j in range(p):
            slopes = []
            for sign in (-1.0, 1.0):
                x = self.mode + sign * _STEP * np.eye(p)[j]
                _, gradient = self.search.run(x, _TOL_OF_GRADIENT)
                named = {
                    h.value_name: np.broadcast_to(gradient.get(h.value_name, 0.0), h.shape)
                    for h in self.search.members
                }
                slopes.append(self.search.flatten(named))
            rows.append((slopes[0] - slopes[1]) / (2.0 * _STEP))
        return 0.5 * (np.array(rows) + np.array(rows).T)

    def _width(self, direction: Array, std: float) -> float:
        """Return the standard deviation of the normal density that falls as this one does."""
        peak = self.log_density(self.mode)
        for _ in range(_MOST_TRIES):
            fall = peak - self.log_density(self.mode + REFERENCE * std * direction)
            if not np.isfinite(fall):
                std *= 0.5
                continue
            # By at most a factor of two, as a density may have a shoulder.
            factor = np.clip(1.0 / np.sqrt(max(fall, 1e-3)), 0.5, 2.0)
            std *= factor
            if 0.8 < factor < 1.25:
                break
        return std


def everywhere(function: Callable[[Index], Array], points: Array) -> Array:
    """Return a smooth function of θ, in nats, at each of the ``points``, (n, p).

    ``function`` is of the numbers of points. It is computed at some and interpolated between them,
    once that agrees at others, which are as far from the former as any.
    """
    x, first, which = np.unique(points, axis=0, return_index=True, return_inverse=True)
    scale = x.std(axis=0)
    x = ((x - x.mean(axis=0)) / np.where(scale > 0.0, scale, 1.0))[:, scale > 0.0]
    order, p = _farthest_first(x), x.shape[1]
    found, done = np.full(len(x), np.nan), 0
    count = _PER_COEFFICIENT * (p + 1) * (p + 2) // 2 + _CHECKED
    while np.isnan(found).any():
        more = order[done:count]
        found[more] = function(first[more])
        known, rest = order[:count], order[count:]
        done, count = count, 2 * count
        if rest.size and np.isfinite(found[known]).all():
            near, others = np.split(known, [-_CHECKED])
            error = _interpolated(x[near], found[near], x[others]) - found[others]
            if np.abs(error).max() < _INTERPOLATED:
                found[rest] = _interpolated(x[known], found[known], x[rest])
    return found[np.ravel(which)]


def _interpolated(x: Array, values: Array, at: Array) -> Array:
    return np.asarray(RBFInterpolator(x, values, kernel="cubic", degree=1)(at))


def _farthest_first(x: Array) -> Index:
    """Return the order of distinct points in which each is as far from those before as any is."""
    away, order = np.sum(x**2, axis=1), np.empty(len(x), dtype=int)
    for k in range(len(x)):
        order[k] = np.argmax(away)
        away = np.minimum(away, np.sum((x - x[order[k]]) ** 2, axis=1))
        away[order[: k + 1]] = -1.0
    return order
