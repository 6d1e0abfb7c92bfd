"""The PyMC model in which a process acts through its values at inducing inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.model import Model
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor.linalg import solve_triangular

from pymc_augconj.errors import AugmentationError
from pymc_augconj.quadrature.expectation import N_NODES, normal_nodes
from pymc_augconj.recognition.graph.affine import depends_on
from pymc_augconj.recognition.graph.rewrite import substitute

from .copies import empty_like, register
from .process import JITTER

#: Largest number of processes in one predictor with as many nodes an axis as for one process.
LARGEST_SUM = 3


class SparseNames(NamedTuple):
    """Names of the values at the inducing inputs, of their weights and of the inputs."""

    values: str
    weights: str
    inputs: str


class _Process(NamedTuple):
    """The variable that stands for a process at its inputs, its mean and standard deviation."""

    value: Variable
    mean: Variable
    std: Variable
    outputs: int


def write_sparse(
    model: Model,
    processes: Sequence[tuple[Any, np.ndarray, SparseNames]],
    theta: Mapping[str, Any],
    n_predictors: Mapping[str, int],
    smallest_var: float,
) -> Model:
    """Return the model through inducing points, see :func:`pymc_augconj.sparsify`.

    Every observation depends on one value of each of ``processes``. ``theta`` has initial values of
    free variables in place of the model's own, and ``n_predictors`` the number of predictors of an
    observed variable or potential. ``smallest_var`` is the least residual variance.
    """
    by_variable = {model[gp.f.name]: (gp, Z, names) for gp, Z, names in processes}
    whitened = [_whitened_of(model, process) for process in by_variable]
    for process, (_, _, names) in by_variable.items():
        for reserved in names:
            if reserved in model.named_vars:
                raise AugmentationError(
                    f"variable {reserved!r} of the model: expected a different name, since draws "
                    f"of {process.name!r} through inducing points are stored under it; rename it"
                )
    sparse = empty_like(model)
    starts = {var: theta.get(var.name, start) for var, start in model.rvs_to_initial_values.items()}
    replaced: dict[Variable, Variable] = {}
    through: list[_Process] = []
    with sparse:
        # In the order of definition every variable comes after those that it depends on.
        for var in model.named_vars.values():
            if any(var is one for one in whitened):
                continue
            dims = model.named_vars_to_dims.get(var.name)
            if var in model.data_vars:
                sparse.register_data_var(var, dims=dims)
                continue
            if var in by_variable:
                value = var.type(name=var.name)
                moments = _through_inducing(
                    *by_variable[var], _outputs(var), replaced, smallest_var
                )
                through.append(_Process(value, *moments, _outputs(var)))
                replaced[var] = value
                continue
            (new,) = substitute([var], replaced)
            if through and depends_on(new, [process.value for process in through]):
                replaced[var] = new
                if var in model.potentials:
                    pm.Potential(var.name, _expected(new, through, n_predictors[var.name]))
                elif var in model.observed_RVs:
                    density = pm.logp(new, model.rvs_to_values[var])
                    pm.Potential(var.name, _expected(density, through, n_predictors[var.name]))
            else:
                replaced[var] = register(model, var, new, starts, dims=dims)
    return sparse


def _whitened_of(model: Model, process: Variable) -> Variable | None:
    """Return the free variable of which a reparameterised process is a function."""
    if process in model.free_RVs:
        return None
    by_name = {rv.name: rv for rv in model.free_RVs}
    return by_name.get(f"{process.name}_rotated_")


def _through_inducing(
    gp: Any,
    Z: np.ndarray,
    names: SparseNames,
    outputs: int,
    replaced: Mapping[Variable, Variable],
    smallest_var: float,
) -> tuple[Variable, Variable]:
    """Write the weights and return mean and residual standard deviations of a process."""
    pm.Data(names.inputs, Z)
    shape = (len(Z),) if outputs == 1 else (outputs, len(Z))
    v = pm.Normal(names.weights, 0.0, 1.0, shape=shape)
    X = pt.as_tensor(gp.X)
    graphs = [
        gp.cov_func(Z),
        gp.cov_func(X, Z),
        gp.cov_func(X, diag=True),
        pt.broadcast_to(gp.mean_func(X), (X.shape[0],)),
        pt.broadcast_to(gp.mean_func(Z), (len(Z),)),
    ]
    zz, xz, diagonal, mean, mean_at = substitute([pt.as_tensor(g) for g in graphs], replaced)
    R = pt.linalg.cholesky(zz + JITTER * pt.eye(len(Z)))
    At = solve_triangular(R, xz.T, lower=True)
    pm.Deterministic(names.values, mean_at + v @ R.T)
    var = pt.maximum(diagonal - pt.sqr(At).sum(axis=0), smallest_var)
    return mean + v @ At, pt.sqrt(var)


def nodes_of(outputs: int, n_predictors: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights for a density of so many outputs and predictors."""
    of_one = n_predictors == 1 and outputs <= LARGEST_SUM
    return normal_nodes(outputs, n_nodes=N_NODES if of_one else None)


def _outputs(process: Variable) -> int:
    """Return K for a process of shape (K, n), 1 for one of shape (n,)."""
    return 1 if process.ndim == 1 else int(process.shape[0].eval())


def _expected(density: Variable, through: Sequence[_Process], n_predictors: int) -> Variable:
    """Return Σ_q w_q of a sum of log densities with the processes at their q-th nodes."""
    density = density.astype("float64")
    entering = [process for process in through if depends_on(density, [process.value])]
    # Residuals are independent, between the outputs of a process too.
    nodes, weights = nodes_of(sum(process.outputs for process in entering), n_predictors)
    at, first = {}, 0
    for process in entering:
        own = nodes[first : first + process.outputs].T
        first += process.outputs
        if process.value.ndim > 1:
            own = own[..., None]
        at[process.value] = process.mean + pt.constant(own) * process.std
    (terms,) = vectorize_graph([density], at)
    sums = terms.reshape((weights.size, -1)).sum(axis=-1)
    return (pt.constant(weights) * sums).sum()
