"""The distribution of the next value of a time series given those before.

For a series x with p lags, x_t | x_{t−1}, …, x_{t−p} ~ N(mean, S Sᵀ), where S is diagonal unless
the series has a vector at each time. It follows from the arguments of PyMC's distribution, so that
a forecast is exact for values from any sampler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.timeseries import AutoRegressiveRV, EulerMaruyamaRV, RandomWalkRV
from pymc.model import Model
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import explicit_graph_inputs

from pymc_augconj.errors import AugmentationError
from pymc_augconj.point import Argument
from pymc_augconj.recognition.graph.dependence import static_shape
from pymc_augconj.recognition.processes.input_data import (
    data_as_constants,
    refuse_foreign_variables,
)
from pymc_augconj.typing import Array, Generator

from .evaluate import BatchGraph

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
    graph: BatchGraph

    def moments(self, values: Mapping[str, np.ndarray], x: Array) -> tuple[Array, Array]:
        """Return mean and S of every draw, given the last p values, (draws, …, p) or (…, p, d)."""
        mean, root = self.graph({_LAST: x, **values})
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
        raise AugmentationError(
            f"steps: expected the name of a time series ({_listed(series)}), found {name!r}, "
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
    inputs = {rv.name: rv.type(name=rv.name) for rv in model.free_RVs}
    graphs = graph_replace(graphs, {model[key]: var for key, var in inputs.items()}, strict=False)
    refuse_foreign_variables(name, graphs)
    leaves = set(explicit_graph_inputs(graphs))
    names = tuple(key for key, var in inputs.items() if var in leaves)
    graphs = graph_replace(graphs, data_as_constants(graphs), strict=False)
    return Transition(shape, axis, lags, names, BatchGraph(graphs, {**inputs, _LAST: x}))


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


def _listed(names: list[str]) -> str:
    return f"one of {names}" if names else "GaussianRandomWalk, AR, …: this model has none"


def _what(model: Model, name: str) -> str:
    if name not in model.named_vars:
        return "which is no variable of this model"
    variable = model[name]
    if variable in model.deterministics:
        return "which is a Deterministic"
    if variable in model.observed_RVs:
        return "which is observed"
    return f"which is a {getattr(variable.owner.op, '_print_name', ('variable',))[0]}"
