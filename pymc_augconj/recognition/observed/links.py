"""Separation of links and powers from a distribution parameter: from p = σ(η) to η.

Of a known link the argument is a simplified graph, with one spelling of each link; reshaping and
indexing may follow the link.

In an unknown spelling the parameter must be an elementwise function h of one variable z that is
affine in the latents. If the link of h(z) is affine in z at a few numbers, up to the limits of
floating point, the predictor is that affine function: ``pm.math.exp(pm.logcdf(pm.Normal.dist(),
f))`` is thus a probit link.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors, explicit_graph_inputs
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.variable import TensorVariable
from scipy.special import expit, logit, ndtr, ndtri

from pymc_augconj.recognition.graph.affine import depends_on, is_affine
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.graph.interpreter import op_name
from pymc_augconj.recognition.graph.rewrite import (
    Variables,
    constant_number,
    is_number,
    simplify,
    substitute,
)

_NUMBERS = np.array([-2.0, -1.3, -0.6, 0.0, 0.45, 1.0, 1.7])

# PyMC keeps a number like 0.7071067811865475 as float32 here and there.
_TOLERANCE = 2.0 * np.finfo(np.float32).eps
_DIGITS = 3


# Users' names for these.
_BOUNDS = {
    "Clip": "pm.math.clip",
    "Maximum": "pm.math.maximum",
    "Minimum": "pm.math.minimum",
    "Switch": "pm.math.switch",
}


@dataclass(frozen=True)
class _Link:
    """A link, its inverse, and the range of η over which the inverse must hold.

    A bounded probability, at 1e-7 say, is a logit within its bounds, but another likelihood.
    ``exact`` is the point at which the slope in z is computed, if the probability has digits there.
    """

    link: Callable[[np.ndarray], np.ndarray]
    inverse: Callable[[np.ndarray], np.ndarray]
    far: tuple[float, ...]
    exact: float


_LINKS = {
    "logit": _Link(logit, expit, (3.0, 8.0, 15.0, 22.0, 30.0, 36.0, 45.0, 100.0, 700.0), 300.0),
    "probit": _Link(ndtri, ndtr, (3.0, 5.5, 8.0, 12.0, 20.0, 37.0), 20.0),
}


def probe_link(graph: Variable, link: str, latents: Variables) -> Variable | None:
    """Return η such that ``graph`` is link⁻¹(η), or None if that is not certain.

    Other links than "logit" and "probit" give None.
    """
    if link not in _LINKS or not isinstance(graph.owner and graph.owner.op, Elemwise):
        return None
    arguments = _affine_arguments(graph, latents)
    if arguments is None or len(arguments) != 1:
        return None
    z = arguments.pop()
    number = z.type.clone(name=None)("z")
    (function_of_z,) = substitute([graph], {z: number})
    if not _is_closed(function_of_z, number):
        return None
    shape = tuple(1 if length is None else length for length in z.type.shape)
    function = PointFunction(function_of_z, {"z": number})

    def value(c: float) -> tuple[float, float]:
        """Return the probability at z = c, and its rounding."""
        found = function.with_rounding({"z": np.full(shape, c, dtype=z.dtype)})
        if found is None or np.unique(found[0]).size != 1:
            return np.nan, np.nan
        return float(np.ravel(found[0])[0]), float(np.max(found[1]))

    with np.errstate(all="ignore"):
        line = _line_of(
            lambda c: float(_LINKS[link].link(np.array(value(c)[0]))), _LINKS[link].exact
        )
        if line is None or not _is_inverse(value, _LINKS[link], *line):
            return None
    slope, intercept = line
    return slope * z + intercept


def _line_of(linked: Callable[[float], float], exact: float) -> tuple[float, float] | None:
    """Return slope and intercept of η as a function of z, or None if it is not affine."""
    # Where η goes from about −2 to 2: on a short stretch every smooth function looks affine.
    slope, intercept = _line(linked, np.array([-1e-3, 0.0, 1e-3]))
    if slope == 0.0:
        return None
    slope, intercept = _line(linked, (_NUMBERS - intercept) / slope)
    if slope == 0.0:
        return None
    # A small probability has all its digits, and so has a slope over a long stretch.
    ends = (np.array([-exact, -0.5 * exact]) - intercept) / slope
    (steeper, _) = _line(linked, ends)
    if abs(steeper - slope) < 1e-4 * abs(slope):
        slope = _plain(steeper)
        intercept = float(np.median([linked(c) - slope * c for c in _NUMBERS / slope]))
    slope = _plain(slope)
    return slope, 0.0 if abs(intercept) < _TOLERANCE else _plain(intercept)


def _is_inverse(
    value: Callable[[float], tuple[float, float]], link: _Link, slope: float, intercept: float
) -> bool:
    """Return whether a function of z is the inverse link of slope·z + intercept."""
    for eta in (*_NUMBERS, *link.far, *(-far for far in link.far)):
        found, rounding = value((eta - intercept) / slope)
        expected = link.inverse(eta)
        # In single precision the line is not this one, but its multiple.
        small = min(expected, float(link.inverse(-eta)))
        if not abs(found - expected) <= rounding + _TOLERANCE * (1.0 + eta**2) * small:
            return False
    return True


def _line(function: Callable[[float], float], numbers: np.ndarray) -> tuple[float, float]:
    values = np.array([function(c) for c in numbers])
    if not np.isfinite(values).all() or not np.isfinite(numbers).all():
        return 0.0, 0.0
    slope, intercept = np.polyfit(numbers, values, 1)
    return float(slope), float(intercept)


def bound_of(graph: Variable) -> str | None:
    """Return the name of the function that bounds a value, or None."""
    return _BOUNDS.get(op_name(graph))


def _plain(value: float) -> float:
    """Return a number of few digits that equals ``value`` up to rounding, if there is one."""
    rounded = float(f"{value:.{_DIGITS}g}")
    return rounded if abs(rounded - value) < _TOLERANCE * abs(value) else value


def _is_closed(graph: Variable, number: Variable) -> bool:
    """Return whether ``graph`` is a function of ``number`` and of data alone."""
    owners = [var.owner for var in ancestors([graph]) if var.owner is not None]
    if any(isinstance(owner.op, RNGConsumerOp) for owner in owners):
        return False  # a hyperparameter
    leaves = explicit_graph_inputs([graph])
    return all(leaf is number or isinstance(leaf, Constant) for leaf in leaves)


def _affine_arguments(graph: Variable, latents: Variables) -> set[Variable] | None:
    """Return the variables, affine in the latents, in the elementwise function ``graph``."""
    found: set[Variable] = set()
    stack = [graph]
    seen: set[Variable] = set()
    while stack:
        var = stack.pop()
        if var in seen or not depends_on(var, latents):
            continue
        seen.add(var)
        if var.dtype.startswith("float") and is_affine(pt.as_tensor(var), latents):
            found.add(without_number(var, latents))
        elif var.owner is not None and isinstance(var.owner.op, Elemwise):
            stack.extend(var.owner.inputs)
        else:
            return None
    return found


def without_number(var: Variable, latents: Variables) -> Variable:
    """Strip elementwise operations with plain numbers: z from −z, 2 z, z / √2, 1 + z.

    The logarithm of a multiple of exp(z) stays if the factors differ, because the multiple is not
    affine.
    """

    def is_plain(_: Variable, others: Variables) -> bool:
        return all(constant_number(part) is not None for part in others)

    inner = stripped(var, latents, is_plain)
    return inner if is_affine(pt.as_tensor(inner), latents) else var


def stripped(
    var: Variable, latents: Variables, strips: Callable[[Variable, list[Variable]], bool]
) -> Variable:
    """Strip elementwise operations on one varying part, as long as ``strips`` accepts them.

    It is given their result and their other arguments.
    """
    while var.owner is not None and isinstance(var.owner.op, Elemwise):
        parts = [part for part in var.owner.inputs if depends_on(part, latents)]
        rest = [part for part in var.owner.inputs if part not in parts]
        if len(parts) != 1 or not strips(var, rest):
            break
        (var,) = parts
    return var


# Ops that move, repeat or pick entries without changing them.
_STRUCTURAL = frozenset(
    {"AdvancedSubtensor", "Alloc", "DimShuffle", "Reshape", "SpecifyShape", "Subtensor", "ViewOp"}
)

_SQRT_2 = np.sqrt(2.0)


def _through_structure(
    graph: Variable, latents: Variables, match: Callable[[Variable], Variable | None]
) -> Variable | None:
    """Apply ``match`` below any structural ops, and put those back on top of its result."""
    found = match(graph)
    if found is not None or op_name(graph) not in _STRUCTURAL:
        return found
    first, *rest = graph.owner.inputs
    if depends_on(list(rest), latents):
        return None
    inner = _through_structure(first, latents, match)
    if inner is None:
        return None
    return graph.owner.clone_with_new_inputs([inner.astype(first.dtype), *rest]).outputs[0]


def _logit(graph: Variable) -> Variable | None:
    if op_name(graph) == "Sigmoid":
        return graph.owner.inputs[0]
    if op_name(graph) == "Sub" and is_number(graph.owner.inputs[0], 1.0):
        inner = _logit(graph.owner.inputs[1])
        return None if inner is None else -inner
    return None


def as_probit(graph: Variable) -> Variable | None:
    """Return η if ``graph`` is PyMC's spelling of Φ(η)."""
    # Φ(η) = ½ erfc(−η/√2) = ½ (1 + erf(η/√2))
    if op_name(graph) == "Sub" and is_number(graph.owner.inputs[0], 1.0):
        inner = as_probit(graph.owner.inputs[1])
        return None if inner is None else -inner
    if op_name(graph) != "Mul" or len(graph.owner.inputs) != 2:
        return None
    first, second = graph.owner.inputs
    if not is_number(first, 0.5):
        first, second = second, first
    if not is_number(first, 0.5):
        return None
    if op_name(second) == "Erfc":
        return -_SQRT_2 * second.owner.inputs[0]
    if op_name(second) in ("Add", "Sub") and len(second.owner.inputs) == 2:
        sign = 1.0 if op_name(second) == "Add" else -1.0
        one, erf = second.owner.inputs
        if op_name(one) == "Erf" and sign > 0:
            one, erf = erf, one
        if is_number(one, 1.0) and op_name(erf) == "Erf":
            return sign * _SQRT_2 * erf.owner.inputs[0]
    return None


