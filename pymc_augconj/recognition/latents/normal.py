"""Finds the Gaussian latent variables of a model, and writes the model in their innovations.

Every Gaussian latent is expressed by an innovation u ~ N(0, K(θ)) with a flat symbolic input:

* ``pm.Normal`` and ``pm.MvNormal``: value = mean + u; the mean may contain other latents, so
  hierarchies of Gaussians (``alpha ~ N(mu_alpha, tau)``) become jointly Gaussian;
* ``pm.ZeroSumNormal``: its value on PyMC's unconstrained scale, of one entry less an axis, has
  independent normal entries, and the variable is linear in it;
* ``gp.Latent.prior`` in its default form: the free variable is v ~ N(0, I) and u = chol(K) v
  replaces the product, so that no Cholesky factor stands in any graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.lib.array_utils import normalize_axis_tuple
from pymc.distributions.transforms import ZeroSumTransform
from pymc.logprob.transforms import Transform
from pymc.model import Model
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Cast, Second
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.math import Dot
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.recognition.graph.dependence import static_shape
from pymc_augconj.recognition.graph.rewrite import substitute

from .precision import PrecisionGraph

# The factor behind chol(K): v as a vector or a column, or each row of v as a column.
_COLUMNS = ((0,), (0, "x"), (1, 0))

__all__ = [
    "GaussianVariable",
    "find_gaussian_variables",
    "flat_inputs",
    "in_innovations",
    "variable_in_innovations",
]


@dataclass(eq=False)
class GaussianVariable:
    """A free variable that is Gaussian given its parents.

    Attributes
    ----------
    rv, value : Variable
        PyMC's random variable and its value variable.
    name, form : str
        As in :class:`~pymc_augconj.model.LatentBlock`.
    replaced : Variable
        What the innovation replaces in the graph: ``rv`` itself, or the product chol(K) v.
    shape : tuple of int
        Shape of its entry in the point.
    size, copies, whitened, kind
        As in :class:`~pymc_augconj.model.LatentBlock`.
    mean : Variable or None
        Graph of the prior mean, of shape ``shape``; None for a whitened variable.
    scale : Variable
        Graph of the standard deviations (flat), or of K.
    input : TensorVariable
        The flat innovation u.
    value_input : TensorVariable
        What other variables' means see: the flat value, or u for a whitened variable.
    precision : PrecisionGraph, optional
        Where the variable is known by its precision matrix: ``scale`` is the graph of its entries.
    transform : Transform, optional
        Where the point holds a linear transform of the variable, of shape ``shape``: its inverse
        gives the variable.
    log_factor : Variable, optional
        Graph of what PyMC's log density of the value has beside the normal log density, where
        that is not zero.
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

    @property
    def total_size(self) -> int:
        """Length of the innovation."""
        return self.size * self.copies

    def shaped(self, flat: TensorVariable) -> Variable:
        """Return ``flat`` in the shape and type of the variable that it replaces."""
        if self.whitened and self.replaced.ndim == 2:
            shaped = flat.reshape((self.copies, self.size)).T
        else:
            shaped = flat.reshape(self.shape) if len(self.shape) != 1 else flat
        if self.transform is not None:
            shaped = self.transform.backward(shaped, *self.rv.owner.inputs)
        return pt.specify_shape(shaped, self.replaced.type.shape).astype(self.replaced.dtype)

    def flat(self) -> Variable:
        """Return the flat value, or innovation of a whitened variable, in terms of ``replaced``."""
        if self.whitened:
            return self.replaced.T.ravel() if self.replaced.ndim == 2 else self.replaced.ravel()
        if self.transform is not None:
            return self.transform.forward(self.replaced, *self.rv.owner.inputs).ravel()
        return self.replaced.ravel()

    def innovation(self) -> Variable:
        """Return the replacement for the variable, in terms of its innovation."""
        shaped = self.shaped(self.input)
        return shaped if self.mean is None else self.mean + shaped


def find_gaussian_variables(
    model: Model, roots: list[Variable], *, transformed: bool = False
) -> list[GaussianVariable]:
    """Return the free variables whose distribution is Normal or MvNormal.

    Parameters
    ----------
    model : pymc.Model
    roots : list of Variable
        The graphs in which the latents act (parameters of observed variables, potentials and
        other random variables).
    transformed : bool
        Whether variables with a transform are read as if they had none.
    """
    found: list[GaussianVariable | None] = []
    for rv in model.free_RVs:
        op_name = type(rv.owner.op).__name__
        transform = model.rvs_to_transforms[rv]
        if op_name == "ZeroSumNormalRV" and isinstance(transform, ZeroSumTransform):
            found.append(_from_zero_sum(model, rv, transform))
        if transform is not None and not transformed:
            continue
        if op_name == "NormalRV":
            found.append(_from_normal(model, rv, roots))
        elif op_name == "MvNormalRV":
            found.append(_from_multivariate_normal(model, rv))
    return [variable for variable in found if variable is not None]


def flat_inputs(name: str, shape: tuple[int, ...]) -> tuple[TensorVariable, TensorVariable]:
    """Return symbols for the innovation and for the value of a variable, both flat."""
    flat = (int(np.prod(shape)),)
    return (
        pt.tensor(f"u[{name}]", dtype="float64", shape=flat),
        pt.tensor(f"value[{name}]", dtype="float64", shape=flat),
    )


