"""The one affine predictor η through which graphs depend on the latents."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.scalar.basic import Sign, Switch
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.recognition.graph.affine import (
    depends_on,
    descendants,
    has_misleading_derivative,
    is_affine,
)
from pymc_augconj.recognition.graph.constants import constant_number, is_tensor
from pymc_augconj.recognition.graph.dependence import distribution_parameters, static_shape
from pymc_augconj.recognition.graph.rewrite import simplify
from pymc_augconj.recognition.graph.signs import has_fixed_sign

from .link_probe import without_number
from .separate import is_separate

__all__ = [
    "Offsets",
    "between",
    "find_predictor",
    "has_rows",
    "has_steps",
    "is_zero",
    "one_predictor",
]

# Affine variables: each is η, the first of them, plus a term without latents.
Offsets = dict[Variable, Variable | None]


def find_predictor(
    graphs: Sequence[Variable], latents: Sequence[Variable], shape: tuple[int, ...]
) -> Offsets | None:
    """Return the affine variables through which ``graphs`` depend on the latents.

    Parameters
    ----------
    graphs : sequence of Variable
        The parameters of a distribution, which may be random variables, or a log density.
    latents : sequence of Variable
        The innovations.
    shape : tuple of int
        Shape of the observations.
    """
    found: dict[Variable, None] = {}
    seen: set[Variable] = set()
    stack = list(graphs)
    while stack:
        var = stack.pop()
        if var in seen or not depends_on(var, latents):
            continue
        seen.add(var)
        if has_rows(var, shape) and is_affine(pt.as_tensor(var), latents):
            # From −f/√2, as in Φ(f), to f.
            plain = without_number(var, latents)
            found[plain if has_rows(plain, shape) else var] = None
        elif var.owner is None:
            return None
        elif isinstance(var.owner.op, RNGConsumerOp):
            stack.extend(distribution_parameters(var))
        else:
            stack.extend(filter(is_tensor, var.owner.inputs))
    offsets = one_predictor(list(found), latents, shape)
    if offsets is None or any(has_steps(v, list(offsets)) for v in between(graphs, offsets)):
        return None
    return offsets


def one_predictor(
    found: Sequence[Variable], latents: Sequence[Variable], shape: tuple[int, ...]
) -> Offsets | None:
    """Return affine variables as functions of one predictor, or None if they are not."""
    if not found:
        return None
    chains = [_chain(var, latents, shape) for var in found]
    # Of f and f − c, the one that the other is made of.
    bases = [var for var in found if all(var in chain for chain in chains)]
    first = bases[0] if bases else found[0]
    offsets: Offsets = {first: None}
    for other in found:
        (difference,) = simplify([other - first])
        if depends_on(difference, latents):
            break
        offsets.setdefault(other, difference)
    else:
        return offsets
    # Multiples of η, say: what all of them are made of, entry by entry.
    for var in chains[0]:
        if all(var in chain for chain in chains) and is_affine(var, latents):
            apart = all(is_separate(v, [var], len(shape)) for v in found if v is not var)
            return {var: None} if apart else None
    return None


def _chain(var: Variable, latents: Sequence[Variable], shape: tuple[int, ...]) -> list[Variable]:
    """Return what ``var`` is a function of, and what that is one of, and so on."""
    chain = []
    while True:
        if has_rows(var, shape):
            chain.append(var)
        parts = [] if var.owner is None else var.owner.inputs
        parts = {part for part in parts if depends_on(part, latents)}
        if len(parts) != 1:
            return chain
        (var,) = parts


def is_zero(offset: Variable | None) -> bool:
    """Return whether an offset is the number zero."""
    number = None if offset is None else constant_number(offset)
    return offset is None or (number is not None and not number.any())


def between(graphs: Sequence[Variable], found: Collection[Variable]) -> list[Variable]:
    """Return the variables between ``found`` and ``graphs``, without random variables."""
    return [
        var
        for graph in graphs
        for var in descendants(graph, list(found))
        if not isinstance(var.owner.op, RNGConsumerOp)
    ]


def has_steps(var: Variable, predictors: Sequence[Variable]) -> bool:
    """Return whether ``var`` is constant in η, piece by piece."""
    scalar_op = getattr(var.owner.op, "scalar_op", None)
    if isinstance(scalar_op, Switch):
        return not depends_on(var.owner.inputs[1:], predictors)
    if isinstance(scalar_op, Sign) and has_fixed_sign(var.owner.inputs[0], predictors):
        return False  # the mark of a positive scale, as PyMC writes Gamma(mu, sigma)
    return var.dtype.startswith("float") and has_misleading_derivative(var)


def has_rows(var: Variable, shape: tuple[int, ...]) -> bool:
    """Return whether ``var`` has one number an observation, or one for all (along an axis)."""
    if not (isinstance(var, TensorVariable) and var.dtype.startswith("float")):
        return False
    if var.ndim != len(shape):
        return var.ndim < len(shape) and all(var.type.broadcastable)
    return all(a in (1, b) for a, b in zip(static_shape(var), shape, strict=True))
