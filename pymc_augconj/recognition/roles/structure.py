"""The roles of the variables, and whether a free variable can be drawn from its distribution.

A variable on which no observation depends is drawn, if PyMC's draws follow the density that PyMC's
samplers use. Otherwise the variable is sampled by its density.

On imputed observations and ``gp.conditional`` nothing observed depends. Given all other variables
they are drawn exactly from their own distribution, in one block with the latents, whose update
integrates them out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.distributions.custom import CustomDistRV, default_not_implemented
from pymc.distributions.distribution import PartialObservedRV
from pymc.distributions.multivariate import CARRV, ICARRV
from pymc.distributions.transforms import CholeskyCovPacked
from pymc.model import Model
from pytensor.graph.basic import Variable
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.tensor.random.type import RandomGeneratorType
from pytensor.tensor.variable import TensorConstant

from pymc_augconj.errors import RecognitionError
from pymc_augconj.model import ColumnScales, EntryDensities, ForwardVariable, Hyperparameter
from pymc_augconj.point import Argument, Point
from pymc_augconj.recognition.graph.affine import depends_on
from pymc_augconj.recognition.graph.dependence import ModelIndex, ValueSpace
from pymc_augconj.recognition.graph.derive import log_density_of
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.graph.rewrite import substitute
from pymc_augconj.recognition.latents.innovations import Latents
from pymc_augconj.recognition.observed.observed_graph import ObservedGraph


@dataclass(eq=False)
class Structure:
    """The roles of the model's variables."""

    #: Gaussian variables that every predictor is affine in.
    latents: Latents
    #: Every other free random variable that the observations depend on.
    hyperparameters: list[Variable]
    #: Free random variables that only predictions need, in topological order.
    forward: list[Variable]
    #: Observed variables and potentials that depend on hyperparameters alone.
    factors: list[Variable]
    #: Reasons, see :attr:`~pymc_augconj.model.Hyperparameter.why_not_optimised`, by name.
    held: dict[str, str]
    #: Gaussian variables that cannot be latents together with these.
    alternates: tuple[str, ...] = ()


def forward_variables(model: ModelIndex) -> tuple[list[Variable], dict[str, str]]:
    """Return the free variables that are drawn from their distributions given the rest.

    No observation depends on them. Also returns, by name and with the reason, variables on which
    no observation depends but that cannot be drawn. Raises RecognitionError for an improper prior.
    """
    needed = model.with_ancestors([*model.observed_RVs, *model.potentials])
    undrawn: dict[Variable, str] = {}
    for rv in model.free_RVs:
        if rv not in needed and (why := _why_not_drawn(model, rv)) is not None:
            _refuse_improper(model, rv)
            undrawn[rv] = why
    needed |= model.with_ancestors(undrawn)
    # model.free_RVs is in the order of definition, which is a topological order.
    forward = [rv for rv in model.free_RVs if rv not in needed]
    return forward, {rv.name: why for rv, why in undrawn.items()}


def read_hyperparameters(
    latents: Latents,
    matched: Sequence[ObservedGraph],
    predictors: Variable,
    space: ValueSpace,
    point: Point,
    held: Mapping[str, str],
    vectors: Mapping[str, tuple[EntryDensities | None, ColumnScales | None]],
    alone: bool,
) -> tuple[Hyperparameter, ...]:
    """Return the hyperparameters, each with its role.

    ``predictors`` is the graph of the stacked η in value variables; ``held`` has the reasons why
    some must not be optimised, by name; ``vectors`` has facts about the entries of vectors, by
    their names in the point, which may be any point. One step that is ``alone`` samples all.
    """
    in_values = space.model.in_values
    covariances = in_values([latent.scale for latent in latents])
    # A latent's value depends on its mean even if no predictor does: if no observation uses an
    # entry, or if means cancel in a difference.
    means = [latent.mean for latent in latents if latent.mean is not None]
    affine = [predictors, *in_values(means)]
    augmented: list[Variable] = []
    plain: list[Variable] = []
    for observed in matched:
        likelihood = observed.likelihood
        exact = likelihood.can_augment and not likelihood.has_auxiliary
        group = plain if exact else augmented
        group.extend(observed.params.values())
    augmented, plain = in_values(augmented), in_values(plain)
    found = []
    for rv in space.hyperparameters:
        value = space.model.rvs_to_values[rv]
        in_prior = depends_on([*covariances, *plain], value)
        if depends_on(augmented, value):
            role = "both" if in_prior else "likelihood"
        elif in_prior or depends_on(affine, value):
            role = "prior"
        else:
            role = "none"
        entries, columns = vectors.get(value.name, (None, None))
        found.append(
            Hyperparameter(
                name=rv.name,
                value_name=value.name,
                shape=tuple(point[value.name].shape),
                continuous=value.dtype.startswith("float"),
                role=role,
                why_not_optimised=held.get(rv.name),
                entries=entries,
                columns=columns,
                # Steps that share values have them as PyMC does.
                factor_order=_factor_order(space.model, rv) if alone else 0,
            )
        )
    return tuple(found)


def _factor_order(model: ModelIndex, rv: Variable) -> int:
    """Return the order of a packed Cholesky factor; 0 of other variables."""
    size = rv.type.shape[0] if rv.type.ndim == 1 else None
    if size is None or not isinstance(model.rvs_to_transforms[rv], CholeskyCovPacked):
        return 0
    return (math.isqrt(8 * size + 1) - 1) // 2


