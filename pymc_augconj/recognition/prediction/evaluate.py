"""Functions of a PyMC model for its results.

Engines work on the unconstrained scale. These functions compute constrained values,
deterministics, and the prior density in the sense of ``pm.find_MAP``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.model import Model
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import explicit_graph_inputs

from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.point import Point
from pymc_augconj.python_mode import without_compilation
from pymc_augconj.recognition.graph.dependence import ModelIndex
from pymc_augconj.recognition.graph.derive import log_densities_of
from pymc_augconj.recognition.graph.functions import Gradient, PointFunction
from pymc_augconj.recognition.graph.rewrite import Variables, simplify
from pymc_augconj.recognition.latents.normal import find_gaussian_variables
from pymc_augconj.recognition.processes.other_graphs import all_data_of, refuse_foreign_variables
from pymc_augconj.typing import Array


def constrained(model: Model, names: Sequence[str], point: Point) -> dict[str, np.ndarray]:
    """Return free variables on the scale of the user's model at an unconstrained ``point``."""
    if not names:
        return {}
    index = ModelIndex(model)
    inputs = {name: value for name, value in index.inputs.items() if name in point}
    graphs = index.in_values([model[name] for name in names])
    values = PointFunction(graphs, inputs, first_calls=1)(point)
    return {name: np.array(value) for name, value in zip(names, values, strict=True)}


class DensityOfPrior:
    """The log prior density of the hyperparameters, as ``pm.find_MAP`` maximises it.

    Unlike the density of their unconstrained transforms it has no Jacobian, so that its mode does
    not depend on the transforms. It includes the ``factors``, observed variables and potentials
    that depend on hyperparameters only, and the factors by which the densities of latents differ
    from normal ones (for example of an ICAR).
    """

    def __init__(
        self,
        model: Model,
        lgm: LatentGaussianModel,
        factors: Sequence[str],
        *,
        first_calls: int = 0,
    ) -> None:
        index = ModelIndex(model)
        inputs = {h.value_name: index.inputs[h.value_name] for h in lgm.hyperparameters}
        potentials = [model[name] for name in factors if model[name] in model.potentials]
        variables = [model[h.name] for h in lgm.hyperparameters]
        variables += [model[name] for name in factors if model[name] not in potentials]
        terms = log_densities_of(index, variables, jacobian=False) + index.in_values(potentials)
        cost = sum((pt.sum(term) for term in terms), start=pt.constant(0.0)).astype("float64")
        self._value = PointFunction(cost, inputs, first_calls=first_calls)
        self._gradient = Gradient(cost, inputs, first_calls=first_calls)
        self._factors = [b.log_factor for b in lgm.blocks if b.log_factor is not None]

    def __call__(self, point: Point) -> tuple[float, dict[str, np.ndarray]]:
        """Return the log density at ``point``, and its derivatives on the unconstrained scale."""
        total = float(self._value(point))
        slopes = {name: np.array(slope) for name, slope in self._gradient(point).items()}
        for factor in self._factors:
            value, gradient = factor(point)
            total += value
            for name, slope in gradient.items():
                slopes[name] = slopes.get(name, 0.0) + slope
        return total, slopes


class BatchFunction:
    """Graphs by name as a function of many values of ``variables``; draws on the first axis."""

    def __init__(self, graphs: Mapping[str, Variable], variables: Mapping[Any, Variable]) -> None:
        self.names = tuple(graphs)
        leaves = [set(explicit_graph_inputs([graph])) for graph in graphs.values()]
        used = {key: var for key, var in variables.items() if any(var in own for own in leaves)}
        self._depends = [not own.isdisjoint(used.values()) for own in leaves]
        self._dtypes = {key: var.dtype for key, var in used.items()}
        batched = {
            var: pt.tensor(var.name, dtype=var.dtype, shape=(None, *var.type.shape))
            for var in used.values()
        }
        many = vectorize_graph(list(graphs.values()), batched) if batched else [*graphs.values()]
        with without_compilation():
            self._function = pytensor.function(list(batched.values()), many)

    def __call__(self, values: Mapping[Any, Array]) -> dict[str, Array]:
        n_draws = len(next(iter(values.values())))
        given = (values[key].astype(dtype, copy=False) for key, dtype in self._dtypes.items())
        return {
            name: value if depends else np.broadcast_to(value, (n_draws, *np.shape(value)))
            for name, value, depends in zip(
                self.names, map(np.asarray, self._function(*given)), self._depends, strict=True
            )
        }


