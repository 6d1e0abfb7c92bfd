"""Covariance functions of processes: through their graphs, or by formulas where stationary.

A stationary kernel of PyMC, perhaps scaled, is k(x, z) = s·g(t) with t = c·|x/ℓ − z/ℓ|². All of t
is one product of matrices,

    t = (a, c|a|², 1)·(−2c b, 1, c|b|²),    a = x/ℓ, b = z/ℓ,

and g takes a few passes over it in place; for the squared exponential log s is in the product.
Derivatives: with weights W and E = W ∘ s·g′(t),

    ∂/∂aᵢ = 2c (aᵢ Σⱼ Eᵢⱼ − Σⱼ Eᵢⱼ bⱼ),    ∂/∂bⱼ = 2c (bⱼ Σᵢ Eᵢⱼ − Σᵢ Eᵢⱼ aᵢ),    ∂/∂s = ⟨W, g⟩.

PyTensor's own graph of these takes some forty passes, each into a new array.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace

from pymc_augconj.point import Argument, Point
from pymc_augconj.recognition.graph.dependence import ModelIndex
from pymc_augconj.recognition.graph.functions import Inputs, NamedValues, PointFunction, Pullback
from pymc_augconj.typing import Array

from .other_graphs import data_as_constants

# PyMC's distance is √(r² + _UNDER_ROOT), which is differentiable at zero.
_UNDER_ROOT = 1e-12


class Profile(NamedTuple):
    """(g, g′) as a function of t = factor·r², which it may write to.

    ``is_power``: g(t) = eᵗ, so that s·g(t) = g(t + log s).
    """

    factor: float
    at: Callable[[Array], tuple[Array, Array]]
    is_power: bool = False


def _squared_exponential(t: Array) -> tuple[Array, Array]:
    # t may exceed zero by rounding; the relative error is as small as elsewhere.
    value = np.exp(t, out=t)
    return value, value


def _root(t: Array) -> Array:
    np.maximum(t, 0.0, out=t)
    t += _UNDER_ROOT
    return np.sqrt(t, out=t)


def _exponential(rate: float) -> Profile:
    def at(t: Array) -> tuple[Array, Array]:
        r = _root(t)
        g = np.exp(-rate * r)
        return g, (-0.5 * rate) * g / r

    return Profile(1.0, at)


def _matern32(t: Array) -> tuple[Array, Array]:
    u = np.sqrt(3.0) * _root(t)
    decay = np.exp(-u)
    # d/du (1 + u)e^{−u} = −u e^{−u}, and du/dt = 3/(2u).
    return (1.0 + u) * decay, -1.5 * decay


def _matern52(t: Array) -> tuple[Array, Array]:
    u = np.sqrt(5.0) * _root(t)
    decay = np.exp(-u)
    u_next = u + 1.0
    # d/du (1 + u + u²/3)e^{−u} = −(u/3)(1 + u)e^{−u}, and du/dt = 5/(2u).
    return (u_next + u * u / 3.0) * decay, (-5.0 / 6.0) * u_next * decay


#: By class of the kernel.
PROFILES: dict[type, Profile] = {
    pm.gp.cov.ExpQuad: Profile(-0.5, _squared_exponential, True),
    pm.gp.cov.Matern52: Profile(1.0, _matern52),
    pm.gp.cov.Matern32: Profile(1.0, _matern32),
    pm.gp.cov.Matern12: _exponential(1.0),
    pm.gp.cov.Exponential: _exponential(0.5),
}


# Weighted sums of derivatives: by θ, and by Z where these are requested.
Pulled = tuple[dict[str, Array], Array | None]

#: The keys under which functions of a covariance take the inputs X and the inducing inputs Z.
INPUTS, INDUCING = Argument("inputs"), Argument("inducing inputs")


class GraphCovariance:
    """The covariance of a process, as a function of θ, in the methods of :class:`.ProcessPrior`.

    ``graphs`` are K(Z, Z), K(X, Z) and the diagonal of K(X, X), ``values`` the entries of the
    point.
    """

    def __init__(
        self,
        graphs: Sequence[Variable],
        values: Inputs,
        X: Variable,
        Z: Variable,
        *,
        gradient_of_inducing: bool = False,
    ) -> None:
        self._moves = gradient_of_inducing
        inputs: Inputs = {**values, INPUTS: X, INDUCING: Z}
        self._cov = PointFunction(graphs[0], inputs)
        self._cross = PointFunction(graphs[1:], inputs)
        wrt: Inputs = {**values, INDUCING: Z} if gradient_of_inducing else values
        self._pull_cov = Pullback(graphs[:1], wrt, inputs)
        self._pull_cross = Pullback(graphs[1:], wrt, inputs)

    def compile(self) -> None:
        for function in (self._cross, self._pull_cov, self._pull_cross):
            function.compile()

    def cov(self, point: Point, Z: Array) -> Array:
        return np.asarray(self._cov({**point, INDUCING: Z}))

    def cross(self, point: Point, X: Array, Z: Array) -> tuple[Array, Array]:
        xz, diagonal = self._cross({**point, INPUTS: X, INDUCING: Z})
        return np.asarray(xz), np.asarray(diagonal)

    def pull_cov(self, point: Point, Z: Array, weights: Array) -> Pulled:
        found = self._pull_cov({**point, INDUCING: Z}, weights)
        return found, self._by_inducing(found, Z)

    def pull_cross(self, point: Point, X: Array, Z: Array, weights: tuple[Array, Array]) -> Pulled:
        found = self._pull_cross({**point, INPUTS: X, INDUCING: Z}, *weights)
        return found, self._by_inducing(found, Z)

    def _by_inducing(self, found: dict[Any, Array], Z: Array) -> Array | None:
        if not self._moves:
            return None
        return found.pop(INDUCING, np.zeros(Z.shape))


# Number of inputs in the comparison with PyMC's graph, and its tolerance: rounding differs.
_COMPARED, _TOLERANCE = 5, 1e-6


class StationaryCovariance:
    """The covariance s·g(|x − z|/ℓ) of a process, as a function of θ.

    The kernel's class is in :mod:`.covariance`; ``scale`` and ``lengths`` are graphs of ``values``,
    the entries of the point.
    """

    def __init__(
        self,
        kernel: Any,
        scale: Variable,
        lengths: Variable,
        values: Inputs,
        *,
        gradient_of_inducing: bool = False,
    ) -> None:
        self._profile = PROFILES[type(kernel)]
        dims = np.asarray(kernel.active_dims)
        leading = np.array_equal(dims, np.arange(dims.size))
        self._columns = slice(dims.size) if leading else dims
        self._by_inducing = gradient_of_inducing
        parameters = PointFunction([scale, lengths], values)
        self._parameters = NamedValues(("scale", "lengths"), parameters)
        self._derivatives = Pullback([scale, lengths], values, {})

    @classmethod
    def find(
        cls, cov_func: Any, model: ModelIndex, values: Inputs, *, gradient_of_inducing: bool = False
    ) -> StationaryCovariance | None:
        """Return the covariance if it is a stationary kernel times numbers, else None."""
        factors = cov_func._factor_list if type(cov_func) is pm.gp.cov.Prod else [cov_func]
        kernels = [factor for factor in factors if isinstance(factor, pm.gp.cov.BaseCovariance)]
        if len(kernels) != 1 or type(kernels[0]) not in PROFILES:
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
        graphs = model.in_values(graphs)
        if data := data_as_constants(graphs):
            graphs = graph_replace(graphs, data, strict=False)
        scale, lengths = graphs
        return cls(kernel, scale, lengths, values, gradient_of_inducing=gradient_of_inducing)

    def agrees_with(self, graph: PointFunction, point: Point, inputs: Array) -> bool:
        """Return whether K(Z, Z), K(X, Z) and the diagonal agree with PyMC's graph somewhere."""
        some = inputs[np.linspace(0, len(inputs) - 1, _COMPARED).astype(int)]
        X, Z = some[1:], some[:-1]
        theirs = graph.uncompiled({**point, INPUTS: X, INDUCING: Z})
        ours = [self.cov(point, Z), *self.cross(point, X, Z)]
        scale = np.abs(ours[-1]).max()
        return all(
            np.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE * scale)
            for a, b in zip(ours, theirs, strict=True)
        )

    def compile(self) -> None:
        self._parameters.compile()
        self._derivatives.compile()

    def cov(self, point: Point, Z: Array) -> Array:
        return self.cross(point, Z, Z)[0]

    def cross(self, point: Point, X: Array, Z: Array) -> tuple[Array, Array]:
        scale, lengths = self._at(point)
        # Extreme hyperparameters overflow; the optimiser handles infinities.
        with np.errstate(all="ignore"):
            inside = self._profile.is_power and scale > 0.0
            a, b = self._scaled(X, lengths), self._scaled(Z, lengths)
            shift = np.log(scale) if inside else 0.0
            value = self._profile.at(self._distances(a, b, shift))[0]
            if not inside:
                value *= scale
        return value, np.full(len(X), scale)

    def pull_cov(self, point: Point, Z: Array, weights: Array) -> Pulled:
        lengths = self._at(point)[1]
        with np.errstate(all="ignore"):
            a = self._scaled(Z, lengths)
            by_scale, by_a, by_b = self._pull_distances(a, a, weights)
            moved = by_a + by_b
            by_lengths = np.sum(moved * a, axis=0)
        return self._pulled(point, Z, by_scale, by_lengths, moved)

    def pull_cross(self, point: Point, X: Array, Z: Array, weights: tuple[Array, Array]) -> Pulled:
        lengths = self._at(point)[1]
        with np.errstate(all="ignore"):
            a, b = self._scaled(X, lengths), self._scaled(Z, lengths)
            by_scale, by_a, by_b = self._pull_distances(a, b, weights[0])
            by_scale += float(np.sum(weights[1]))
            by_lengths = np.sum(by_a * a, axis=0) + np.sum(by_b * b, axis=0)
        return self._pulled(point, Z, by_scale, by_lengths, by_b)

    def _pulled(
        self, point: Point, Z: Array, by_scale: float, by_logs: Array, moved: Array
    ) -> Pulled:
        """Return derivatives by θ and by Z.

        The arguments are derivatives by s, and 1/s times derivatives by log(1/ℓ) and by Z/ℓ.
        """
        scale, lengths = self._at(point)
        total = by_logs.sum() if lengths.size == 1 else by_logs
        by_lengths = np.reshape(-scale * total / lengths, lengths.shape)
        found = self._derivatives(point, np.array(by_scale), by_lengths)
        if not self._by_inducing:
            return found, None
        by_inducing = np.zeros(Z.shape)
        by_inducing[:, self._columns] = (scale / lengths) * moved
        return found, by_inducing

    def _at(self, point: Point) -> tuple[float, Array]:
        """Return s and ℓ."""
        found = self._parameters(point)
        return float(found["scale"]), found["lengths"]

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
        """Return ⟨W, g⟩ and its derivatives by a and by b."""
        c, d = self._profile.factor, a.shape[1]
        g, slope = self._profile.at(self._distances(a, b))
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
    """Return a factor of a kernel if it is one number, else None."""
    if isinstance(factor, numbers.Real):
        return float(factor)
    if isinstance(factor, np.ndarray):
        return float(factor.ravel()[0]) if factor.size == 1 else None
    if isinstance(factor, Variable) and getattr(factor, "ndim", 1) == 0:
        return factor
    return None
