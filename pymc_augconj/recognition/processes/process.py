"""A ``pm.gp.Latent`` at arbitrary inputs, for the sparse engines and as a PyMC model.

In the model the process acts through its values at inducing inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.model import Model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.tensor.linalg import solve_triangular

from pymc_augconj.errors import AugmentationError
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.point import Key, Point
from pymc_augconj.python_mode import without_compilation
from pymc_augconj.quadrature.expectation import N_NODES, normal_nodes
from pymc_augconj.recognition.graph.affine import depends_on
from pymc_augconj.recognition.graph.dependence import ModelIndex
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.graph.rewrite import substitute
from pymc_augconj.typing import Array

from .covariance import INDUCING, INPUTS, GraphCovariance, StationaryCovariance
from .other_graphs import (
    all_data_of,
    data_as_constants,
    refuse_foreign_variables,
    rewritten,
)

# A generic value of hyperparameters, unconstrained, at which formulas are compared with graphs.
_ANYWHERE = 0.3

#: Default of ``gp.prior`` and ``gp.conditional`` for the term added to a covariance's diagonal.
JITTER = 1e-6


class LatentProcess:
    """The :class:`.ProcessPrior` of a ``pm.gp.Latent``, a latent of ``lgm``.

    Raises AugmentationError if ``gp`` does not belong to the model, depends on another model's
    variables, has inputs that are not data, or has a mean or covariance that depends on a Gaussian
    latent.
    """

    jitter = JITTER

    def __init__(
        self, model: Model, gp: Any, lgm: LatentGaussianModel, *, gradient_of_inducing: bool = False
    ) -> None:
        self.name = name_of(gp, lgm)
        self.read_inputs(gp)
        self._hyper = {h.value_name for h in lgm.hyperparameters}
        index = ModelIndex(model)
        values = {name: index.inputs[name] for name in self._hyper}
        width = self.inputs.shape[1]
        X, Z = (pt.tensor(key, dtype="float64", shape=(None, width)) for key in ("X", "Z"))
        with model:
            graphs = [
                gp.cov_func(Z),
                gp.cov_func(X, Z),
                gp.cov_func(X, diag=True),
                pt.broadcast_to(gp.mean_func(X), (X.shape[0],)),
            ]
        latents = {block.name for block in lgm.blocks} | {b.value_name for b in lgm.blocks}
        moving = [rv.name for rv in index.parents_of(graphs) if rv.name in latents]
        if moving:
            raise AugmentationError(
                f"gp {self.name!r}: expected a mean and a covariance that depend on "
                f"hyperparameters only, found the Gaussian latents {moving}; add these to the "
                "predictor instead, or fit without inducing points"
            )
        graphs = index.in_values([pt.as_tensor(graph).astype("float64") for graph in graphs])
        refuse_foreign_variables(self.name, graphs)
        # The fit keeps its prior when the data of the model change.
        *covariances, mean = graph_replace(graphs, data_as_constants(graphs), strict=False)
        self._mean = PointFunction(mean, {**values, INPUTS: X})
        formulas = StationaryCovariance.find(
            gp.cov_func, index, values, gradient_of_inducing=gradient_of_inducing
        )
        point = {h.value_name: np.full(h.shape, _ANYWHERE) for h in lgm.hyperparameters}
        covariance: StationaryCovariance | GraphCovariance
        if formulas is None or not formulas.agrees_with(
            PointFunction(covariances, {**values, INPUTS: X, INDUCING: Z}), point, self.inputs
        ):
            covariance = GraphCovariance(
                covariances, values, X, Z, gradient_of_inducing=gradient_of_inducing
            )
        else:
            covariance = formulas
        self._covariance, self.compile = covariance, covariance.compile
        self.cov, self.cross = covariance.cov, covariance.cross
        self.pull_cov, self.pull_cross = covariance.pull_cov, covariance.pull_cross
        self.names: tuple[Key, ...] = tuple(
            name
            for name, value in values.items()
            if any(depends_on(graph, value) for graph in [*covariances, mean])
        )

    def read_inputs(self, gp: Any) -> None:
        """Read the inputs again, after the model's data have changed."""
        self.inputs = _inputs(gp, self.name)

    def mean(self, point: Point, X: Array) -> Array:
        return np.array(self._mean({**point, INPUTS: X}), dtype=float)


def name_of(gp: Any, lgm: LatentGaussianModel) -> str:
    """Return the latent whose prior a process is; AugmentationError if there is none."""
    names = [block.name for block in lgm.blocks]
    name = getattr(getattr(gp, "f", None), "name", None)
    if name not in names or not hasattr(gp, "cov_func"):
        raise AugmentationError(
            f"gp: expected the pm.gp.Latent whose prior is one of the model's latents {names}, "
            f"got {gp!r}"
        )
    return name


def _inputs(gp: Any, name: str) -> np.ndarray:
    X = all_data_of(gp.X) if isinstance(gp.X, Variable) else gp.X
    if isinstance(X, SharedVariable):
        X = X.get_value(borrow=True)
    elif isinstance(X, Constant):
        X = X.data
    elif isinstance(X, Variable):
        with without_compilation():
            X = X.eval()
    if not (isinstance(X, np.ndarray) and X.ndim == 2):
        raise AugmentationError(
            f"gp {name!r}: expected inputs of shape (points, dimensions), got {type(X).__name__} "
            f"of shape {np.shape(X)}"
        )
    return X


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
    starts = {var: theta.get(var.name, start) for var, start in model.rvs_to_initial_values.items()}
    through: list[_Process] = []

    def change(var: Variable, replaced: dict[Variable, Variable]) -> Variable | None:
        if any(var is one for one in whitened):
            return None
        if var in by_variable:
            replaced[var] = value = var.type(name=var.name)
            moments = _through_inducing(*by_variable[var], _outputs(var), replaced, smallest_var)
            through.append(_Process(value, *moments, _outputs(var)))
            return None
        (new,) = substitute([var], replaced)
        if not (through and depends_on(new, [process.value for process in through])):
            return new
        replaced[var] = new
        if var in model.potentials:
            pm.Potential(var.name, _expected(new, through, n_predictors[var.name]))
        elif var in model.observed_RVs:
            density = pm.logp(new, model.rvs_to_values[var])
            pm.Potential(var.name, _expected(density, through, n_predictors[var.name]))
        return None

    return rewritten(model, change, starts)


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
