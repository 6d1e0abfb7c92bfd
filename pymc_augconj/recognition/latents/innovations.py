"""A model in the innovations of its Gaussian latent variables.

Every Gaussian latent is a function of a centred latent, its innovation u ~ N(0, K(θ)), with a flat
symbolic input. Its value is mean + u, or linear in u, and the mean may contain other latents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.transforms import Transform
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.block import GaussianStructure, LatentBlock
from pymc_augconj.linalg.state_space import MarkovInputs
from pymc_augconj.point import Argument, Point, PointMap
from pymc_augconj.python_mode.tape import TapeBuilder
from pymc_augconj.recognition.graph.dependence import ModelIndex, ValueSpace, static_shape
from pymc_augconj.recognition.graph.rewrite import Variables, substitute, without_guards
from pymc_augconj.typing import Array, Index

from .precision import PrecisionEntries, PrecisionGraph


@dataclass(eq=False)
class GaussianVariable(GaussianStructure):
    """A free variable that is Gaussian given its parents.

    Fields without a comment are as in :class:`~pymc_augconj.block.LatentBlock`.
    """

    #: PyMC's random variable and its value variable.
    rv: Variable
    value: Variable

    name: str
    form: str
    kind: str
    shape: tuple[int, ...]
    #: Graph of the standard deviations (flat), of K, or of its lower Cholesky factor.
    scale: Variable
    #: Graph of the prior mean, of shape ``shape``; None for zero or a whitened variable.
    mean: Variable | None = None
    #: Whether the values are independent vectors along the last axis, with one covariance.
    of_vectors: bool = False
    #: The product chol(K) v that a whitened variable enters.
    product: Variable | None = None
    #: For a variable with a precision matrix: ``scale`` is the graph of its entries.
    precision: PrecisionGraph | None = None
    #: Linear transform of the variable that the point holds, of shape ``shape``.
    transform: Transform | None = None
    #: Transform of its values, one by one, that is not linear.
    entry_transform: Transform | None = None
    #: Rows and columns, shape (2, E), of the entries of a precision matrix in ``scale``.
    entries: Index | None = None
    order: Index | None = None
    inputs: MarkovInputs | None = None
    grid: tuple[int, ...] = ()
    #: Graph of a number that multiplies the innovation in the replaced variable.
    factor: Variable | None = None
    #: Graph of PyMC's log density minus the normal log density, if that is not zero.
    log_factor: Variable | None = None
    #: Graph of the normal log density at its mean, from PyMC's own density.
    log_peak: Variable | None = None
    is_flat: bool = False
    #: Whether it has a prior density besides the normal or flat one.
    has_prior: bool = False
    size: int = field(init=False)
    copies: int = field(init=False)
    #: The flat innovation u.
    input: TensorVariable = field(init=False)
    #: Argument of other variables' means: the flat value, or u for a whitened variable.
    value_input: TensorVariable = field(init=False)

    def __post_init__(self) -> None:
        n = int(np.prod(self.shape))
        self.copies = int(np.prod(self.shape[:-1])) if self.of_vectors else 1
        self.size = self.shape[-1] if self.of_vectors else n
        self.input = pt.tensor(f"u[{self.name}]", dtype="float64", shape=(n,))
        self.value_input = pt.tensor(f"value[{self.name}]", dtype="float64", shape=(n,))

    @classmethod
    def of(
        cls, model: ModelIndex, rv: Variable, form: str, kind: str, scale: Variable, **more: Any
    ) -> GaussianVariable:
        """Return the variable of ``rv``, with its name and shape unless ``more`` has others."""
        fields: Any = {"name": rv.name, "shape": static_shape(rv)} | more
        return cls(rv, model.rvs_to_values[rv], form=form, kind=kind, scale=scale, **fields)

    @property
    def whitened(self) -> bool:
        """Whether the variable is v of chol(K) v."""
        return self.product is not None

    @property
    def replaced(self) -> Variable:
        """The variable of the graph that the innovation replaces."""
        return self.rv if self.product is None else self.product

    def shaped(self, flat: TensorVariable) -> Variable:
        """Return ``flat`` in the shape and type of the replaced variable."""
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


#: Variables that are, or may be, the latents of a model.
Latents = Sequence[GaussianVariable]


def in_innovations(
    model: ModelIndex, graphs: Variables, latents: Latents, *, of_values: bool = False
) -> list[Variable]:
    """Return the graphs with every latent replaced by mean + innovation.

    With ``of_values`` the latents are replaced by their ``value_input`` instead, the argument of
    prior means. Observed variables are replaced by their data, for any dependence of their own.
    Guards against rounding are removed.
    """
    graphs = without_guards(graphs)
    fixed = {**model.given_data, **{latent.replaced: latent.replaced for latent in latents}}
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


def variable_in_innovations(model: ModelIndex, rv: Variable, latents: Latents) -> Variable:
    """Return an observed random variable whose distribution is in terms of the innovations."""
    inputs = in_innovations(model, rv.owner.inputs, latents)
    if all(new is old for new, old in zip(inputs, rv.owner.inputs, strict=True)):
        return rv
    return rv.owner.clone_with_new_inputs(inputs).outputs[rv.owner.outputs.index(rv)]


def in_variables(graphs: Variables, latents: Latents) -> list[Variable]:
    """Return the graphs with every innovation replaced by value − mean, or by chol(K) v."""
    replacements = {}
    for latent in latents:
        flat = latent.flat()
        if latent.mean is not None:
            flat -= latent.mean.ravel()
        flat = pt.specify_shape(flat.astype("float64"), latent.input.type.shape)
        replacements[latent.input] = flat
    return substitute(graphs, replacements)


_DIRECTION = Argument("direction")
# Facts that a block shares with its variable.
_SAME = (
    *("name", "form", "kind", "shape", "size", "copies"),
    *("whitened", "order", "inputs", "grid", "is_flat"),
)

# A block's scale as a function of the point, and its pullback.
Scale = tuple[PointMap[Array], Callable[[Point, Array], dict[str, Array]]]


def read_block(latent: GaussianVariable, latents: Latents, space: ValueSpace) -> LatentBlock:
    """Return one of the ``latents`` with its covariance and mean as functions of the point."""
    mean = log_peak = None
    others = [other for other in latents if other is not latent]
    if latent.log_peak is not None:
        # It does not depend on the other latents, though its graph may.
        (graph,) = in_innovations(space.model, [latent.log_peak], others, of_values=True)
        zeros = {o.value_input: pt.zeros(o.value_input.type.shape) for o in others}
        log_peak = space.function(*substitute([graph], zeros))
    if latent.mean is not None:
        graph = latent.mean.ravel().astype("float64")
        (graph,) = in_innovations(space.model, [graph], others, of_values=True)
        mean = space.function(graph, {Argument("value", o.name): o.value_input for o in others})
    graph, entries = latent.precision, latent.entries
    scale, pullback = _scale(latent, space)
    same = {name: getattr(latent, name) for name in _SAME}
    return LatentBlock(
        **same,
        value_name=latent.value.name,
        scale=scale,
        scale_pullback=pullback,
        mean=mean,
        entries=entries if graph is None else np.stack([graph.rows, graph.cols]),
        log_factor=_log_factor(latent, space),
        log_peak=log_peak,
        transform=None if latent.entry_transform is None else _EntryTransform(latent, space),
    )


def _scale(latent: GaussianVariable, space: ValueSpace) -> Scale:
    """Return the scale as a function of the point, and its pullback."""
    if (graph := latent.precision) is not None:
        pull, of_source = space.pullback(graph.source), graph.pull_source
        entries = PrecisionEntries(graph, space, latent.name)
        return entries, lambda point, weights: pull(point, of_source(weights))
    scale = latent.scale.astype("float64")
    return space.function(scale), space.pullback(scale)


def _log_factor(
    latent: GaussianVariable, space: ValueSpace
) -> Callable[[Point], tuple[float, dict[str, Array]]] | None:
    """Return ``point -> (value, {name: derivative})``, None of a constant."""
    if latent.log_factor is None or isinstance(latent.log_factor, Constant):
        return None
    value, gradient = space.function(latent.log_factor), space.gradient(latent.log_factor)
    return lambda point: (float(value(point)), gradient(point))


class _EntryTransform:
    """See :class:`~pymc_augconj.block.EntryTransform`."""

    def __init__(self, latent: GaussianVariable, space: ValueSpace) -> None:
        transform, rv = latent.entry_transform, latent.rv
        assert transform is not None
        x = pt.tensor("x", dtype="float64", shape=(latent.total_size,))
        shaped, inputs = x.reshape(latent.shape), rv.owner.inputs
        entry = transform.forward(shaped, *inputs)
        jacobian = transform.log_jac_det(entry, *inputs).sum()
        graphs = entry.ravel(), transform.backward(shaped, *inputs).ravel(), jacobian
        self._entry, self._value, self._jacobian = (
            space.function(graph, {_DIRECTION: x}) for graph in graphs
        )

    def entry(self, value: Array) -> Array:
        return self._entry({_DIRECTION: value})

    def value(self, entry: Array) -> Array:
        return self._value({_DIRECTION: entry})

    def log_jacobian(self, value: Array) -> float:
        return float(self._jacobian({_DIRECTION: value}))

    def on_tape(self, tape: TapeBuilder, value: Index) -> tuple[Index, Index]:
        entry, jacobian = (
            tape.evaluate(function, {_DIRECTION: value})
            for function in (self._entry, self._jacobian)
        )
        return entry, jacobian
