"""Finding a link numerically, where its spelling is none of the known ones.

The parameter must be an elementwise function h of one variable z that is affine in the latents.
h is evaluated at a few numbers; if the link of h(z) is affine in z, the predictor is that affine
function. ``pm.math.exp(pm.logcdf(pm.Normal.dist(), f))`` is found to be a probit link so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors, explicit_graph_inputs
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.op import RNGConsumerOp
from scipy.special import logit, ndtri

from pymc_augconj.recognition.graph.affine import depends_on, descendants, is_affine
from pymc_augconj.recognition.graph.constants import constant_number
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.graph.rewrite import substitute

__all__ = ["is_clip", "probe_link", "without_number"]

_NUMBERS = np.array([-2.0, -1.3, -0.6, 0.0, 0.45, 1.0, 1.7])

# How far out, in units of η, the link must still be the link: as far as 1 − p has digits enough.
# A probability that is clipped, at 0.01 say, is a logit where it is not.
_FARTHEST = {"logit": 15.0, "probit": 5.5}

# PyMC keeps a number like 0.7071067811865475 as float32 here and there.
_TOLERANCE = 1e-6
_DIGITS = 3

_LINKS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"logit": logit, "probit": ndtri}


def probe_link(graph: Variable, link: str, latents: Sequence[Variable]) -> Variable | None:
    """Return η such that ``graph`` is link⁻¹(η), or None where that cannot be told.

    Parameters
    ----------
    graph : Variable
        A distribution parameter.
    link : {"logit", "probit"}
        Any other gives None.
    latents : sequence of Variable
        The innovations.
    """
    if link not in _LINKS or not isinstance(graph.owner and graph.owner.op, Elemwise):
        return None
    if any(is_clip(var) for var in descendants(graph, latents)):
        # However far out, it is another likelihood.
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

    def linked(c: float) -> float:
        found = np.unique(function({"z": np.full(shape, c, dtype=z.dtype)}))
        return float(_LINKS[link](found[0])) if found.size == 1 else np.nan

    with np.errstate(all="ignore"):
        # Where η goes from about −2 to 2: on a short stretch every smooth function looks affine.
        slope, intercept = _line(linked, np.array([-1e-3, 0.0, 1e-3]))
        numbers = (_NUMBERS - intercept) / slope if slope != 0 else _NUMBERS
        slope, intercept = _line(linked, numbers)
        if slope != 0:
            far = _FARTHEST[link] * np.array([-1.0, -0.5, 0.5, 1.0])
            numbers = np.append(numbers, (far - intercept) / slope)
        error = max(abs(slope * c + intercept - linked(c)) for c in numbers)
    if slope == 0 or not error <= _TOLERANCE:
        return None
    return _plain(slope) * z + _plain(intercept)


def _line(function: Callable[[float], float], numbers: np.ndarray) -> tuple[float, float]:
    values = np.array([function(c) for c in numbers])
    if not np.isfinite(values).all() or not np.isfinite(numbers).all():
        return 0.0, 0.0
    slope, intercept = np.polyfit(numbers, values, 1)
    return float(slope), float(intercept)


def is_clip(graph: Variable) -> bool:
    """Return whether ``graph`` is a clipped value."""
    op = None if graph.owner is None else graph.owner.op
    return type(getattr(op, "scalar_op", None)).__name__ == "Clip"


def _plain(value: float) -> float:
    """Return the number of few digits that was meant, if ``value`` is one but for rounding."""
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
    """Return the variables, affine in the latents, that ``graph`` is elementwise made of."""
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
    """Strip the elementwise ops with plain numbers off: z from −z, 2 z, z / √2, 1 + z."""
    while var.owner is not None and isinstance(var.owner.op, Elemwise):
        parts = [part for part in var.owner.inputs if depends_on(part, latents)]
        rest = [part for part in var.owner.inputs if part not in parts]
        if len(parts) != 1 or any(constant_number(part) is None for part in rest):
            return var
        (var,) = parts
    return var
