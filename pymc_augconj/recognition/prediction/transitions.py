"""Time series: the next value; processes that are Markov, or on a grid, at new inputs.

For a series x with p lags, x_t | x_{t−1}, …, x_{t−p} ~ N(mean, S Sᵀ), where S is diagonal unless
the series has a vector at each time. It follows from the arguments of PyMC's distribution, so that
a forecast is exact for values from any sampler.

Draws of a Markov process at new inputs, given its values at the old ones, take linear time by
Matheron's rule: with f₀ a draw of the process at all inputs, and C = K + jitter I at the old,

    f* = m* + f₀* + K*ₓ C⁻¹ (f − m − f₀ − noise).

Those of a process on a grid take eigenvectors of small matrices. With the eigenvectors Vᵢ and
eigenvalues of the factors Kᵢ, V = V₁ ⊗ V₂ ⊗ …, and D those of K plus the variance of the noise, f*
given the values f has

    m* + W D^−½ Vᵀ (f − m),    K** − W Wᵀ,    W = K*ₓ V D^−½.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.timeseries import AutoRegressiveRV, EulerMaruyamaRV, RandomWalkRV
from pymc.model import Model
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, explicit_graph_inputs

from pymc_augconj.errors import AugmentationError
from pymc_augconj.gaussian.observations import SMALLEST_PRECISION
from pymc_augconj.latents.by_grid import product_over_axes
from pymc_augconj.latents.dense import kronecker_product
from pymc_augconj.linalg.dense import cholesky_with_jitter
from pymc_augconj.linalg.state_space import MarkovFactor, transitions_of
from pymc_augconj.point import Argument
from pymc_augconj.recognition.graph.dependence import static_shape
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.latents.markov import MarkovRoot, inputs_beside, inputs_of
from pymc_augconj.recognition.latents.separable import GridProduct
from pymc_augconj.recognition.processes.other_graphs import (
    data_as_constants,
    grid_products,
    in_linear_time,
    refuse_foreign_variables,
)
from pymc_augconj.typing import Array, Generator

from .evaluate import BatchFunction, in_variables

# The key of the last values of a series.
_LAST = Argument("last values")

_SERIES = (RandomWalkRV, AutoRegressiveRV, EulerMaruyamaRV)


@dataclass(frozen=True)
class Transition:
    """The distribution of the next value of a series."""

    #: Shape of the series: (…, n), or (…, n, d) where it has a vector at each time.
    shape: tuple[int, ...]
    #: Its axis of time, counted from the end.
    axis: int
    #: p, the number of earlier values that the next one depends on.
    lags: int
    #: The free variables that the distribution depends on.
    names: tuple[str, ...]
    #: Mean and S.
    graph: BatchFunction

    def moments(self, values: Mapping[str, np.ndarray], x: Array) -> tuple[Array, Array]:
        """Return mean and S of every draw, given the last p values, (draws, …, p) or (…, p, d)."""
        mean, root = self.graph({_LAST: x, **values}).values()
        return mean, root

    def simulate(
        self, values: Mapping[str, np.ndarray], x: Array, steps: int, rng: Generator
    ) -> Array:
        """Return the next values, shape (draws, …, steps) or (draws, …, steps, d), of each draw."""
        new = []
        for _ in range(steps):
            mean, root = self.moments(values, x)
            noise = rng.standard_normal(mean.shape)
            noise = root * noise if self.axis == -1 else (root @ noise[..., None])[..., 0]
            new.append(np.expand_dims(mean + noise, self.axis))
            x = np.concatenate([x, new[-1]], axis=self.axis)
            x = np.take(x, range(1, self.lags + 1), axis=self.axis)
        return np.concatenate(new, axis=self.axis)


def read_transition(model: Model, name: str) -> Transition:
    """Return the transition of series ``name``; AugmentationError if its steps are not normal."""
    series = [rv.name for rv in model.free_RVs if isinstance(rv.owner.op, _SERIES)]
    if name not in series:
        listed = f"one of {series}" if series else "GaussianRandomWalk, AR, …: this model has none"
        raise AugmentationError(
            f"steps: expected the name of a time series ({listed}), found {name!r}, "
            f"{_what(model, name)}; forecast a series, and compute from it what depends on it; a "
            "Gaussian process is predicted at new inputs, pac.predict(result, gp, Xnew)"
        )
    rv = model[name]
    shape, op = static_shape(rv), rv.owner.op
    axis, lags = -op.ndim_supp, getattr(op, "ar_order", 1)
    batch, core = shape[:axis], shape[len(shape) + axis + 1 :]
    x = pt.tensor("x", dtype="float64", shape=(*batch, lags, *core))
    if isinstance(op, RandomWalkRV):
        mean, root = _walk(rv, x, batch, core)
    elif isinstance(op, AutoRegressiveRV):
        mean, root = _autoregression(rv, x)
    else:
        mean, root = _diffusion(rv, x)
    root_shape = (*batch, *core, *core)
    graphs = [
        pt.broadcast_to(mean.astype("float64"), (*batch, *core)),
        pt.broadcast_to(root.astype("float64"), root_shape),
    ]
    graphs, inputs = in_variables(model, graphs)
    refuse_foreign_variables(name, graphs)
    leaves = set(explicit_graph_inputs(graphs))
    names = tuple(key for key, var in inputs.items() if var in leaves)
    graphs = graph_replace(graphs, data_as_constants(graphs), strict=False)
    by_name = dict(zip(("mean", "root"), graphs, strict=True))
    return Transition(shape, axis, lags, names, BatchFunction(by_name, {**inputs, _LAST: x}))


def _walk(
    rv: Variable, x: Variable, batch: tuple[int, ...], core: tuple[int, ...]
) -> tuple[Variable, Variable]:
    innovation = rv.owner.inputs[1]
    op = innovation.owner.op
    kind = type(op).__name__
    if kind not in ("NormalRV", "MvNormalRV"):
        raise AugmentationError(
            f"{rv.name!r}: expected a random walk with normal steps, found {kind[:-2]}; draw its "
            "future with pm.sample_posterior_predictive"
        )
    location, spread = op.dist_params(innovation.owner)
    # Steps are on the first axis of the parameters, where these have as many axes.
    for value, shape in ((location, (*batch, *core)), (spread, (*batch, *core, *core))):
        if value.ndim > len(shape) and not value.type.broadcastable[0]:
            raise AugmentationError(
                f"{rv.name!r}: expected steps with the same mean and scale at all times, found "
                "some for each time, so that those of the future are unknown; compute the future "
                "from the last values of the draws"
            )
    mean = pt.broadcast_to(location, (1, *batch, *core))[0]
    spread = pt.broadcast_to(spread, (1, *batch, *core, *core))[0]
    root = pt.linalg.cholesky(spread) if core else spread
    return (x[..., -1, :] if core else x[..., -1]) + mean, root


def _autoregression(rv: Variable, x: Variable) -> tuple[Variable, Variable]:
    op = rv.owner.op
    rho, sigma, *_ = rv.owner.inputs
    first = int(op.constant_term)
    mean = rho[..., 0] if op.constant_term else 0.0
    for lag in range(op.ar_order):
        mean += rho[..., first + lag] * x[..., -(lag + 1)]
    return mean, sigma


def _diffusion(rv: Variable, x: Variable) -> tuple[Variable, Variable]:
    op = rv.owner.op
    _, _, *parameters, _ = rv.owner.inputs
    drift, diffusion = op.sde_fn(x[..., -1], *parameters)
    dt = pt.as_tensor(op.dt)
    return x[..., -1] + dt * drift, pt.sqrt(dt) * diffusion


def _what(model: Model, name: str) -> str:
    if name not in model.named_vars:
        return "which is no variable of this model"
    variable = model[name]
    if variable in model.deterministics:
        return "which is a Deterministic"
    if variable in model.observed_RVs:
        return "which is observed"
    return f"which is a {getattr(variable.owner.op, '_print_name', ('variable',))[0]}"


# Variance at new inputs that repeat old ones, relative to that of the process.
_ROUNDING = 1e-10
_NAME = "the covariance at the old and new inputs"


class MarkovProcess:
    """A process at its own inputs and P new ones.

    ``array`` has that of a :class:`.MarkovFactor` as a function of variables of the model, by name.
    """

    def __init__(self, node: Apply, array: PointFunction, Xnew: Array) -> None:
        self.array, self.inputs = array, inputs_of(node)
        if len(Xnew):
            self._every = inputs_beside(node, Xnew)

    @classmethod
    def find(cls, model: Model, name: str, Xnew: Array) -> MarkovProcess | None:
        """Return the process ``name``, if it takes linear time."""
        linear = in_linear_time(model)
        if linear is model or name not in linear.named_vars:
            return None
        for var in ancestors([linear[name]]):
            if var.owner is not None and isinstance(var.owner.op, MarkovRoot):
                (graph,), inputs = in_variables(linear, [var.owner.inputs[1]])
                return cls(var.owner, PointFunction(graph, inputs, first_calls=1), Xnew)
        return None

    def draw(
        self, rng: Generator, array: Array, deviation: Array, diagonal: Array, *, joint: bool
    ) -> Array:
        """Return a draw of f* − m*, (S, P), for each draw of f − m in ``deviation``, (S, n).

        ``array`` is the value of :attr:`array`; ``diagonal``, (P,), has the prior variances at the
        new inputs, white noise included. With ``joint`` the entries of a draw are drawn jointly.
        """
        n, noise, every = self.inputs.size, array[-1], self._every
        size, motion = every.size - n, transitions_of(every, array)
        variance = every.back(np.broadcast_to(motion.variance, every.size))[n:]
        extra = np.append(np.full(n, noise), np.full(size, 1.0 / SMALLEST_PRECISION))
        given = MarkovFactor(every, np.append(array[:-1], 0.0), extra, _NAME, motion)
        smooth = np.append(array[:-1], _ROUNDING * np.max(motion.variance))
        prior = MarkovFactor(every, smooth, None, _NAME, motion)

        def mean(deviation: Array) -> Array:
            weights = given.solve(np.pad(deviation, ((0, 0), (0, size))))
            weights[:, n:] = 0.0
            return prior.product(prior.transpose_product(weights))[:, n:]

        own = np.maximum(diagonal - variance, 0.0)
        eps = rng.standard_normal((len(deviation), size))
        if not joint:
            return mean(deviation) + np.sqrt(given.var()[n:] + own) * eps
        found = prior.product(rng.standard_normal((len(deviation), n + size)))
        away = deviation - found[:, :n] - np.sqrt(noise) * rng.standard_normal(deviation.shape)
        return found[:, n:] + mean(away) + np.sqrt(own) * eps


class GridProcess:
    """A process of which every cell of a grid has one value.

    ``matrices`` has the factors and the variance of the noise as a function of variables of the
    model, by name.
    """

    def __init__(self, model: Model, product: GridProduct) -> None:
        graphs, inputs = in_variables(model, [*product.factors, product.noise])
        self.matrices = PointFunction(graphs, inputs, first_calls=1)
        self._order = np.argsort(product.cells)

    @classmethod
    def find(cls, model: Model, name: str) -> GridProcess | None:
        """Return the process ``name``, if it has values at all cells of a large grid."""
        for product in grid_products(model, ()).values():
            is_whole = np.array_equal(np.sort(product.cells), np.arange(np.prod(product.grid)))
            if is_whole and product.whitened.name == f"{name}_rotated_":
                return cls(model, product)
        return None

    def draw(
        self,
        values: Mapping[str, Array],
        deviation: Array,
        noise: Array,
        parts: Mapping[str, Array],
    ) -> Array:
        """Return a draw of f*, (S, P), for every f − m of ``deviation``, (S, n), of one kernel.

        ``noise`` and ``parts`` are as for :func:`.draw_conditional`; the covariance of the old
        inputs follows from ``values``.
        """
        *factors, variance = self.matrices(dict(values))
        eigenvalues, vectors = zip(*map(np.linalg.eigh, factors), strict=True)
        D = product_over_axes([np.maximum(d, 0.0) for d in eigenvalues]) + float(variance)
        transposed, roots = [V.T for V in vectors], np.sqrt(D)
        rows = np.concatenate([parts["cross"], deviation])[:, self._order]
        rows = kronecker_product(transposed, np.ascontiguousarray(rows)) / roots
        W, weights = np.split(rows, [len(parts["cross"])])
        mean = parts["mean_new"] + weights @ W.T
        if "new" not in parts:
            var = parts["new_diagonal"] - np.vecdot(W, W)
            return np.asarray(mean + np.sqrt(np.maximum(var, 0.0)) * noise)
        cov = parts["new"] - W @ W.T
        chol, _ = cholesky_with_jitter(cov, name="the covariance at the new inputs")
        return np.asarray(mean + noise @ np.tril(chol).T)
