"""PyMC's own log densities, of the observed variables and of the hyperparameters.

Faults of PyMC and PyTensor that change a density cause a warning; the package's density is correct.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.subtensor import Subtensor, indices_from_subtensor

from pymc_augconj.point import Point
from pymc_augconj.python_mode import WRONG, python_mode
from pymc_augconj.recognition.graph.affine import depends_on
from pymc_augconj.recognition.graph.dependence import ModelIndex, distribution_name
from pymc_augconj.recognition.graph.derive import log_densities_of
from pymc_augconj.recognition.graph.functions import OUT_OF_SUPPORT, PointFunction
from pymc_augconj.recognition.graph.interpreter import overflows
from pymc_augconj.recognition.graph.rewrite import is_random
from pymc_augconj.recognition.graph.space import ValueSpace
from pymc_augconj.recognition.latents.innovations import GaussianVariable, in_innovations
from pymc_augconj.recognition.observed.observed_graph import ObservedGraph
from pymc_augconj.recognition.observed.rows import conjuncts
from pymc_augconj.recognition.roles.structure import Structure


def log_densities(
    matched: Sequence[ObservedGraph], latents: Sequence[GaussianVariable], space: ValueSpace
) -> list[pt.TensorVariable]:
    """Return graphs of the observed variables' log densities, each elementwise and flat."""
    model = space.model
    graphs = model.in_values([observed.log_density(model, latents) for observed in matched])
    return [
        pt.broadcast_to(graph, observed.shape).ravel()
        for graph, observed in zip(graphs, matched, strict=True)
    ]


def whole_potential(
    observed: ObservedGraph, latents: Sequence[GaussianVariable], space: ValueSpace
) -> pt.TensorVariable | None:
    """Return the graph of a potential as PyMC adds it up, shape (1,); None for other variables.

    :func:`log_densities` has the entries of the terms in this graph.
    """
    if observed.density is None:
        return None
    (graph,) = space.model.in_values(in_innovations(space.model, [observed.variable], latents))
    return graph.astype("float64").sum().reshape((1,))


def prior_terms(structure: Structure, space: ValueSpace) -> dict[str, Variable]:
    """Return log densities of all variables that depend on hyperparameters alone, by name."""
    model = space.model
    potentials = [factor for factor in structure.factors if factor in model.potentials]
    variables = [factor for factor in structure.factors if factor not in potentials]
    variables += structure.hyperparameters
    terms = log_densities_of(model, variables) + model.in_values(potentials)
    names = [var.name for var in variables + potentials]
    factors = {
        latent.rv.name: latent.log_factor
        for latent in structure.latents
        if latent.log_factor is not None
    }
    terms += model.in_values(list(factors.values()))
    return dict(zip([*names, *factors], terms, strict=True))


def log_prior(
    terms: Sequence[Variable],
    structure: Structure,
    space: ValueSpace,
    densities: Sequence[Variable],
) -> pt.TensorVariable:
    """Return the sum of :func:`prior_terms`.

    It is −∞ where PyMC's ``densities`` of the observed variables are −∞ because a parameter is out
    of range, which the package's own densities do not check.
    """
    total = sum((pt.sum(term) for term in terms), start=pt.constant(0.0)).astype("float64")
    conditions = _conditions(densities, space, [latent.input for latent in structure.latents])
    return pt.switch(pt.all(conditions), total, -pt.inf) if conditions else total


def _conditions(
    densities: Sequence[Variable], space: ValueSpace, innovations: Sequence[Variable]
) -> list[Variable]:
    """Return PyMC's conditions on parameters that depend on hyperparameters alone."""
    hyperparameters = list(space.inputs.values())
    demanded = [
        condition
        for var in ancestors(densities)
        if var.owner is not None
        and isinstance(var.owner.op, CheckParameterValue)
        and var.owner.op.can_be_replaced_by_ninf
        for condition in var.owner.inputs[1:]
    ]
    return [
        pt.all(pt.as_tensor(part))
        for part in conjuncts(demanded)
        if depends_on(part, hyperparameters) and not depends_on(part, innovations)
    ]


# PyTensor has some constants in single precision.
_ROUNDING = 1e-6


def warn_of_faults(model: ModelIndex, densities: Mapping[str, Variable], start: Point) -> None:
    """Warn if PyMC's log density is wrong, as written or as compiled by PyTensor.

    ``densities`` are PyMC's log densities by the names of variables and potentials.
    """
    variables = [*model.basic_RVs, *model.potentials]
    last_entries = [var for var in ancestors(variables) if _is_last_entry(var)]
    for var in variables:
        density = densities.get(var.name)
        overflow = None if density is None else next(overflows([density]), None)
        if overflow is None and not depends_on(var, last_entries):
            continue
        right, compiled = _values(model, var, start)
        is_right = np.isclose(right, compiled, rtol=_ROUNDING, atol=_ROUNDING, equal_nan=True)
        if overflow is not None:
            function = f"pm.{distribution_name(var)}'s logp" if is_random(var) else "the potential"
            fault = (
                f"{function} computes with whole numbers in eight to 64 bits, in which they "
                "overflow (write 10.0 rather than 10)"
            )
        elif not is_right:
            fault = (
                f"PyTensor's rewrite {WRONG[0]} takes the first entry for the last, x[:-2:-1] "
                "(write x[-1])"
            )
        else:
            continue
        outcome = (
            "PyMC's log density is wrong as it is written, and right as it is compiled"
            if is_right
            else "near the start PyMC's compiled log density, which pm.sample uses, is "
            f"{compiled:.4g}, and {right:.4g} is right"
        )
        warnings.warn(
            f"variable {var.name!r}: {fault}; {outcome}; this package computes the right one",
            RuntimeWarning,
            stacklevel=2,
        )


def _values(model: ModelIndex, var: Variable, start: Point) -> tuple[float, float]:
    """Return the correct log density near the start, and the one that PyTensor compiles."""
    rng = np.random.default_rng(0)
    # Entries that are equal there would hide that one is taken for the other.
    point = {name: value + 0.1 * rng.standard_normal(value.shape) for name, value in start.items()}
    density = model.model.logp(vars=[var]).astype("float64")
    inputs = model.inputs
    point = {name: np.asarray(point[name], inputs[name].dtype) for name in inputs}
    function = PointFunction(density, inputs)
    given = [inputs[name] for name in function.names]
    mode = python_mode(with_wrong=True).including(OUT_OF_SUPPORT)
    compiled = pytensor.function(given, density, mode=mode)
    with np.errstate(all="ignore"):
        return float(function(point)), float(compiled(*(point[name] for name in function.names)))


def _is_last_entry(var: Variable) -> bool:
    """Return whether a variable is one entry, from the end, as in x[:-2:-1]."""
    node = var.owner
    if node is None or not isinstance(node.op, Subtensor) or 1 not in var.type.shape:
        return False
    indices = indices_from_subtensor(node.inputs[1:], node.op.idx_list)
    steps = [i.step for i in indices if isinstance(i, slice) and i.start is None]
    return any(isinstance(step, Constant) and step.data < 0 for step in steps)