def batch_function(
    model: Model,
    names: Sequence[str],
    moving: Sequence[str],
    point: Point,
    data: Mapping[Variable, Variable] | None = None,
) -> BatchFunction:
    """Return variables of a model as functions of draws of the entries ``moving`` of the point.

    Other entries come from ``point``. A covariance and its Cholesky factor, which depend on
    hyperparameters alone, are computed once, when the function is made. ``data`` replaces shared
    variables; by default each call uses their current values.
    """
    index = ModelIndex(model)
    values, graphs = index.inputs, index.in_values([model[name] for name in names])
    fixed = {
        var: pt.constant(np.asarray(point[name], dtype=var.dtype))
        for name, var in values.items()
        if name not in moving
    }
    graphs = graph_replace(graphs, {**fixed, **(data or {})}, strict=False)
    by_name = dict(zip(names, graphs, strict=True))
    return BatchFunction(by_name, {name: values[name] for name in moving})


def value_at_zero(model: Model, name: str, entry: str, point: Point) -> PointFunction:
    """Return the variable ``name`` where the entry ``entry`` of the point is zero, as a function.

    For a whitened process this is its mean: rewriting removes the product with zero, and thus
    the covariance and its factor.
    """
    index = ModelIndex(model)
    inputs, (graph,) = dict(index.inputs), index.in_values([model[name]])
    value = inputs.pop(entry)
    zeros = pt.zeros(np.shape(point[entry]), dtype=value.dtype)
    (graph,) = simplify(graph_replace([graph], {value: zeros}, strict=False))
    return PointFunction(graph, inputs)


def in_variables(model: Model, graphs: Variables) -> tuple[list[Variable], dict[str, Variable]]:
    """Return graphs of random variables as graphs of inputs on the scale of the user's model."""
    inputs = {rv.name: rv.type(name=rv.name) for rv in model.free_RVs}
    graphs = graph_replace(
        list(graphs), {model[name]: var for name, var in inputs.items()}, strict=False
    )
    return list(graphs), inputs


def variable_function(model: Model, name: str) -> PointFunction:
    """Return a variable of the model as a function of free variables, by their names."""
    (graph,), inputs = in_variables(model, [model[name]])
    return PointFunction(graph, inputs, first_calls=1)


def covariance_function(model: Model, name: str) -> PointFunction | None:
    """Return the prior covariance of a Gaussian variable, as a function of constrained values.

    None if no variable of this name has a covariance.
    """
    for latent in find_gaussian_variables(ModelIndex(model)):
        if latent.name == name and latent.has_covariance:
            (graph,), inputs = in_variables(model, [latent.scale.astype("float64")])
            return PointFunction(graph, inputs, first_calls=1)
    return None


def kernel_functions(
    model: Model, gp: Any, Xnew: np.ndarray, X: np.ndarray | None = None
) -> Callable[..., PointFunction]:
    """Return a function of keys: the means and covariances of a ``pm.gp.Latent`` at its inputs.

    Old inputs are the inputs of the ``prior``, or X (inducing inputs) if given: ``"mean_old"``,
    ``"mean_new"``, ``"mean_at"`` (at X), ``"old"`` (K(X, X)), ``"cross"`` (K(Xnew, X)), ``"new"``
    and ``"new_diagonal"``. Their values, of several keys a list, are functions of constrained
    values by the names of the variables.
    """
    n_new = len(Xnew)
    own = pt.as_tensor(all_data_of(gp.X) if isinstance(gp.X, Variable) else gp.X)
    at = own if X is None else pt.as_tensor(X)
    with model:
        graphs = {
            "mean_old": pt.broadcast_to(gp.mean_func(own), (own.shape[0],)),
            "mean_at": pt.broadcast_to(gp.mean_func(at), (at.shape[0],)),
            "mean_new": pt.broadcast_to(gp.mean_func(Xnew), (n_new,)),
            "old": gp.cov_func(at),
            "cross": gp.cov_func(Xnew, at),
            "new": gp.cov_func(Xnew),
            "new_diagonal": gp.cov_func(Xnew, diag=True),
        }
    replaced, inputs = in_variables(
        model, [pt.as_tensor(graph).astype("float64") for graph in graphs.values()]
    )
    refuse_foreign_variables(gp.f.name, replaced)
    known = dict(zip(graphs, replaced, strict=True))

    def function_of(*keys: str) -> PointFunction:
        wanted = [known[key] for key in keys]
        # An approximation, and its draws, have one value of the hyperparameters.
        return PointFunction(wanted if len(keys) > 1 else wanted[0], inputs, first_calls=1)

    return function_of


def unconstrained_function(model: Model, names: Sequence[str]) -> PointFunction:
    """Return free variables' entries of the point, as a function of constrained values.

    The function takes values by the names of variables and returns a list in the order of
    ``names``.
    """
    graphs = []
    for name in names:
        rv = model[name]
        transform = model.rvs_to_transforms[rv]
        graphs.append(rv if transform is None else transform.forward(rv, *rv.owner.inputs))
    replaced, inputs = in_variables(model, graphs)
    return PointFunction(replaced, inputs)