def _argument(name: str, graph: Variable) -> Variable | None:
    """Return the argument of the operation ``name``."""
    return graph.owner.inputs[0] if op_name(graph) == name else None


_exponential = partial(_argument, "Exp")
_PLAIN = {"logit": _logit, "probit": as_probit}
_SCALED: dict[str, Callable[[Variable], Variable | None]] = {
    "scaled_logit": _logit,
    "scaled_square": partial(_argument, "Sqr"),
    "scaled_log": _exponential,
}


def _scaled(
    graph: Variable, latents: Variables, match: Callable[[Variable], Variable | None]
) -> tuple[Variable, Variable] | None:
    """Match c · link(η) with c free of latents; returns (η, c)."""
    inner = _through_structure(graph, latents, match)
    if inner is not None:
        return inner, pt.as_tensor(1.0)
    name = op_name(graph)
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
    elif name == "Join":
        return _joined(graph, [_scaled(part, latents, match) for part in graph.owner.inputs])
    else:
        return None
    matched = _scaled(varying[0], latents, match)
    return None if matched is None else (matched[0], matched[1] * scale)


def _joined(
    graph: Variable, matched: list[tuple[Variable, Variable] | None]
) -> tuple[Variable, Variable] | None:
    """Join the predictors and factors of arrays that ``graph`` joins, if all have them."""
    pairs = [pair for pair in matched if pair is not None]
    if len(pairs) < len(matched):
        return None
    axis, shapes = graph.owner.op.axis, [part.shape for part in graph.owner.inputs]
    columns = zip(*pairs, strict=True)
    eta, c = (pt.join(axis, *map(pt.broadcast_to, column, shapes)) for column in columns)
    return eta, c


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
    graph: Variable, link: str, latents: Variables, *, by_probe: bool = False
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
        matched = _scaled(graph, latents, _SCALED[link])
        if matched is not None and not set(latents).isdisjoint(ancestors([matched[1]])):
            # Broadcast with the latents, a factor depends on their shape.
            matched = matched[0], *simplify([matched[1]], shapes=True)
        return matched
    if link == "log":
        matched = _scaled(graph, latents, _exponential)
        return None if matched is None else (matched[0] + pt.log(matched[1]), None)
    eta = _through_structure(graph, latents, _PLAIN[link])
    return None if eta is None else (eta, None)


