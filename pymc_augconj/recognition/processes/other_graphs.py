"""Models of the same variables with other graphs: in linear time, or of all the data.

Processes that are Markov take linear time in place of matrices. Stochastic engines draw minibatches
themselves, from a seed, and need all the data in the place of ``pm.Minibatch``.

The ``pm.Data`` and the variables of other models that graphs depend on are found here, too.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pymc as pm
from pymc.data import MinibatchOp
from pymc.distributions.multivariate import CARRV
from pymc.model import Model
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.type import TensorType
from scipy.sparse import csr_array

from pymc_augconj.distributions.maps import CAR
from pymc_augconj.errors import AugmentationError, DataError, RecognitionError
from pymc_augconj.recognition.graph.affine import depends_on, value_leaves
from pymc_augconj.recognition.graph.dependence import static_shape
from pymc_augconj.recognition.graph.interpreter import NotInterpretedError
from pymc_augconj.recognition.graph.rewrite import Variables, is_random, substitute
from pymc_augconj.recognition.latents.markov import (
    inputs_of,
    is_product_with_cholesky,
    linear_product,
)
from pymc_augconj.recognition.latents.separable import GridProduct, grid_product


def rewritten(
    model: Model,
    change: Callable[[Variable, dict[Variable, Variable]], Variable | None],
    starts: Mapping[Variable, Any] | None = None,
    observed: Mapping[Variable, Variable] | None = None,
) -> Model:
    """Return a model of the same variables with other graphs.

    ``change(var, replaced)`` returns the graph of a variable, or None to leave it out, given what
    replaces variables that it may depend on, to which it may add. It is called with the new model
    in context. ``starts`` has initial values in place of the model's own. With ``observed``, other
    observations, there are no dims and no ``pm.Data``, as sizes change.
    """
    # Names are those of the user's model, prefix included.
    new, replaced = pm.Model(model=None), dict[Variable, Variable]()
    for dim, labels in model.coords.items() if observed is None else ():
        new.add_coord(dim, labels, length=model.dim_lengths[dim])
    starts = model.rvs_to_initial_values if starts is None else starts
    with new:
        # In the order of definition every variable comes after those that it depends on.
        for var in model.named_vars.values():
            dims = {"dims": model.named_vars_to_dims.get(var.name)}
            more: dict[str, Any] = dims if observed is None else {}
            if var in model.data_vars:
                if observed is None and var not in model.rvs_to_values.values():
                    new.register_data_var(var, **more)
                continue
            if (graph := change(var, replaced)) is None:
                continue
            if var in model.deterministics:
                replaced[var] = pm.Deterministic(var.name, graph, **more)
            elif var in model.potentials:
                replaced[var] = pm.Potential(var.name, graph, **more)
            else:
                if var in model.observed_RVs:
                    more["observed"] = (observed or model.rvs_to_values)[var]
                else:
                    more |= {"initval": starts.get(var), "default_transform": None}
                    more["transform"] = model.rvs_to_transforms[var]
                replaced[var] = new.register_rv(graph, var.name, **more)
    return new


# Fewer values, times a tenth of the dimension of a large state, are faster by dense factorisations,
# which take fewer calls. Fewer unsorted inputs, or cells of a grid, take these too: they define
# PyMC's whitened values.
_FEWEST, _FEWEST_UNORDERED, _FEWEST_ON_GRID = 200, 4000, 2000


def in_linear_time(model: Model, *, grids: bool = False) -> Model:
    """Return a model of the same variables without matrices of Markov processes.

    :class:`.MarkovRoot` replaces their products ``cholesky(K) @ v``, and a sparse precision the
    eigenvalues of ``pm.CAR``. With ``grids`` variables of a :class:`.GridProduct` replace the
    whitened values of processes on grids, too. If no variable gains from this, the model itself is
    returned.
    """
    replaced = _products(model)
    on_grids = grid_products(model, replaced) if grids else {}
    if not (replaced or on_grids) and all(_sparse(rv) is rv for rv in model.free_RVs):
        return model
    whitened = [grid.whitened for grid in on_grids.values()]

    def change(var: Variable, known: dict[Variable, Variable]) -> Variable | None:
        if var in whitened:
            return None
        for product in [p for p in on_grids if depends_on(var, [p])]:
            replaced[product] = on_grids.pop(product).register()
        (new,) = substitute([var], known | replaced)
        return _sparse(new) if var in model.free_RVs else new

    return rewritten(model, change)


def _sparse(rv: Variable) -> Variable:
    """Return a ``pm.CAR`` of many areas with the same density; any other variable unchanged."""
    if not isinstance(rv.owner.op, CARRV) or rv.ndim != 1:
        return rv
    mu, W, alpha, tau, _ = rv.owner.op.dist_params(rv.owner)
    if not isinstance(W, Constant) or W.data.shape[0] < _FEWEST:
        return rv
    # PyMC leaves these terms of the normalising constant out.
    sums = np.ravel(W.data.sum(axis=0))
    with np.errstate(all="ignore"):
        log_factor = 0.5 * float(np.sum(np.log(2.0 * np.pi) - np.log(sums)))
    try:
        return CAR.dist(csr_array(W.data), alpha, tau, mu, log_factor=log_factor)
    except DataError:
        return rv


def _written(model: Model) -> list[Variable]:
    """Return the variables of a model that have graphs."""
    return [*model.basic_RVs, *model.deterministics, *model.potentials]


def _large_products(model: Model, fewest: int) -> Iterator[Variable]:
    """Yield products with Cholesky factors of so many rows or more."""
    for var in ancestors(_written(model)):
        if var.owner is not None and is_product_with_cholesky(var.owner):
            right = var.owner.inputs[1]
            if (right.type.shape[0] or static_shape(right)[0]) >= fewest:
                yield var


def _products(model: Model) -> dict[Variable, Variable]:
    """Return products in linear time, by the products that they replace."""
    found: dict[Variable, Variable] = {}
    for var in _large_products(model, _FEWEST):
        try:
            product = linear_product(var.owner)
        except NotInterpretedError:
            continue
        inputs = inputs_of(product.owner)
        few = inputs.size < _FEWEST * max(1.0, inputs.dimension / 10)
        if not few and (inputs.order is None or inputs.size >= _FEWEST_UNORDERED):
            found[var] = product
    return found


def grid_products(model: Model, others: Collection[Variable]) -> dict[Variable, GridProduct]:
    """Return products over large grids, by the products with v that they replace.

    Those of ``others`` are replaced already.
    """
    found: dict[Variable, GridProduct] = {}
    for var in _large_products(model, _FEWEST_ON_GRID):
        if var in others or var.owner.inputs[1].type.shape[1] != 1:
            continue
        try:
            grid = grid_product(var.owner)
        except NotInterpretedError:
            continue
        others_of_v = [root for root in _written(model) if root is not grid.whitened]
        alone = grid.whitened not in set(ancestors(others_of_v, blockers=[var]))
        constant = not any(depends_on(K, [*others, *found]) for K in [*grid.factors, grid.noise])
        if alone and constant and model.named_vars.keys().isdisjoint(grid.names):
            found[var] = grid
    return found


def _is_minibatch(var: Variable) -> bool:
    return var.owner is not None and isinstance(var.owner.op, MinibatchOp)


def all_data_of(var: Variable) -> Variable:
    """Return the data that a minibatch is taken from; any other variable unchanged."""
    return var.owner.inputs[var.owner.outputs.index(var)] if _is_minibatch(var) else var


def _minibatches(model: Model) -> list[Variable]:
    roots = [*_written(model), *(model.rvs_to_values[rv] for rv in model.observed_RVs)]
    return [var for var in ancestors(roots) if _is_minibatch(var)]


def batch_size_of(model: Model) -> int | None:
    """Return the size of the model's minibatches; None if it has none."""
    found = _minibatches(model)
    return found[0].type.shape[0] if found else None