def _why_not_drawn(model: ModelIndex, rv: Variable) -> str | None:
    """Return the reason why draws of ``rv`` do not follow its density; None if they do."""
    if not model.covers_support(rv):
        return "its transform= changes its distribution"
    for op in _ops_of(model, rv):
        if isinstance(op, CARRV):
            return "PyMC's draws of a CAR do not have the covariance of its density"
        if isinstance(op, PartialObservedRV):
            return "PyMC keeps it together with the observed entries"
        if isinstance(op, FlatRV | HalfFlatRV | ICARRV) or _is_without_random(op):
            return f"PyMC cannot draw from {type(op).__name__.removesuffix('RV')}"
    return None


def _refuse_improper(model: ModelIndex, rv: Variable) -> None:
    """Refuse a variable with an improper distribution on which no observation depends."""
    if isinstance(rv.owner.op, FlatRV | HalfFlatRV) and model.covers_support(rv):
        raise RecognitionError(
            f"variable {rv.name!r}: expected a proper prior, since nothing observed depends on it, "
            f"found {type(rv.owner.op).__name__.removesuffix('RV')}; remove the variable, or give "
            "it a proper prior"
        )


def improper_variables(model: Model) -> list[str]:
    """Return the names of free variables whose density has no integral."""
    improper, index = FlatRV | HalfFlatRV | ICARRV, ModelIndex(model)
    return [
        str(rv.name)
        for rv in model.free_RVs
        if any(isinstance(op, improper) for op in _ops_of(index, rv))
    ]


def _ops_of(model: ModelIndex, rv: Variable) -> Iterator[Op]:
    """Yield the ops that a draw of ``rv`` executes, given the other variables of the model."""
    others = set(model.basic_RVs) - {rv}
    drawn = [var for var in ancestors([rv], blockers=others) if var.owner and var not in others]
    pending = [var.owner.op for var in drawn]
    while pending:
        op = pending.pop()
        yield op
        if isinstance(op, HasInnerGraph):
            pending += [node.op for node in op.fgraph.apply_nodes]


def _is_without_random(op: Op) -> bool:
    """Return whether ``op`` is a ``CustomDist`` without ``random``."""
    # Without a given function PyMC has one that raises.
    name = getattr(getattr(op, "_random_fn", None), "__qualname__", "")
    return isinstance(op, CustomDistRV) and name.startswith(default_not_implemented.__qualname__)


def read_forward(
    structure: Structure, space: ValueSpace, point: Point
) -> tuple[ForwardVariable, ...]:
    """Return the variables that only predictions need, in an order in which to draw them.

    ``point`` may be any: it gives the shapes of its entries.
    """
    values = space.model.rvs_to_values
    inputs = {}
    for latent in structure.latents:
        inputs[Argument("value", latent.name)] = latent.value_input
    for rv in structure.forward:
        inputs[values[rv].name] = values[rv]
    # From random variables to graphs of values; these variables may depend on each other.
    replacements = {
        **space.model.given_data,
        **{latent.replaced: latent.shaped(latent.value_input) for latent in structure.latents},
    }
    found = []
    for rv in structure.forward:
        arguments = space.model.in_values(substitute(rv.owner.inputs, replacements))
        node = rv.owner.clone_with_new_inputs(arguments)
        draw = node.outputs[rv.owner.outputs.index(rv)]
        value, transform = values[rv], space.model.rvs_to_transforms[rv]
        if transform is None:
            natural, drawn_value = value, draw
            log_jacobian = 0.0
        else:
            natural = transform.backward(value, *node.inputs)
            drawn_value = transform.forward(draw, *node.inputs)
            log_jacobian = transform.log_jac_det(value, *node.inputs).sum()
        # These include the generators of the components of a compound distribution.
        leaves = [v for v in graph_inputs([draw]) if isinstance(v.type, RandomGeneratorType)]
        generators = {Argument(f"generator {i}"): leaf.type() for i, leaf in enumerate(leaves)}
        own = dict(zip(leaves, generators.values(), strict=True)) | _copies_of_numbers(draw)
        (drawn_value,) = substitute([drawn_value], own)
        log_density = log_density_of(space.model, draw, natural)
        if log_density is None:
            raise RecognitionError(
                f"variable {rv.name!r}: expected a distribution with a log density, found "
                f"{type(rv.owner.op).__name__.removesuffix('RV')}, for which PyMC has none; give "
                "it one (logp=), or remove the variable, which nothing observed depends on"
            )
        log_density = log_density.sum() + log_jacobian
        replacements[rv] = pt.specify_shape(natural, rv.type.shape).astype(rv.dtype)
        found.append(
            ForwardVariable(
                name=rv.name,
                value_name=value.name,
                shape=tuple(point[value.name].shape),
                draw=partial(
                    _draw,
                    space.function(drawn_value.astype(value.dtype), {**inputs, **generators}),
                    tuple(generators),
                ),
                log_density=space.function(log_density.astype("float64"), inputs),
            )
        )
    return tuple(found)


def _copies_of_numbers(graph: Variable) -> dict[Variable, Variable]:
    """Return constants equal to those of a graph that are a number.

    PyTensor makes the array of such a constant read-only when another graph with it is rewritten;
    SciPy then fails to broadcast what was computed from it before.
    """
    return {
        leaf: type(leaf)(leaf.type, np.array(leaf.data))
        for leaf in graph_inputs([graph])
        if isinstance(leaf, TensorConstant) and leaf.data.size == 1
    }


def _draw(
    function: PointFunction, generators: Sequence[Argument], rng: np.random.Generator, point: Point
) -> np.ndarray:
    """Draw from a graph whose generators are inputs."""
    children: Any = dict(zip(generators, rng.spawn(len(generators)), strict=True))
    return np.array(function({**point, **children}))
