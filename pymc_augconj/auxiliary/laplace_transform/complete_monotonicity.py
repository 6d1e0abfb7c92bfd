"""Check that φ is the Laplace transform of a distribution on [0, ∞).

By Bernstein's theorem it is if and only if φ(0) = 1 and φ is completely monotone,

    (−1)ᵏ φ⁽ᵏ⁾(r) ≥ 0   for all r > 0 and k = 0, 1, 2, …

Numerically this can only be refuted: the check computes derivatives to a finite order on a grid of
r, and the sign of the inverted density. An accepted φ may still fail elsewhere, or by less than
rounding.

The derivatives come from Cauchy's integral over a circle about r in the right half-plane, where a
completely monotone φ is analytic; with ``derivatives`` of log φ, from the exponential's series.
Both give the Taylor coefficients of φ(r + R z)/φ(r). Signs of coefficients count above rounding.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pymc_augconj.typing import Array, ComplexArray

from .density import saddlepoints
from .distribution import LogPhi, RealDerivatives, TiltedDistribution
from .inversion import CAREFUL, Sites

ORDER = 16
GRID = np.geomspace(1e-6, 1e6, 61)  # in units of the scale, where −log φ = 1
CIRCLE_POINTS = 96
SILENT = 16  # coefficients that should be zero
RADIUS = 0.8  # of the circle, in units of r
MAX_EXPONENT = 6.0  # mean · radius: φ then grows by at most about exp(6) on the circle
UNDERFLOW = -100.0  # log φ below which a φ that can no longer be evaluated is excused
ULPS = 16.0  # rounding of log φ, in units of 1.1e-16 times its size
DENSITY_TOLERANCE = 1e-8  # of x f(x)


@dataclass(frozen=True)
class Monotonicity:
    """Result of `check_completely_monotone`.

    Attributes
    ----------
    ok : bool
    r : float or None
        The first r of the grid at which φ fails.
    order : int or None
        The first order of derivative that fails there; None where the density is negative.
    reason : str
        One sentence: what was expected and what was found; empty if ``ok``.
    """

    ok: bool
    r: float | None = None
    order: int | None = None
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok


def check_completely_monotone(
    log_phi: LogPhi,
    *,
    derivatives: RealDerivatives | None = None,
    r: ArrayLike | None = None,
    order: int = ORDER,
    density: bool = True,
) -> Monotonicity:
    """Check that φ(0) = 1 and that φ is completely monotone.

    Parameters
    ----------
    log_phi : callable
        log φ on complex128 arrays of any shape, called for Re ≥ 0 only.
    derivatives : callable, optional
        r of shape (n,) → the derivatives of log φ of order 0, 1, …, of shape (m + 1, n). Then
        ``order`` is m at most. Default: Cauchy integrals.
    r : array_like, > 0, optional
        Grid. Default: twelve decades about the scale of φ, five points a decade.
    order : int, default 16
    density : bool
        Whether to check the sign of the inverted density, too; it may be negative where the
        distribution has atoms besides one at its end (a finite mixture of Gaussians).

    Returns
    -------
    Monotonicity
    """
    at_zero = _values(log_phi, np.zeros(1))[0]
    if not abs(at_zero) < 1e-9:
        found = f"log φ(0) = {at_zero.real:.6g}" if at_zero.imag == 0 else f"log φ(0) = {at_zero}"
        return Monotonicity(
            False, 0.0, 0, f"expected φ(0) = 1, that is log φ(0) = 0, found {found}"
        )
    distribution = TiltedDistribution(log_phi)
    if r is None:
        scale = (
            1.0 / (distribution.origin + 1.0 / distribution.scale)
            if distribution.origin > 0.0
            else distribution.scale
        )
        r = GRID * (scale if np.isfinite(scale) else 1.0)
    r = np.asarray(r, dtype=float)
    checked = _check_values(log_phi, r)
    if isinstance(checked, Monotonicity):
        return checked
    r = r[:checked]
    failure = _check_derivatives(log_phi, derivatives, r, order)
    if failure is None and density and not distribution.is_point_mass:
        failure = _check_density(distribution, r)
    return Monotonicity(True) if failure is None else failure


def _values(log_phi: LogPhi, s: Array) -> ComplexArray:
    with np.errstate(all="ignore"):
        return np.asarray(log_phi(np.asarray(s, dtype=np.complex128)), dtype=np.complex128)


def _check_values(log_phi: LogPhi, r: Array) -> Monotonicity | int:
    """Check that values are real and finite; return the number of grid points above underflow."""
    values = _values(log_phi, r)
    for i, value in enumerate(values):
        if not np.isfinite(value):
            if i > 0 and values[i - 1].real < UNDERFLOW:
                return i
            reason = f"expected a finite log φ(r), found {value.real} at r = {r[i]:.6g}"
            return Monotonicity(False, float(r[i]), 0, reason)
        if abs(np.angle(np.exp(1j * value.imag))) > 1e-6:
            reason = f"expected φ(r) > 0, found log φ = {value:.6g} at r = {r[i]:.6g}"
            return Monotonicity(False, float(r[i]), 0, reason)
    return r.size


def _check_derivatives(
    log_phi: LogPhi, derivatives: RealDerivatives | None, r: Array, order: int
) -> Monotonicity | None:
    mean = -_values(log_phi, r + 1e-20j * r).imag / (1e-20 * r)
    with np.errstate(all="ignore"):
        radius = np.minimum(RADIUS * r, np.where(mean > 0.0, MAX_EXPONENT / mean, np.inf))
    if derivatives is None:
        taylor, rounding = _cauchy(log_phi, r, radius, order)
    else:
        taylor, rounding = _exponential_series(np.asarray(derivatives(r)), radius, order)
    signed = taylor * (-1.0) ** np.arange(taylor.shape[1])
    wrong = ~(signed >= -rounding)
    if not wrong.any():
        return None
    i = int(np.argmax(wrong.any(axis=1)))
    k = int(np.argmax(wrong[i]))
    if np.isnan(taylor[i, k]):
        found = "a value that is not finite near it"
    else:
        sign = "positive" if taylor[i, k] > 0 else "negative"
        relative = taylor[i, k] / radius[i] ** k
        found = f"a {sign} one, {relative:.3g} · {k}! · φ(r)"
    expected = "negative" if k % 2 else "positive"
    reason = (
        f"expected φ to be completely monotone, its derivative of order {k} not {_not(expected)}, "
        f"found {found}, at r = {r[i]:.6g}"
    )
    return Monotonicity(False, float(r[i]), k, reason)


def _not(sign: str) -> str:
    return "negative" if sign == "positive" else "positive"


def _cauchy(log_phi: LogPhi, r: Array, radius: Array, order: int) -> tuple[Array, Array]:
    """Taylor coefficients of φ(r + R z)/φ(r), (n, order + 1), and their rounding, (n, 1)."""
    angle = 2.0 * np.pi * np.arange(CIRCLE_POINTS // 2 + 1) / CIRCLE_POINTS
    # By symmetry half the circle is enough.
    weights = np.full(angle.size, 2.0 / CIRCLE_POINTS)
    weights[[0, -1]] = 1.0 / CIRCLE_POINTS
    base = _values(log_phi, r)
    logs = _values(log_phi, r[:, None] + radius[:, None] * np.exp(1j * angle))
    silent = np.arange(CIRCLE_POINTS - SILENT, CIRCLE_POINTS)
    powers = np.exp(-1j * np.outer(angle, np.append(np.arange(order + 1), silent)))
    with np.errstate(all="ignore"):
        values = np.exp(logs - base[:, None])
        taylor = ((values * weights) @ powers).real
    # Coefficients of negative order are zero up to rounding, which they measure.
    taylor, silent = taylor[:, : order + 1], np.abs(taylor[:, order + 1 :]).max(axis=1)
    size = 1.0 + np.abs(logs).max(axis=1) + np.abs(base)
    rounding = ULPS * (1.1e-16 * size * np.abs(values).max(axis=1) + silent)
    return taylor, rounding[:, None]


def _exponential_series(derivatives: Array, radius: Array, order: int) -> tuple[Array, Array]:
    """As `_cauchy`, from k c_k = Σ_j j a_j c_{k−j} with the Taylor coefficients a of log φ."""
    order = min(order, derivatives.shape[0] - 1)
    factorial = np.cumprod(np.concatenate(([1.0], np.arange(1.0, order + 1.0))))
    steps = np.arange(order + 1)
    log_taylor = derivatives[: order + 1].T / factorial * radius[:, None] ** steps
    taylor, bound = np.zeros((2, radius.size, order + 1))
    taylor[:, 0] = bound[:, 0] = 1.0
    for k in range(1, order + 1):
        j = steps[1 : k + 1]
        taylor[:, k] = (j * log_taylor[:, j] * taylor[:, k - j]).sum(axis=1) / k
        bound[:, k] = (j * np.abs(log_taylor[:, j]) * bound[:, k - j]).sum(axis=1) / k
    return taylor, ULPS * 1.1e-16 * (1.0 + steps) * bound


def _check_density(distribution: TiltedDistribution, r: Array) -> Monotonicity | None:
    """Check the density at the mean of each tilt, with an error estimate from two rules."""
    with np.errstate(all="ignore"):
        x = distribution.mean(r)
    x = x[np.isfinite(x) & (x > 0.0)]
    if x.size == 0:
        return None
    x = np.unique(np.concatenate((x, x.max() * np.geomspace(1.3, 30.0, 12))))
    tilt = saddlepoints(distribution, x)
    finite = np.isfinite(distribution.real(tilt))
    x, tilt = x[finite], tilt[finite]
    sites = Sites(distribution, tilt)
    index = np.nonzero(sites.is_wide)[0]
    if index.size == 0:
        return None
    _, density, (_, truncation) = sites.euler(index, x[index], CAREFUL)
    _, finer, (_, finer_truncation) = sites.euler(index, x[index], CAREFUL + 1)
    doubt = 10.0 * (np.abs(finer - density) + truncation + finer_truncation) + DENSITY_TOLERANCE
    wrong = finer < -doubt
    if not wrong.any():
        return None
    i = int(np.argmax(wrong))
    reason = (
        f"expected a density of ω that is not negative, found {finer[i] / x[index][i]:.3g} at "
        f"ω = {x[index][i] + distribution.origin:.6g} under the tilt r = {tilt[index][i]:.6g}"
    )
    return Monotonicity(False, float(tilt[index][i]), None, reason)