def with_all_data(model: Model) -> Model:
    """Return the model with all the data instead of minibatches; unchanged if it has none.

    Raises RecognitionError if an observed variable's ``total_size`` is not the number of its data,
    or the graph of its distribution has a fixed size.
    """
    minibatches = _minibatches(model)
    if not minibatches:
        return model
    replaced: dict[Variable, Variable] = {var: all_data_of(var) for var in minibatches}
    observed: dict[Variable, Variable] = {}

    def change(var: Variable, known: dict[Variable, Variable]) -> Variable:
        replaced.update(known)
        if var in model.potentials and any(map(_is_minibatch, ancestors([var]))):
            raise RecognitionError(
                f"potential {var.name!r}: expected no pm.Minibatch data, as PyMC has no "
                "total_size for a potential; write the model with the arrays themselves, "
                "and pass batch_size=… to pac.fit"
            )
        if var in model.observed_RVs:
            observed[var] = _replace(model.rvs_to_values[var], replaced)
            _check_total_size(var, observed[var])
        # The variable itself, without its total_size.
        scaled = isinstance(var.owner and var.owner.op, MinibatchRandomVariable)
        return _replace(var.owner.inputs[0] if scaled else var, replaced)

    return rewritten(model, change, observed=observed)


def _replace(var: Variable, replaced: dict[Variable, Variable]) -> Variable:
    """Return the graph on the replaced variables, whose shapes may differ; nodes are cached."""
    for node in toposort([var], blockers=list(replaced)):
        inputs = [replaced.get(v, v) for v in node.inputs]
        if any(new is not old for new, old in zip(inputs, node.inputs, strict=True)):
            if isinstance(node.op, OpFromGraph) and any(map(_differ, inputs, node.inputs)):
                raise RecognitionError(
                    f"{type(node.op).__name__.removesuffix('RV')} of pm.Minibatch data: expected "
                    "a distribution whose graph does not contain the size of a minibatch (the "
                    "graphs of Weibull, mixtures and Censored do); write the model with the arrays "
                    "themselves, and pass batch_size=… to pac.fit"
                )
            rebuilt = node.clone_with_new_inputs(inputs, strict=False)
            replaced.update(zip(node.outputs, rebuilt.outputs, strict=True))
    return replaced.get(var, var)


