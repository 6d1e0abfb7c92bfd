"""A model in the innovations of its Gaussian latent variables.

Every Gaussian latent is expressed by an innovation u ~ N(0, K(θ)) with a flat symbolic input; its
value is mean + u, or linear in u, and the mean may contain other latents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.transforms import Transform
from pymc.model import Model
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.block import GaussianStructure
from pymc_augconj.linalg.state_space import MarkovInputs
from pymc_augconj.recognition.graph.rewrite import substitute, without_guards
from pymc_augconj.typing import Index

from .precision import PrecisionGraph

__all__ = ["GaussianVariable", "flat_inputs", "in_innovations", "variable_in_innovations"]


@dataclass(eq=False)
class GaussianVariable(GaussianStructure):
    """A free variable that is Gaussian given its parents.

    Attributes
    ----------
    rv, value : Variable
        PyMC's random variable and its value variable.
    name, form : str
        As in :class:`~pymc_augconj.block.LatentBlock`.
    replaced : Variable
        What the innovation replaces in the graph: ``rv`` itself, or the product chol(K) v.
    shape : tuple of int
        Shape of its entry in the point.
    size, copies, whitened, kind
        As in :class:`~pymc_augconj.block.LatentBlock`.
    mean : Variable or None
        Graph of the prior mean, of shape ``shape``; None for a whitened variable.
    scale : Variable
        Graph of the standard deviations (flat), of K, or of its lower Cholesky factor.
    input : TensorVariable
        The flat innovation u.
    value_input : TensorVariable
        What other variables' means see: the flat value, or u for a whitened variable.
    precision : PrecisionGraph, optional
        Where the variable is known by its precision matrix: ``scale`` is the graph of its entries.
    transform : Transform, optional
        Where the point holds a linear transform of the variable, of shape ``shape``: its inverse
        gives the variable.
    entries : ndarray of int, shape (2, E), optional
        Rows and columns of the entries of a precision matrix that is given by ``scale``.
    inputs : MarkovInputs, optional
        As in :class:`~pymc_augconj.block.LatentBlock`.
    factor : Variable, optional
        Graph of a number that multiplies the innovation in what is replaced.
    log_factor : Variable, optional
        Graph of what PyMC's log density of the value has beside the normal log density, where
        that is not zero.
    log_peak : Variable, optional
        Graph of the normal log density at its mean, as PyMC's own density has it.
    is_flat : bool
        As in :class:`~pymc_augconj.block.LatentBlock`.
    has_prior : bool
        Whether its prior is a density of its own beside the normal or flat one.
    entry_transform : Transform, optional
        Where the point holds a transform of its values, one by one, that is not linear.
    """

    rv: Variable
    value: Variable
    name: str
    form: str
    replaced: Variable
    shape: tuple[int, ...]
    size: int
    copies: int
    whitened: bool
    kind: str
    mean: Variable | None
    scale: Variable
    input: TensorVariable
    value_input: TensorVariable
    precision: PrecisionGraph | None = None
    transform: Transform | None = None
    log_factor: Variable | None = None
    log_peak: Variable | None = None
    entries: Index | None = None
    inputs: MarkovInputs | None = None
    factor: Variable | None = None
    is_flat: bool = False
    has_prior: bool = False
    entry_transform: Transform | None = None

    def shaped(self, flat: TensorVariable) -> Variable:
        """Return ``flat`` in the shape and type of the variable that it replaces."""
        if self.whitened and self.replaced.ndim == 2:
            shaped = flat.reshape((self.copies, self.size)).T
        else:
            shaped = flat.reshape(self.shape) if len(self.shape) != 1 else flat
        if self.transform is not None:
            shaped = self.transform.backward(shaped, *self.rv.owner.inputs)
        if self.factor is not None:
            shaped = self.factor * shaped
        return pt.specify_shape(shaped, self.replaced.type.shape).astype(self.replaced.dtype)

    def flat(self) -> Variable:
        """Return the flat value, or innovation of a whitened variable, in terms of ``replaced``."""
        if self.factor is not None:
            return (self.replaced / self.factor).ravel()
        if self.whitened:
            return self.replaced.T.ravel() if self.replaced.ndim == 2 else self.replaced.ravel()
        if self.transform is not None:
            return self.transform.forward(self.replaced, *self.rv.owner.inputs).ravel()
        return self.replaced.ravel()

    def innovation(self) -> Variable:
        """Return the replacement for the variable, in terms of its innovation."""
        shaped = self.shaped(self.input)
        return shaped if self.mean is None else self.mean + shaped


def flat_inputs(name: str, shape: tuple[int, ...]) -> tuple[TensorVariable, TensorVariable]:
    """Return symbols for the innovation and for the value of a variable, both flat."""
    flat = (int(np.prod(shape)),)
    return (
        pt.tensor(f"u[{name}]", dtype="float64", shape=flat),
        pt.tensor(f"value[{name}]", dtype="float64", shape=flat),
    )


def in_innovations(
    model: Model,
    graphs: Sequence[Variable],
    latents: Sequence[GaussianVariable],
    *,
    of_values: bool = False,
) -> list[Variable]:
    """Return the graphs with every latent replaced by mean + innovation.

    With ``of_values`` the latents are replaced by their ``value_input`` instead, which is what a
    prior mean is a function of. Observed variables are the data they were given, whatever they
    depend on themselves. Guards against rounding are dropped.
    """
    graphs = without_guards(graphs)
    # Free variables keep their identity, though their priors may depend on data.
    fixed: dict[Variable, Variable] = {rv: rv for rv in model.free_RVs}
    fixed |= {latent.replaced: latent.replaced for latent in latents}
    fixed |= {rv: model.rvs_to_values[rv] for rv in model.observed_RVs}
    if of_values:
        values = {latent.replaced: latent.shaped(latent.value_input) for latent in latents}
        return substitute(graphs, fixed | values)
    # A latent whose mean contains other latents is replaced first, and those in its mean next.
    replaced = {latent.replaced: latent for latent in latents}

    def depth(latent: GaussianVariable) -> int:
        if latent.mean is None:
            return 0
        return sum(var in replaced for var in ancestors([latent.mean]))

    for latent in sorted(latents, key=depth, reverse=True):
        graphs = substitute(graphs, fixed | {latent.replaced: latent.innovation()})
    return substitute(graphs, fixed)


def variable_in_innovations(
    model: Model, rv: Variable, latents: Sequence[GaussianVariable]
) -> Variable:
    """Return an observed random variable whose distribution is in terms of the innovations."""
    inputs = in_innovations(model, rv.owner.inputs, latents)
    if all(new is old for new, old in zip(inputs, rv.owner.inputs, strict=True)):
        return rv
    return rv.owner.clone_with_new_inputs(inputs).outputs[rv.owner.outputs.index(rv)]