def _from_normal(model: Model, rv: Variable, roots: list[Variable]) -> GaussianVariable:
    mu, sigma = rv.owner.op.dist_params(rv.owner)
    whitened = _from_whitened(model, rv, mu, sigma, roots)
    if whitened is not None:
        return whitened
    shape = static_shape(rv)
    size = int(np.prod(shape))
    u, value_input = flat_inputs(rv.name, shape)
    return GaussianVariable(
        rv=rv,
        value=model.rvs_to_values[rv],
        name=rv.name,
        form="normal",
        replaced=rv,
        shape=shape,
        size=size,
        copies=1,
        whitened=False,
        kind="diagonal",
        mean=None if _is_constant(mu, 0.0) else pt.broadcast_to(mu, shape),
        scale=pt.broadcast_to(sigma, shape).ravel(),
        input=u,
        value_input=value_input,
    )


def _from_zero_sum(model: Model, rv: Variable, transform: ZeroSumTransform) -> GaussianVariable:
    value = model.rvs_to_values[rv]
    (sigma, _) = rv.owner.op.dist_params(rv.owner)
    full = static_shape(rv)
    axes = normalize_axis_tuple(transform.zerosum_axes, len(full))
    shape = tuple(n - (axis in axes) for axis, n in enumerate(full))
    u, value_input = flat_inputs(value.name, shape)
    return GaussianVariable(
        rv=rv,
        value=value,
        name=value.name,
        form="zero-sum normal",
        replaced=rv,
        shape=shape,
        size=int(np.prod(shape)),
        copies=1,
        whitened=False,
        kind="diagonal",
        mean=None,
        scale=pt.broadcast_to(sigma, shape).ravel(),
        input=u,
        value_input=value_input,
        transform=transform,
    )


def _from_multivariate_normal(model: Model, rv: Variable) -> GaussianVariable | None:
    mu, cov = rv.owner.op.dist_params(rv.owner)[:2]
    while mu.owner is not None and isinstance(getattr(mu.owner.op, "scalar_op", None), Second):
        # PyMC gives the mean the shape of a column of K, whose values it does not use.
        mu = mu.owner.inputs[1]
    batch = tuple(range(cov.ndim - 2))
    if not all(cov.type.broadcastable[axis] for axis in batch):
        # A variable with several covariance matrices is recognised by its density.
        return None
    if batch:
        cov = cov.squeeze(batch)
    shape = static_shape(rv)
    u, value_input = flat_inputs(rv.name, shape)
    return GaussianVariable(
        rv=rv,
        value=model.rvs_to_values[rv],
        name=rv.name,
        form="multivariate normal",
        replaced=rv,
        shape=shape,
        size=shape[-1],
        copies=int(np.prod(shape[:-1])),
        whitened=False,
        kind="dense",
        mean=None if _is_constant(mu, 0.0) else pt.broadcast_to(mu, shape),
        scale=cov,
        input=u,
        value_input=value_input,
    )


def _from_whitened(
    model: Model, rv: Variable, mu: Variable, sigma: Variable, roots: list[Variable]
) -> GaussianVariable | None:
    """Return the variable as the v of f = m + chol(K) v, if all its uses are that one product."""
    if rv.ndim not in (1, 2) or not (_is_constant(mu, 0.0) and _is_constant(sigma, 1.0)):
        return None
    users: dict[Variable, list] = {}
    for node in {var.owner for var in ancestors(roots) if var.owner is not None}:
        for parent in set(node.inputs):
            users.setdefault(parent, []).append(node)
    # Follow v through the transposes that gp.prior applies, to the products it enters.
    axes = {rv: tuple(range(rv.ndim))}
    products = set()
    frontier = [rv]
    while frontier:
        variable = frontier.pop()
        for node in users.get(variable, ()):
            if _is_product_with_cholesky(node, variable) and axes[variable] in _COLUMNS:
                products.add(node)
                continue
            moved = _moved_axes(node, axes[variable])
            if moved is None:
                return None
            if node.outputs[0] not in axes:
                axes[node.outputs[0]] = moved
                frontier.append(node.outputs[0])
    if len(products) != 1:
        return None
    node = products.pop()
    cov = node.inputs[0].owner.inputs[0]
    shape = static_shape(rv)
    product = node.outputs[0]
    label = rv.name.removesuffix("_rotated_")
    u, value_input = flat_inputs(label, shape)
    return GaussianVariable(
        rv=rv,
        value=model.rvs_to_values[rv],
        name=label,
        form="GP (whitened)",
        replaced=product,
        shape=shape,
        size=shape[-1],
        copies=int(np.prod(shape[:-1])),
        whitened=True,
        kind="dense",
        mean=None,
        scale=cov,
        input=u,
        value_input=value_input,
    )


def _is_product_with_cholesky(node: Apply, variable: Variable) -> bool:
    op = getattr(node.op, "core_op", node.op)
    if not isinstance(op, Dot) or node.inputs[1] is not variable:
        return False
    factor = node.inputs[0].owner
    if factor is None:
        return False
    op = getattr(factor.op, "core_op", factor.op)
    return isinstance(op, Cholesky) and op.lower and factor.inputs[0].ndim == 2


def _moved_axes(node: Apply, axes: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return the axis of v for each axis of the node's output; None if the node does more."""
    if isinstance(node.op, DimShuffle):
        return tuple("x" if axis == "x" else axes[axis] for axis in node.op.new_order)
    return axes if isinstance(node.op, ViewOp) else None


def _is_constant(graph: Variable, value: float) -> bool:
    """Return whether ``graph`` is ``value`` throughout, whatever its shape."""
    while graph.owner is not None:
        op = graph.owner.op
        scalar_op = getattr(op, "scalar_op", None)
        if isinstance(scalar_op, Second):
            graph = graph.owner.inputs[1]
        elif isinstance(op, DimShuffle | Alloc) or isinstance(scalar_op, Cast):
            graph = graph.owner.inputs[0]
        else:
            return False
    return isinstance(graph, Constant) and bool(np.all(np.asarray(graph.data) == value))


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
    depend on themselves.
    """
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
