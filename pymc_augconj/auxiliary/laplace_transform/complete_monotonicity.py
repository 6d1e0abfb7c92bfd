"""Check that φ is the Laplace transform of a distribution on [0, ∞).

By Bernstein's theorem it is if and only if φ(0) = 1 and φ is completely monotone,

    (−1)ᵏ φ⁽ᵏ⁾(r) ≥ 0   for all r > 0 and k = 0, 1, 2, …

Numerical checks can only refute this: they compute derivatives to a finite order on a grid of r, by
Cauchy's integral over a circle in the right half-plane, and the sign of the inverted density.
"""

import numpy as np

from pymc_augconj.typing import Array, ComplexArray

from .distribution import LogPhi, TiltedDistribution
from .inversion import CAREFUL, Sites, saddlepoints

ORDER = 16
GRID = np.geomspace(1e-6, 1e6, 61)  # in units of the scale, where −log φ = 1
CIRCLE_POINTS = 96
SILENT = 16  # coefficients that should be zero
RADIUS = 0.8  # of the circle, in units of r
MAX_EXPONENT = 6.0  # mean · radius: φ then grows by at most about exp(6) on the circle
UNDERFLOW = -100.0  # log φ below which a φ that can no longer be evaluated is excused
ULPS = 16.0  # rounding of log φ, in units of 1.1e-16 times its size
DENSITY_TOLERANCE = 1e-8  # of x f(x)


def check_completely_monotone(log_phi: LogPhi, *, density: bool = True) -> str | None:
    """Return a message if φ is not completely monotone, or None if it is.

    log φ takes complex128 arrays of any shape, with Re ≥ 0 only. ``density`` also checks the sign
    of the inverted density, which may be negative where the distribution has atoms besides one at
    its end (a finite mixture of Gaussians).
    """
    at_zero = _values(log_phi, np.zeros(1))[0]
    if not abs(at_zero) < 1e-9:
        found = at_zero.real if at_zero.imag == 0 else at_zero
        return f"expected φ(0) = 1, that is log φ(0) = 0, found log φ(0) = {found:.6g}"
    distribution = TiltedDistribution(log_phi)
    rate = distribution.origin + 1.0 / distribution.scale
    r = GRID / rate if rate > 0.0 else GRID
    checked = _check_values(log_phi, r)
    if isinstance(checked, str):
        return checked
    r = r[:checked]
    failure = _check_derivatives(log_phi, r)
    if failure is None and density and not distribution.is_point_mass:
        failure = _check_density(distribution, r)
    return failure


def _values(log_phi: LogPhi, s: Array) -> ComplexArray:
    with np.errstate(all="ignore"):
        return np.asarray(log_phi(np.asarray(s, dtype=np.complex128)), dtype=np.complex128)


def _check_values(log_phi: LogPhi, r: Array) -> str | int:
    """Check that values are real and finite; return the number of grid points above underflow."""
    values = _values(log_phi, r)
    for i, value in enumerate(values):
        if not np.isfinite(value):
            if i > 0 and values[i - 1].real < UNDERFLOW:
                return i
            return f"expected a finite log φ(r), found {value.real} at r = {r[i]:.6g}"
        if abs(np.angle(np.exp(1j * value.imag))) > 1e-6:
            return f"expected φ(r) > 0, found log φ = {value:.6g} at r = {r[i]:.6g}"
    return r.size


def _check_derivatives(log_phi: LogPhi, r: Array) -> str | None:
    mean = -_values(log_phi, r + 1e-20j * r).imag / (1e-20 * r)
    with np.errstate(all="ignore"):
        radius = np.minimum(RADIUS * r, np.where(mean > 0.0, MAX_EXPONENT / mean, np.inf))
    taylor, rounding = _cauchy(log_phi, r, radius)
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
    return (
        f"expected φ to be completely monotone, its derivative of order {k} not "
        f"{'positive' if k % 2 else 'negative'}, found {found}, at r = {r[i]:.6g}"
    )


def _cauchy(log_phi: LogPhi, r: Array, radius: Array) -> tuple[Array, Array]:
    """Return the Taylor coefficients of φ(r + R z)/φ(r), (n, ORDER + 1), and their rounding."""
    angle = 2.0 * np.pi * np.arange(CIRCLE_POINTS // 2 + 1) / CIRCLE_POINTS
    # By symmetry half the circle is enough.
    weights = np.full(angle.size, 2.0 / CIRCLE_POINTS)
    weights[[0, -1]] = 1.0 / CIRCLE_POINTS
    base = _values(log_phi, r)
    logs = _values(log_phi, r[:, None] + radius[:, None] * np.exp(1j * angle))
    silent = np.arange(CIRCLE_POINTS - SILENT, CIRCLE_POINTS)
    powers = np.exp(-1j * np.outer(angle, np.append(np.arange(ORDER + 1), silent)))
    with np.errstate(all="ignore"):
        values = np.exp(logs - base[:, None])
        taylor = ((values * weights) @ powers).real
    # Coefficients of negative order are zero up to rounding, which they measure.
    taylor, silent = taylor[:, : ORDER + 1], np.abs(taylor[:, ORDER + 1 :]).max(axis=1)
    size = 1.0 + np.abs(logs).max(axis=1) + np.abs(base)
    rounding = ULPS * (1.1e-16 * size * np.abs(values).max(axis=1) + silent)
    return taylor, rounding[:, None]


def _check_density(distribution: TiltedDistribution, r: Array) -> str | None:
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
    return (
        f"expected a density of ω that is not negative, found {finer[i] / x[index][i]:.3g} at "
        f"ω = {x[index][i] + distribution.origin:.6g} under the tilt r = {tilt[index][i]:.6g}"
    )