def known_link(graph: Variable, latents: Variables, *, affine: bool = False) -> str | None:
    """Return the link by which a graph is a function of a predictor, None for another."""
    for name in ("logit", "probit", "log", "scaled_logit", "scaled_square"):
        peeled = peel(graph, name, latents)
        if peeled is not None and (not affine or is_affine(pt.as_tensor(peeled[0]), latents)):
            return name
    return None


def describe_link(graph: Variable, latents: Variables) -> str:
    """Return a word or two for an unsupported link, for error messages."""
    name = known_link(graph, latents) or f"a link that ends in {op_name(graph) or 'nothing known'}"
    return {"scaled_logit": "scaled logit", "scaled_square": "square"}.get(name, name)


def split_power(graph: Variable, latents: Variables) -> tuple[Variable, float, TensorVariable]:
    """Return b, e and c such that ``graph`` is c·bᵉ, where c does not depend on the latents.

    PyMC writes the standard deviation of a precision τ as |τ|^(−½) sign(τ), which is τ^(−½) for τ >
    0.
    """
    base, exponent, factor, signed = graph, 1.0, pt.as_tensor(np.float64(1.0)), False
    while True:
        name = op_name(base)
        parts = [] if base.owner is None else list(base.owner.inputs)
        if name == "Mul":
            signs = [part for part in parts if op_name(part) == "Sign"]
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


def split_number(graph: Variable, inputs: Variables) -> tuple[Variable, Variable] | None:
    """Return a number that depends on ``inputs``, and known ones, whose product is an array."""
    (graph,), found = simplify([graph]), []

    def match(part: Variable) -> Variable | None:
        base, exponent, factor = split_power(part, inputs)
        if all(part.type.broadcastable) or not all(base.type.broadcastable):
            return None
        found.append(base.ravel()[0] ** exponent)
        return factor

    known = _through_structure(graph, inputs, match)
    return None if known is None else (*found, known)


def _unsigned(factor: TensorVariable, signed: bool) -> TensorVariable:
    """Return x for a factor |x| of τ; PyMC has no density for τ < 0."""
    return factor.owner.inputs[0] if signed and op_name(factor) == "Abs" else factor
