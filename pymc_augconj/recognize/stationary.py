"""Stationary covariances, evaluated and differentiated by formulas instead of their graphs.

A stationary kernel of PyMC, perhaps scaled, is k(x, z) = s·g(t) with t = c·|x/ℓ − z/ℓ|². All of t
is one product of matrices,

    t = (a, c|a|², 1)·(−2c b, 1, c|b|²),    a = x/ℓ, b = z/ℓ,

and g takes a few passes over it in place; of the squared exponential log s goes into the product.
Derivatives: with weights W and E = W ∘ s·g′(t),

    ∂/∂aᵢ = 2c (aᵢ Σⱼ Eᵢⱼ − Σⱼ Eᵢⱼ bⱼ),    ∂/∂bⱼ = 2c (bⱼ Σᵢ Eᵢⱼ − Σᵢ Eᵢⱼ aᵢ),    ∂/∂s = ⟨W, g⟩.

PyTensor's own graph of these takes some forty passes, each into an array of its own.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.model import Model
from pytensor.graph.basic import Variable

from ..model import Point
from .compile import Gradient, PointFunction

__all__ = ["StationaryCovariance"]

Array = NDArray[np.float64]

_SCALE, _LENGTHS = "stationary:weight of scale", "stationary:weights of lengths"
# PyMC takes the distance as √(r² + this), which has a derivative at zero.
_UNDER_ROOT = 1e-12


@dataclass(frozen=True)
class _Profile:
    """g as a function of t = factor·r², and (g, g′); both may write to t.

    ``is_power``: g(t) = eᵗ, so that s·g(t) = g(t + log s).
    """

    factor: float
    value: Callable[[Array], Array]
    slope: Callable[[Array], tuple[Array, Array]]
    is_power: bool = False


def _squared_exponential(t: Array) -> Array:
    # Where rounding leaves t above zero the error is that of any other t.
    return np.exp(t, out=t)


def _squared_exponential_slope(t: Array) -> tuple[Array, Array]:
    value = np.exp(t, out=t)
    return value, value


def _root(t: Array) -> Array:
    np.maximum(t, 0.0, out=t)
    t += _UNDER_ROOT
    return np.sqrt(t, out=t)


def _exponential(rate: float) -> _Profile:
    def value(t: Array) -> Array:
        r = _root(t)
        r *= -rate
        return np.exp(r, out=r)

    def slope(t: Array) -> tuple[Array, Array]:
        r = _root(t)
        g = np.exp(-rate * r)
        return g, (-0.5 * rate) * g / r

    return _Profile(1.0, value, slope)


def _matern32(t: Array) -> Array:
    return _matern32_slope(t)[0]


def _matern32_slope(t: Array) -> tuple[Array, Array]:
    u = np.sqrt(3.0) * _root(t)
    decay = np.exp(-u)
    # d/du (1 + u)e^{−u} = −u e^{−u}, and du/dt = 3/(2u).
    return (1.0 + u) * decay, -1.5 * decay


def _matern52(t: Array) -> Array:
    return _matern52_slope(t)[0]


def _matern52_slope(t: Array) -> tuple[Array, Array]:
    u = np.sqrt(5.0) * _root(t)
    decay = np.exp(-u)
    u_next = u + 1.0
    # d/du (1 + u + u²/3)e^{−u} = −(u/3)(1 + u)e^{−u}, and du/dt = 5/(2u).
    return (u_next + u * u / 3.0) * decay, (-5.0 / 6.0) * u_next * decay


_PROFILES: dict[type, _Profile] = {
    pm.gp.cov.ExpQuad: _Profile(-0.5, _squared_exponential, _squared_exponential_slope, True),
    pm.gp.cov.Matern52: _Profile(1.0, _matern52, _matern52_slope),
    pm.gp.cov.Matern32: _Profile(1.0, _matern32, _matern32_slope),
    pm.gp.cov.Matern12: _exponential(1.0),
    pm.gp.cov.Exponential: _exponential(0.5),
}


class StationaryCovariance:
    """The covariance s·g(|x − z|/ℓ) of a process, as a function of θ.

    Parameters
    ----------
    kernel : pm.gp.cov.Stationary
        Of a class that has a formula here.
    scale, lengths : Variable
        s and ℓ as graphs of ``values``.
    values : mapping from str to Variable
        Entries of the point.
    gradient_of_inducing : bool
        Whether derivatives by Z are wanted.
    """

    def __init__(
        self,
        kernel: Any,
        scale: Variable,
        lengths: Variable,
        values: Mapping[str, Variable],
        *,
        gradient_of_inducing: bool = False,
    ):
        self._profile = _PROFILES[type(kernel)]
        dims = np.asarray(kernel.active_dims)
        leading = np.array_equal(dims, np.arange(dims.size))
        self._columns = slice(dims.size) if leading else dims
        self._by_inducing = gradient_of_inducing
        self._parameters = PointFunction([scale, lengths], values)
        weights = [scale.type.clone(name=None)(), lengths.type.clone(name=None)()]
        cost = weights[0] * scale + (weights[1] * lengths).sum()
        given = dict(zip((_SCALE, _LENGTHS), weights, strict=True))
        self._pull = Gradient(cost, values, given)
        self._known: tuple[bytes, tuple[float, Array]] | None = None

    @classmethod
    def find(
        cls,
        cov_func: Any,
        model: Model,
        values: Mapping[str, Variable],
        *,
        gradient_of_inducing: bool = False,
    ) -> StationaryCovariance | None:
        """Return the covariance where it is a stationary kernel times numbers, else None."""
        factors = cov_func._factor_list if type(cov_func) is pm.gp.cov.Prod else [cov_func]
        kernels = [factor for factor in factors if isinstance(factor, pm.gp.cov.BaseCovariance)]
        if len(kernels) != 1 or type(kernels[0]) not in _PROFILES:
            return None
        (kernel,) = kernels
        scale = pt.constant(1.0)
        for factor in factors:
            if factor is kernel:
                continue
            number = _number(factor)
            if number is None:
                return None
            scale = scale * number
        lengths = kernel.ls
        if lengths.ndim > 1:
            return None
        graphs = [pt.as_tensor(graph).astype("float64") for graph in (scale, lengths)]
        scale, lengths = model.replace_rvs_by_values(graphs)
        return cls(kernel, scale, lengths, values, gradient_of_inducing=gradient_of_inducing)

    @property
    def names(self) -> tuple[str, ...]:
        """The entries of the point that it depends on."""
        return self._parameters.names

    def lanes(self, count: int) -> list[StationaryCovariance]:
        """Return up to ``count`` of these, each for a thread of its own."""
        functions = self._parameters.copies(count)
        gradients = self._pull.copies(count)
        found = [self]
        for function, gradient in list(zip(functions, gradients, strict=False))[1:]:
            other = copy(self)
            other._parameters, other._pull = function, gradient
            found.append(other)
        return found

    def cov(self, point: Point, Z: Array) -> Array:
        """Return K(Z, Z)."""
        return self.cross(point, Z, Z)[0]

    def cross(self, point: Point, X: Array, Z: Array) -> tuple[Array, Array]:
        """Return K(X, Z) and the diagonal of K(X, X)."""
        scale, lengths = self._at(point)
        # Far out an optimiser meets infinities, which are its own to judge.
        with np.errstate(all="ignore"):
            inside = self._profile.is_power and scale > 0.0
            a, b = self._scaled(X, lengths), self._scaled(Z, lengths)
            value = self._profile.value(self._distances(a, b, np.log(scale) if inside else 0.0))
            if not inside:
                value *= scale
        return value, np.full(len(X), scale)

    def pull_cov(self, point: Point, Z: Array, weights: Array):
        """Return the derivatives of K(Z, Z), weighted and summed: by θ, and by Z."""
        lengths = self._at(point)[1]
        with np.errstate(all="ignore"):
            a = self._scaled(Z, lengths)
            by_scale, by_a, by_b = self._pull_distances(a, a, weights)
            moved = by_a + by_b
            by_lengths = np.sum(moved * a, axis=0)
        return self._pulled(point, Z, by_scale, by_lengths, moved)

    def pull_cross(self, point: Point, X: Array, Z: Array, weights: tuple[Array, Array]):
        """Return the derivatives of K(X, Z) and the diagonal of K(X, X), as those of K(Z, Z)."""
        lengths = self._at(point)[1]
        with np.errstate(all="ignore"):
            a, b = self._scaled(X, lengths), self._scaled(Z, lengths)
            by_scale, by_a, by_b = self._pull_distances(a, b, weights[0])
            by_scale += float(np.sum(weights[1]))
            by_lengths = np.sum(by_a * a, axis=0) + np.sum(by_b * b, axis=0)
        return self._pulled(point, Z, by_scale, by_lengths, by_b)

    def _pulled(self, point: Point, Z: Array, by_scale: float, by_lengths: Array, moved: Array):
        """Return derivatives by θ, given those by s and, but for s, by log(1/ℓ) and scaled Z."""
        scale, lengths = self._at(point)
        by_lengths = by_lengths.sum() if lengths.size == 1 else by_lengths
        weights = {
            _SCALE: np.array(by_scale),
            _LENGTHS: np.reshape(-scale * by_lengths / lengths, lengths.shape),
        }
        found = self._pull({**point, **weights})
        if not self._by_inducing:
            return found, None
        by_inducing = np.zeros(Z.shape)
        by_inducing[:, self._columns] = (scale / lengths) * moved
        return found, by_inducing

    def _at(self, point: Point) -> tuple[float, Array]:
        """Return s and ℓ."""
        if self._parameters.shared:
            scale, lengths = self._parameters(point)
            return float(scale), np.array(lengths)
        key = b"".join(np.asarray(point[name]).tobytes() for name in self.names)
        known = self._known
        if known is None or known[0] != key:
            scale, lengths = self._parameters(point)
            known = self._known = key, (float(scale), np.array(lengths))
        return known[1]

    def _scaled(self, X: Array, lengths: Array) -> Array:
        return X[:, self._columns] / lengths

    def _distances(self, a: Array, b: Array, shift: float = 0.0) -> Array:
        """Return t, up to rounding, plus ``shift``."""
        c = self._profile.factor
        d = a.shape[1]
        left, right = np.empty((len(a), d + 2)), np.empty((len(b), d + 2))
        left[:, :d], left[:, d], left[:, d + 1] = a, c * np.vecdot(a, a), 1.0
        right[:, :d], right[:, d] = (-2.0 * c) * b, 1.0
        right[:, d + 1] = c * np.vecdot(b, b) + shift
        return left @ right.T

    def _pull_distances(self, a: Array, b: Array, W: Array) -> tuple[float, Array, Array]:
        """Return ⟨W, g⟩ and the derivatives of it by a and by b."""
        c, d = self._profile.factor, a.shape[1]
        g, slope = self._profile.slope(self._distances(a, b))
        whole = None if g is slope else float(np.vdot(W, g))
        E = np.multiply(W, slope, out=slope)
        # A column of ones sums the rows.
        extended = np.ones((len(b), d + 1))
        extended[:, :d] = b
        products = E @ extended
        rows = products[:, d]
        by_a = (2.0 * c) * (a * rows[:, None] - products[:, :d])
        extended = np.ones((len(a), d + 1))
        extended[:, :d] = a
        products = E.T @ extended
        by_b = (2.0 * c) * (b * products[:, d:] - products[:, :d])
        return float(rows.sum()) if whole is None else whole, by_a, by_b


def _number(factor: Any) -> Any:
    """Return a factor of a kernel where it is one number, else None."""
    if isinstance(factor, numbers.Real):
        return float(factor)
    if isinstance(factor, np.ndarray):
        return float(factor.ravel()[0]) if factor.size == 1 else None
    if isinstance(factor, Variable) and getattr(factor, "ndim", 1) == 0:
        return factor
    return None
