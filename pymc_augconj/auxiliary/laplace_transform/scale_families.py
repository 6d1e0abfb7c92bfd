"""Samplers for a φ whose hyperparameters change; φ that differ by the scale of r share one table.

If φ'(r) = φ(k r) then ω' is k ω: a draw of the tilt of φ' by r is k times a draw of the tilt of φ
by k r, and its density follows. The scale of a likelihood (b, σ, ρ) acts like this, so that
learning it needs no table at every step. Two φ are compared numerically on a grid, after both are
scaled to log φ = −1. As both are analytic, agreement to rounding on the real axis is agreement in
the half-plane.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from pymc_augconj.errors import NotSuperGaussianError
from pymc_augconj.typing import Array

from .complete_monotonicity import check_completely_monotone
from .density import logpdf_tilted
from .distribution import LogPhi, TiltedDistribution
from .table_sampler import TiltedSampler

__all__ = ["ScaleFamilies", "ScaledTilts"]

KEPT = 4  # shapes of φ
GRID = np.geomspace(1e-5, 1e6, 23)  # in units of the scale
TOLERANCE = 1e-11
STEPS = 60  # of Newton's iteration for the scale, in log r


@dataclass(frozen=True)
class ScaledTilts:
    """The tilts of r ↦ φ(factor · r), by a sampler of φ."""

    sampler: TiltedSampler
    factor: float

    def random(self, rng: np.random.Generator, r: Array) -> Array:
        """Draw one ω from the tilt of each entry of ``r``."""
        return self.factor * self.sampler.random(rng, self.factor * r)

    def logpdf(self, omega: Array, r: Array) -> Array:
        """Return the log density of the tilts by ``r`` at ``omega``."""
        value = logpdf_tilted(omega / self.factor, self.sampler.distribution, self.factor * r)
        return value - np.log(self.factor)


@dataclass(frozen=True)
class _Shape:
    scale: float
    values: Array
    sampler: TiltedSampler


class ScaleFamilies:
    """Finds a sampler for a φ among the samplers of earlier φ, or makes one."""

    def __init__(self) -> None:
        self._shapes: deque[_Shape] = deque(maxlen=KEPT)
        self._last_scale = 1.0

    def find(self, log_phi: LogPhi) -> ScaledTilts:
        """Return the tilts of φ; raise NotSuperGaussianError if φ is not completely monotone."""
        scale = find_scale(log_phi, self._last_scale)
        if scale is None:
            return ScaledTilts(_checked_sampler(log_phi), 1.0)
        self._last_scale = scale
        with np.errstate(all="ignore"):
            values = np.asarray(log_phi((scale * GRID).astype(np.complex128))).real
        for shape in self._shapes:
            if _agree(shape.values, values):
                return ScaledTilts(shape.sampler, shape.scale / scale)
        sampler = _checked_sampler(log_phi)
        self._shapes.append(_Shape(scale, values, sampler))
        return ScaledTilts(sampler, 1.0)


def _checked_sampler(log_phi: LogPhi) -> TiltedSampler:
    # Without this check, which takes a third of the time of a table, an invalid φ would give wrong
    # draws in silence.
    with np.errstate(all="ignore"):
        reason = check_completely_monotone(log_phi, density=False)
    if reason is not None:
        raise NotSuperGaussianError(reason)
    return TiltedSampler(TiltedDistribution(log_phi))


def find_scale(log_phi: LogPhi, start: float = 1.0) -> float | None:
    """Return the r at which log φ(r) = −1, to rounding; None without convergence."""
    x = np.log(start)
    with np.errstate(all="ignore"):
        for _ in range(STEPS):
            r = np.exp(x)
            value = complex(np.asarray(log_phi(np.array([complex(r, 1e-20 * r)])))[0])
            # Newton's iteration for log(−log φ) as a function of log r.
            size, slope = -value.real, -value.imag * 1e20
            if not (size > 0.0 and slope > 0.0 and np.isfinite(size)):
                return None
            step = -np.log(size) * size / slope
            if not abs(step) < 200.0:
                return None
            x += step
            if abs(step) < 1e-15 * max(1.0, abs(x)) or abs(size - 1.0) < 4e-16:
                return float(np.exp(x))
        return float(np.exp(x)) if abs(step) < 1e-13 else None


def _agree(a: Array, b: Array) -> bool:
    known = np.isfinite(a) & np.isfinite(b)
    if known.sum() < GRID.size // 2 or not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return False
    return bool(np.all(np.abs(a[known] - b[known]) <= TOLERANCE * (1.0 + np.abs(a[known]))))
