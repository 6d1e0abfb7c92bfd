"""An observed variable or potential, whose density depends on predictors, as flat graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.errors import AugmentationError, RecognitionError
from pymc_augconj.likelihoods.base import Density
from pymc_augconj.recognition.graph.dependence import ModelIndex, static_shape
from pymc_augconj.recognition.graph.derive import log_density_of
from pymc_augconj.recognition.latents.innovations import GaussianVariable, variable_in_innovations


@dataclass(eq=False)
class ObservedGraph:
    """One observed variable or potential, matched to a likelihood."""

    variable: Variable
    #: Its observations; for a potential, the number of the term of each entry of its density.
    value: Variable
    likelihood: Density
    #: Graphs of η, each of shape (size,), in the innovations.
    predictors: list[TensorVariable]
    #: Graphs of the likelihood's parameters: scalars, or of shape (size,).
    params: dict[str, TensorVariable]
    #: Shape of the observations. A vector of counts is one of them.
    shape: tuple[int, ...]
    #: Graph of a potential's log density, elementwise, in the innovations; that of an observed
    #: variable is derived from its distribution.
    density: Variable | None = None
    #: The error of an engine that needs an augmentation; None if there is one.
    refusal: AugmentationError | None = None
    #: Graph of the observations for engines, if that is not ``value``.
    y: Variable | None = None
    #: Names of several predictors in reports.
    names: tuple[str, ...] = ()
    #: As in :class:`~pymc_augconj.model.Site`.
    is_prior: bool = False

    @property
    def size(self) -> int:
        """Number of observations."""
        return int(np.prod(self.shape))

    @property
    def label(self) -> str:
        """Its name in messages."""
        name = self.variable.name
        return f"prior of {name!r}" if self.is_prior else self.likelihood.label(name)

    def log_density(
        self, model: ModelIndex, latents: Sequence[GaussianVariable]
    ) -> Variable | None:
        """Return the graph of PyMC's log density, elementwise, in the innovations."""
        if self.density is not None:
            return self.density
        within = variable_in_innovations(model, self.variable, latents)
        return log_density_of(model, within, self.value)


def flatten(
    graph: TensorVariable, shape: tuple[int, ...], rv: Variable, what: str = "predictor"
) -> TensorVariable:
    """Return ``graph`` broadcast to one entry per observation, of shape (size,)."""
    graph = graph.astype("float64")
    found = graph.type.shape
    if None in found:
        found = static_shape(graph)
    try:
        fits = np.broadcast_shapes(found, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise RecognitionError(
            f"observed variable {rv.name!r}: expected a {what} of the observations' shape {shape}, "
            f"found shape {found}; index it (f[idx]) so that it has one entry per observation"
        )
    if found == shape and len(shape) == 1:
        return pt.specify_shape(graph, shape)
    return pt.broadcast_to(graph, shape).reshape((int(np.prod(shape)),))


def flatten_parameter(
    graph: Variable, shape: tuple[int, ...], rv: Variable, name: str
) -> TensorVariable:
    """Return a parameter as one number, or as one entry per observation."""
    graph = pt.as_tensor(graph).astype("float64")
    if all(graph.type.broadcastable):
        return graph.reshape(())
    return flatten(graph, shape, rv, f"parameter {name!r}")
