"""Numerical recognition of a link with an unknown spelling.

The parameter must be an elementwise function h of one variable z that is affine in the latents. If
the link of h(z) is affine in z at a few numbers, up to the limits of floating point, the predictor
is that affine function: ``pm.math.exp(pm.logcdf(pm.Normal.dist(), f))`` is thus a probit link.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors, explicit_graph_inputs
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.op import RNGConsumerOp
from scipy.special import expit, logit, ndtr, ndtri

from pymc_augconj.recognition.graph.affine import depends_on, is_affine
from pymc_augconj.recognition.graph.constants import constant_number
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.graph.rewrite import substitute

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


def probe_link(graph: Variable, link: str, latents: Sequence[Variable]) -> Variable | None:
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
    op = None if graph.owner is None else graph.owner.op
    return _BOUNDS.get(type(getattr(op, "scalar_op", None)).__name__)


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


def _affine_arguments(graph: Variable, latents: Sequence[Variable]) -> set[Variable] | None:
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


def without_number(var: Variable, latents: Sequence[Variable]) -> Variable:
    """Strip elementwise operations with plain numbers: z from −z, 2 z, z / √2, 1 + z.

    The logarithm of a multiple of exp(z) stays if the factors differ, because the multiple is not
    affine.
    """
    inner = var
    while inner.owner is not None and isinstance(inner.owner.op, Elemwise):
        parts = [part for part in inner.owner.inputs if depends_on(part, latents)]
        rest = [part for part in inner.owner.inputs if part not in parts]
        if len(parts) != 1 or any(constant_number(part) is None for part in rest):
            break
        (inner,) = parts
    return inner if is_affine(pt.as_tensor(inner), latents) else var
