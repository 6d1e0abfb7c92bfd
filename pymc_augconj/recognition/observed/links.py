"""Separation of links and powers from a distribution parameter: from p = σ(η) to η.

The argument is a simplified graph, with one spelling of each link; reshaping and indexing may
follow the link.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.recognition.graph.affine import depends_on, scalar_name
from pymc_augconj.recognition.graph.constants import constant_number

from .link_probe import probe_link

# Ops that move, repeat or pick entries without changing them.
_STRUCTURAL = frozenset(
    {
        "AdvancedSubtensor",
        "AdvancedSubtensor1",
        "Alloc",
        "DimShuffle",
        "MatrixTranspose",
        "Reshape",
        "SpecifyShape",
        "Squeeze",
        "ExpandDims",
        "Subtensor",
        "ViewOp",
    }
)

_SQRT_2 = np.sqrt(2.0)


def _op_name(graph: Variable) -> str:
    if graph.owner is None:
        return ""
    op = graph.owner.op
    return type(op.scalar_op if isinstance(op, Elemwise) else op).__name__


def _through_structure(
    graph: Variable, latents: Sequence[Variable], match: Callable[[Variable], Variable | None]
) -> Variable | None:
    """Apply ``match`` below any structural ops, and put those back on top of its result."""
    found = match(graph)
    if found is not None or _op_name(graph) not in _STRUCTURAL:
        return found
    first, *rest = graph.owner.inputs
    if depends_on(list(rest), latents):
        return None
    inner = _through_structure(first, latents, match)
    if inner is None:
        return None
    return graph.owner.clone_with_new_inputs([inner.astype(first.dtype), *rest]).outputs[0]


def _is_number(graph: Variable, value: float) -> bool:
    while _op_name(graph) in ("DimShuffle", "Alloc", "ExpandDims"):
        graph = graph.owner.inputs[0]
    return isinstance(graph, Constant) and bool(np.all(np.asarray(graph.data) == value))


def _logit(graph: Variable) -> Variable | None:
    if _op_name(graph) == "Sigmoid":
        return graph.owner.inputs[0]
    if _op_name(graph) == "Sub" and _is_number(graph.owner.inputs[0], 1.0):
        inner = _logit(graph.owner.inputs[1])
        return None if inner is None else -inner
    return None


def is_one(graph: Variable) -> bool:
    """Return whether ``graph`` is the constant 1."""
    return _is_number(graph, 1.0)


def as_probit(graph: Variable) -> Variable | None:
    """Return η if ``graph`` is PyMC's spelling of Φ(η)."""
    # Φ(η) = ½ erfc(−η/√2) = ½ (1 + erf(η/√2))
    if _op_name(graph) == "Sub" and _is_number(graph.owner.inputs[0], 1.0):
        inner = as_probit(graph.owner.inputs[1])
        return None if inner is None else -inner
    if _op_name(graph) != "Mul" or len(graph.owner.inputs) != 2:
        return None
    first, second = graph.owner.inputs
    if not _is_number(first, 0.5):
        first, second = second, first
    if not _is_number(first, 0.5):
        return None
    if _op_name(second) == "Erfc":
        return -_SQRT_2 * second.owner.inputs[0]
    if _op_name(second) in ("Add", "Sub") and len(second.owner.inputs) == 2:
        sign = 1.0 if _op_name(second) == "Add" else -1.0
        one, erf = second.owner.inputs
        if _op_name(one) == "Erf" and sign > 0:
            one, erf = erf, one
        if _is_number(one, 1.0) and _op_name(erf) == "Erf":
            return sign * _SQRT_2 * erf.owner.inputs[0]
    return None


def _exponential(graph: Variable) -> Variable | None:
    return graph.owner.inputs[0] if _op_name(graph) == "Exp" else None


def _square(graph: Variable) -> Variable | None:
    return graph.owner.inputs[0] if _op_name(graph) == "Sqr" else None


_PLAIN = {"logit": _logit, "probit": as_probit}
_SCALED = {"scaled_logit": _logit, "scaled_square": _square, "scaled_log": _exponential}


