"""Splitting a parameter into a power of a function of the latents, and a factor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.recognition.graph.affine import depends_on, scalar_name
from pymc_augconj.recognition.graph.constants import constant_number

__all__ = ["split_power"]


def split_power(
    graph: Variable, latents: Sequence[Variable]
) -> tuple[Variable, float, TensorVariable]:
    """Return b, e and c such that ``graph`` is c·bᵉ, where c does not depend on the latents.

    PyMC writes the standard deviation of a precision τ as |τ|^(−½) sign(τ), which is that of τ > 0.
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
    """Return x for a factor |x| of a τ: not a number below zero, where PyMC has no density."""
    return factor.owner.inputs[0] if signed and scalar_name(factor) == "Abs" else factor
