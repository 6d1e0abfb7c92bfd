"""The prior of a ``pm.gp.Latent`` at arbitrary inputs, for the sparse engines."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.model import Model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace

from pymc_augconj.errors import AugmentationError
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.point import Key, Point
from pymc_augconj.python_mode import without_compilation
from pymc_augconj.recognition.graph.affine import depends_on
from pymc_augconj.recognition.graph.dependence import ModelIndex
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.typing import Array

from .covariance_graph import INDUCING, INPUTS, GraphCovariance, Pulled
from .input_data import data_as_constants, refuse_foreign_variables
from .minibatch import all_data_of
from .stationary import StationaryCovariance

# A generic value of hyperparameters, unconstrained, at which formulas are compared with graphs.
_ANYWHERE = 0.3

#: Default of ``gp.prior`` and ``gp.conditional`` for the term added to a covariance's diagonal.
JITTER = 1e-6


class LatentProcess:
    """The :class:`~pymc_augconj.model.ProcessPrior` of a ``pm.gp.Latent``, a latent of ``lgm``.

    Raises AugmentationError if ``gp`` does not belong to the model, depends on another model's
    variables, has inputs that are not data, or has a mean or covariance that depends on a Gaussian
    latent.
    """

    jitter = JITTER

    def __init__(
        self,
        model: Model,
        gp: Any,
        lgm: LatentGaussianModel,
        *,
        gradient_of_inducing: bool = False,
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
        self._covariance: StationaryCovariance | GraphCovariance
        if formulas is None or not formulas.agrees_with(
            PointFunction(covariances, {**values, INPUTS: X, INDUCING: Z}), point, self.inputs
        ):
            self._covariance = GraphCovariance(
                covariances, values, X, Z, gradient_of_inducing=gradient_of_inducing
            )
        else:
            self._covariance = formulas
        self.names: tuple[Key, ...] = tuple(
            name
            for name, value in values.items()
            if any(depends_on(graph, value) for graph in [*covariances, mean])
        )

    def read_inputs(self, gp: Any) -> None:
        """Read the inputs again, after the model's data have changed."""
        self.inputs = _inputs(gp, self.name)

    def thread_copies(self, count: int) -> list[LatentProcess]:
        """Return this object and up to ``count`` − 1 copies, one for each thread."""
        found = [self]
        for covariance in self._covariance.thread_copies(count)[1:]:
            other = copy(self)
            other._covariance = covariance
            found.append(other)
        return found

    def cov(self, point: Point, Z: Array) -> Array:
        """Return K(Z, Z), without jitter."""
        return self._covariance.cov(point, Z)

    def cross(self, point: Point, X: Array, Z: Array) -> tuple[Array, Array]:
        """Return K(X, Z) and the diagonal of K(X, X)."""
        return self._covariance.cross(point, X, Z)

    def pull_cov(self, point: Point, Z: Array, weights: Array) -> Pulled:
        """Return the derivatives of K(Z, Z), see :class:`.ProcessPrior`."""
        return self._covariance.pull_cov(point, Z, weights)

    def pull_cross(self, point: Point, X: Array, Z: Array, weights: tuple[Array, Array]) -> Pulled:
        """Return the derivatives of K(X, Z) and diag K(X, X), see :class:`.ProcessPrior`."""
        return self._covariance.pull_cross(point, X, Z, weights)

    def mean(self, point: Point, X: Array) -> Array:
        """Return the prior mean at X."""
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