def _scaled(
    graph: Variable,
    latents: Sequence[Variable],
    match: Callable[[Variable], Variable | None],
) -> tuple[Variable, Variable] | None:
    """Match c · link(η) with c free of latents; returns (η, c)."""
    inner = _through_structure(graph, latents, match)
    if inner is not None:
        return inner, pt.as_tensor(1.0)
    name = _op_name(graph)
    if name == "Mul":
        varying = [part for part in graph.owner.inputs if depends_on(part, latents)]
        fixed = [part for part in graph.owner.inputs if not depends_on(part, latents)]
        if len(varying) != 1 or not fixed:
            return None
        scale = fixed[0] if len(fixed) == 1 else pt.mul(*fixed)
    elif name == "TrueDiv" and not depends_on(graph.owner.inputs[1], latents):
        varying, scale = [graph.owner.inputs[0]], 1.0 / graph.owner.inputs[1]
    elif name in _STRUCTURAL and not depends_on(list(graph.owner.inputs[1:]), latents):
        matched = _scaled(graph.owner.inputs[0], latents, match)
        return None if matched is None else (_moved(graph, matched[0]), _moved(graph, matched[1]))
    else:
        return None
    matched = _scaled(varying[0], latents, match)
    return None if matched is None else (matched[0], matched[1] * scale)


def _moved(graph: Variable, part: Variable) -> Variable:
    """Apply the structural op on top of ``graph`` to ``part``, which broadcasts below it."""
    first, *rest = graph.owner.inputs
    if all(part.type.broadcastable):
        # One number for all entries, wherever they are moved.
        return part.reshape(())
    if part.type.broadcastable != first.type.broadcastable:
        part = pt.broadcast_to(part, first.shape)
    return graph.owner.clone_with_new_inputs([part.astype(first.dtype), *rest]).outputs[0]


def peel(
    graph: Variable, link: str, latents: Sequence[Variable], *, by_probe: bool = False
) -> tuple[Variable, Variable | None] | None:
    """Return (η, scale) such that a simplified ``graph`` is scale · link⁻¹(η), or None.

    The scale is None except for the scaled links. ``by_probe`` uses numbers rather than the
    spelling, for "logit" and "probit".
    """
    if by_probe:
        eta = _through_structure(graph, latents, lambda part: probe_link(part, link, latents))
        return None if eta is None else (eta, None)
    if link == "identity":
        return graph, None
    if link in _SCALED:
        return _scaled(graph, latents, _SCALED[link])
    if link == "log":
        matched = _scaled(graph, latents, _exponential)
        return None if matched is None else (matched[0] + pt.log(matched[1]), None)
    eta = _through_structure(graph, latents, _PLAIN[link])
    return None if eta is None else (eta, None)


def describe_link(graph: Variable, latents: Sequence[Variable]) -> str:
    """Return a word or two for an unsupported link, for error messages."""
    for name in ("logit", "probit", "log", "scaled_logit", "scaled_square"):
        if peel(graph, name, latents) is not None:
            return {"scaled_logit": "scaled logit", "scaled_square": "square"}.get(name, name)
    return f"a link that ends in {_op_name(graph) or 'nothing known'}"


def split_power(
    graph: Variable, latents: Sequence[Variable]
) -> tuple[Variable, float, TensorVariable]:
    """Return b, e and c such that ``graph`` is c·bᵉ, where c does not depend on the latents.

    PyMC writes the standard deviation of a precision τ as |τ|^(−½) sign(τ), which is τ^(−½) for τ >
    0.
    """
    base, exponent, factor, signed = graph, 1.0, pt.as_tensor(np.float64(1.0)), False
    while True:
        name = scalar_name(base)
        parts = [] if base.owner is None else list(base.owner.inputs)
        if name == "Mul":
            signs = [part for part in parts if scalar_name(part) == "Sign"]
            moving = [p for p in parts if p not in signs and depends_on(p, latents)]
            if len(moving) != 1:
                break
            signed = signed or bool(signs)
            for part in parts:
                if part not in signs and part not in moving:
                    factor = factor * _unsigned(part, signed) ** exponent
            (base,) = moving
        elif name == "TrueDiv" and not all(depends_on(part, latents) for part in parts):
            upper, lower = parts
            if depends_on(upper, latents):
                base, factor = upper, factor * _unsigned(lower, signed) ** -exponent
            else:
                factor = factor * _unsigned(upper, signed) ** exponent
                base, exponent = lower, -exponent
        elif name in ("Reciprocal", "Sqrt", "Sqr"):
            exponent *= {"Reciprocal": -1.0, "Sqrt": 0.5, "Sqr": 2.0}[name]
            (base,) = parts
        elif name == "Pow" and (number := constant_number(parts[1])) is not None:
            exponent *= float(number[0])
            base = parts[0]
        elif name == "Abs" and signed:
            (base,) = parts
        else:
            break
    return base, exponent, factor


def _unsigned(factor: TensorVariable, signed: bool) -> TensorVariable:
    """Return x for a factor |x| of τ; PyMC has no density for τ < 0."""
    return factor.owner.inputs[0] if signed and scalar_name(factor) == "Abs" else factor
