"""Stationary kernels as functions of the squared distance."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pymc as pm

from pymc_augconj.typing import Array

# PyMC's distance is √(r² + _UNDER_ROOT), which is differentiable at zero.
_UNDER_ROOT = 1e-12


class Profile(NamedTuple):
    """(g, g′) as a function of t = factor·r², which it may write to.

    ``is_power``: g(t) = eᵗ, so that s·g(t) = g(t + log s).
    """

    factor: float
    at: Callable[[Array], tuple[Array, Array]]
    is_power: bool = False


def _squared_exponential(t: Array) -> tuple[Array, Array]:
    # t may exceed zero by rounding; the relative error is as small as elsewhere.
    value = np.exp(t, out=t)
    return value, value


def _root(t: Array) -> Array:
    np.maximum(t, 0.0, out=t)
    t += _UNDER_ROOT
    return np.sqrt(t, out=t)


def _exponential(rate: float) -> Profile:
    def at(t: Array) -> tuple[Array, Array]:
        r = _root(t)
        g = np.exp(-rate * r)
        return g, (-0.5 * rate) * g / r

    return Profile(1.0, at)


def _matern32(t: Array) -> tuple[Array, Array]:
    u = np.sqrt(3.0) * _root(t)
    decay = np.exp(-u)
    # d/du (1 + u)e^{−u} = −u e^{−u}, and du/dt = 3/(2u).
    return (1.0 + u) * decay, -1.5 * decay


def _matern52(t: Array) -> tuple[Array, Array]:
    u = np.sqrt(5.0) * _root(t)
    decay = np.exp(-u)
    u_next = u + 1.0
    # d/du (1 + u + u²/3)e^{−u} = −(u/3)(1 + u)e^{−u}, and du/dt = 5/(2u).
    return (u_next + u * u / 3.0) * decay, (-5.0 / 6.0) * u_next * decay


#: By class of the kernel.
PROFILES: dict[type, Profile] = {
    pm.gp.cov.ExpQuad: Profile(-0.5, _squared_exponential, True),
    pm.gp.cov.Matern52: Profile(1.0, _matern52),
    pm.gp.cov.Matern32: Profile(1.0, _matern32),
    pm.gp.cov.Matern12: _exponential(1.0),
    pm.gp.cov.Exponential: _exponential(0.5),
}