def _differ(new: Variable, old: Variable) -> bool:
    lengths = zip(getattr(new.type, "shape", ()), getattr(old.type, "shape", ()), strict=False)
    return any(None not in pair and pair[0] != pair[1] for pair in lengths)


def _check_total_size(var: Variable, observed: Variable) -> None:
    op = var.owner.op
    total = var.owner.inputs[1].data if isinstance(op, MinibatchRandomVariable) else None
    size = observed.type.shape[0]
    if total is None or (size is not None and int(total) != size):
        raise RecognitionError(
            f"observed variable {var.name!r}: expected total_size={size}, the number of data that "
            f"its minibatches are taken from, found {None if total is None else int(total)}"
        )


def data_behind(
    model: Model, gp: Any, *, observations: bool, observed: str | None
) -> dict[str, SharedVariable]:
    """Return the data that a ``pm.gp.Latent`` depends on, by name.

    ``observations`` adds the data of observed variables that depend on it (``observed``, or any),
    but not the observations themselves.
    """
    roots = [gp.f]
    if observations:
        named = [rv for rv in model.observed_RVs if observed in (None, rv.name)]
        roots += [rv for rv in named if gp.f in set(ancestors([rv]))]
    return _shared(roots)


def input_data(gp: Any) -> dict[str, SharedVariable]:
    """Return the data that the inputs of a ``pm.gp.Latent`` depend on, by name."""
    return _shared([gp.X]) if isinstance(gp.X, Variable) else {}


def _shared(variables: Iterable[Variable]) -> dict[str, SharedVariable]:
    return {
        var.name: var
        for var in ancestors(variables)
        if isinstance(var, SharedVariable) and var.name
    }


def data_as_constants(variables: Iterable[Variable]) -> dict[SharedVariable, Constant]:
    """Return the current values, as constants, of all data that variables depend on.

    A graph in which they replace the data is not affected by ``pm.set_data``.
    """
    return {
        var: var.type.make_constant(var.get_value(borrow=True))
        for var in ancestors(variables)
        if isinstance(var, SharedVariable) and isinstance(var.type, TensorType)
    }


def sums_of_arrays(graph: Variable) -> list[float]:
    """Return a weighted sum over each numerical array that a graph is computed from."""
    found = []
    for leaf in value_leaves([graph]):
        if isinstance(leaf, Constant | SharedVariable):
            value = np.asarray(leaf.data if isinstance(leaf, Constant) else leaf.get_value())
            if value.ndim > 0 and value.dtype.kind in "biuf":
                weights = np.random.default_rng(value.size).uniform(1.0, 2.0, value.size)
                found.append(float(value.ravel() @ weights))
    return sorted(found)


def checksums(variables: Iterable[Variable]) -> dict[str, int]:
    """Return a checksum of value and shape of every ``pm.Data`` among the variables."""
    found = {}
    for var in variables:
        if isinstance(var, SharedVariable) and var.name:
            value = np.ascontiguousarray(var.get_value(borrow=True))
            if value.dtype.hasobject:
                continue
            shape = np.array(value.shape, dtype=np.int64)
            found[var.name] = zlib.crc32(value.view(np.uint8).ravel(), zlib.crc32(shape.tobytes()))
    return found


def refuse_foreign_variables(process: str, graphs: Variables) -> None:
    """Refuse a process whose mean or covariance has another model's random variables in it.

    In ``graphs`` the model's own random variables have been replaced.
    """
    foreign = sorted({str(var.name) for var in ancestors(graphs) if is_random(var)})
    if foreign:
        raise AugmentationError(
            f"gp: expected the kernel and the mean of {process!r} to depend on random variables of "
            f"this model, found {', '.join(map(repr, foreign))} of another one. A copy of a model "
            "(freeze_model, pm.do, pm.observe) has new variables, but its processes keep the "
            "variables of the original: fit the model in which the process was made, and pass it "
            "as model= or as the context"
        )
