"""An observed variable or potential, whose density depends on predictors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pymc.model import Model
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.errors import AugmentationError
from pymc_augconj.likelihoods.contract import MultiLikelihood
from pymc_augconj.recognition.graph.derive import log_density_of
from pymc_augconj.recognition.latents.innovations import GaussianVariable, variable_in_innovations

__all__ = ["ObservedGraph"]


@dataclass(eq=False)
class ObservedGraph:
    """One observed variable or potential, matched.

    Attributes
    ----------
    variable : Variable
        The observed random variable, or the potential.
    value : Variable
        Its observations. A potential has none: its value says which of its terms an entry of its
        density belongs to.
    likelihood : MultiLikelihood
    predictors : list of TensorVariable
        Graphs of η, each of shape (size,), in the innovations.
    params : dict
        Graphs of the likelihood's parameters: scalars, or of shape (size,).
    shape : tuple of int
        Shape of the observations. A vector of counts is one of them.
    density : Variable, optional
        Graph of a potential's log density, elementwise, in the innovations; that of an observed
        variable is derived from its distribution.
    refusal : AugmentationError, optional
        What an engine that needs an augmentation raises; None where there is one.
    y : Variable, optional
        Graph of what engines take for the observations, where that is not ``value``.
    names : tuple of str
        What reports call the predictors, where there are several.
    is_prior : bool
        As in :class:`~pymc_augconj.model.Site`.
    """

    variable: Variable
    value: Variable
    likelihood: MultiLikelihood
    predictors: list[TensorVariable]
    params: dict[str, TensorVariable]
    shape: tuple[int, ...]
    density: Variable | None = None
    refusal: AugmentationError | None = None
    y: Variable | None = None
    names: tuple[str, ...] = ()
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

    def log_density(self, model: Model, latents: Sequence[GaussianVariable]) -> Variable | None:
        """Return the graph of PyMC's log density, elementwise, in the innovations."""
        if self.density is not None:
            return self.density
        within = variable_in_innovations(model, self.variable, latents)
        return log_density_of(model, within, self.value)
