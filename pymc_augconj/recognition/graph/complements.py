"""log(1 − F) in forms that keep its digits, and its finiteness, where F is close to one.

PyMC computes log(1 − exp(log F)) for the probability above a bound. This is exact if log F is
itself the logarithm of a complement. If 1 − F is below the smallest number it is −∞, which makes
every expectation under a Gaussian −∞. This module therefore takes the complement in the formula of
log F.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle

from .affine import scalar_name
from .rewrite import substitute

# From this x on, Γ(a, x)/Γ(a) is computed by its continued fraction, as it underflows at 745; that
# number of terms is exact to rounding for a of up to a third of x.
_LARGE, _TERMS = 600.0, 40


def with_exact_complements(graph: Variable) -> Variable:
    """Return ``graph`` with each log(1 − exp(log F)) in the form that suits log F."""
    found: dict[Variable, Variable] = {}
    seen: set[Variable] = set()
    stack = [graph]
    while stack:
        var = stack.pop()
        if var in seen or var.owner is None:
            continue
        seen.add(var)
        stack.extend(var.owner.inputs)
        if scalar_name(var) == "Log1mexp":
            exact = _complement(var.owner.inputs[0])
            if exact is not None:
                found[var] = exact.astype(var.dtype)
    return substitute([graph], found)[0]


def _complement(log_cdf: Variable) -> Variable | None:
    """Return log(1 − exp(log_cdf)) in a better form, or None if none is known."""
    if isinstance(log_cdf, Constant):
        # Nothing below: everything above.
        return pt.zeros_like(log_cdf) if np.all(np.isneginf(log_cdf.data)) else None
    if log_cdf.owner is None:
        return None
    op, (first, *others) = log_cdf.owner.op, log_cdf.owner.inputs
    if isinstance(op, Alloc | DimShuffle | CheckParameterValue):
        inner = _complement(first)
        return None if inner is None else op(inner, *others)
    if scalar_name(log_cdf) == "Switch":
        branches = [_complement(branch) for branch in others]
        if all(branch is None for branch in branches):
            return None
        plain = [pt.log1mexp(branch) for branch in others]
        exact = [b if b is not None else p for b, p in zip(branches, plain, strict=True)]
        return pt.switch(first, *exact)
    rule = _RULES.get(scalar_name(log_cdf))
    return None if rule is None else rule(first)


def _of_negative(inner: Variable) -> Variable | None:
    # Logistic: F = exp(−softplus(−z)).
    return -pt.softplus(-inner.owner.inputs[0]) if scalar_name(inner) == "Softplus" else None


def _of_log(cdf: Variable) -> Variable | None:
    name = scalar_name(cdf)
    if name == "GammaInc":
        return _log_upper_gamma(*cdf.owner.inputs)
    if name == "GammaIncC":
        return pt.log(pt.gammainc(*cdf.owner.inputs))
    if name == "Sub" and _is_number(cdf.owner.inputs[0], 1.0):
        return _log(cdf.owner.inputs[1])
    if name == "BetaInc":
        a, b, x = cdf.owner.inputs
        return pt.log(pt.betainc(b, a, _one_minus(x)))
    return None


_RULES: dict[str, Callable[[Variable], Variable | None]] = {
    "Log1mexp": lambda inner: inner,
    "Neg": _of_negative,
    "Log": _of_log,
    "Log1p": lambda inner: _log(-inner),
}


def _log(graph: Variable) -> Variable:
    """Return the log of a product, with its exponentials taken out."""
    if scalar_name(graph) == "Exp":
        return graph.owner.inputs[0]
    if scalar_name(graph) == "Neg" and scalar_name(graph.owner.inputs[0]) == "Mul":
        first, *others = graph.owner.inputs[0].owner.inputs
        return sum((_log(factor) for factor in others), start=_log(-first))
    if scalar_name(graph) == "Mul":
        first, *others = graph.owner.inputs
        return sum((_log(factor) for factor in others), start=_log(first))
    # PyTensor keeps a number such as ½ in single precision.
    return pt.log(graph.astype("float64"))


def _one_minus(x: Variable) -> Variable:
    """Return 1 − x; of x = (t + s)/(2 s), as in Student's t, without the loss of small digits."""
    if scalar_name(x) == "True_div" and scalar_name(x.owner.inputs[0]) == "Add":
        numerator, denominator = x.owner.inputs
        if scalar_name(denominator) == "Mul" and len(numerator.owner.inputs) == 2:
            t, s = numerator.owner.inputs
            factors = denominator.owner.inputs
            if len(factors) == 2 and s in factors and any(_is_number(f, 2.0) for f in factors):
                return (s - t) / denominator
    return 1.0 - x


def _log_upper_gamma(a: Variable, x: Variable) -> Variable:
    """Return log Γ(a, x)/Γ(a)."""
    large = pt.maximum(x, _LARGE)
    fraction = large + 2.0 * _TERMS + 1.0 - a
    for k in range(_TERMS, 0, -1):
        fraction = large + 2.0 * k - 1.0 - a + k * (a - k) / fraction
    tail = a * pt.log(large) - large - pt.gammaln(a) - pt.log(fraction)
    return pt.switch(pt.and_(x > _LARGE, a < x / 3.0), tail, pt.log(pt.gammaincc(a, x)))


def _is_number(graph: Variable, value: float) -> bool:
    while graph.owner is not None and isinstance(graph.owner.op, DimShuffle):
        (graph,) = graph.owner.inputs
    return isinstance(graph, Constant) and bool(np.all(np.asarray(graph.data) == value))
