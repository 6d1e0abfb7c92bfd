"""The density of a distribution known only by its Laplace transform φ, and of its tilts.

An inversion has an absolute error, so that far from the mean its relative error is unbounded. But
the density at x of one tilt gives the density of every other,

    log f_r(x) = log f_ρ(x) + (ρ − r) x + log φ(ρ) − log φ(r),

and the tilt ρ with mean x, the saddlepoint, has a density of the order of 1/std there. So inversion
at the saddlepoint has a small relative error at any depth of the left tail, and in the right tail
up to the largest mean of a tilt, which may be infinite; beyond it the error is relative to the
density at r = 0.
"""

import numpy as np
from numpy.typing import ArrayLike

from pymc_augconj.typing import Array

from .distribution import LogPhi, TiltedDistribution, as_distribution, checked_tilt
from .inversion import Sites

LEAST_TILT = 1e-3  # in units of 1/x: a smaller tilt is none, at x
CURVE_STEP = 0.25  # of log r, between the means from which saddlepoints are interpolated
MAX_LOG = 690.0  # of an ω or r that is represented
FLOOR = 1e-11  # of x f(x), in place of values made negative by rounding
NEWTON_STEPS = 2


def logpdf_tilted(x: ArrayLike, log_phi: LogPhi | TiltedDistribution, r: ArrayLike) -> Array:
    """Log density of the tilts exp(−rω) π(ω)/φ(r), by inversion at the saddlepoint of each x.

    For a distribution with an atom it is the density of the other part, of mass less than one. It
    is −∞ outside the support; its error is 1e-9 to 1e-8 in the left tail and the bulk. Raises
    ValueError if an r is negative or not finite, or log φ is not finite there.
    """
    r, x, distribution = checked_tilt(r), np.asarray(x, dtype=float), as_distribution(log_phi)
    x, r = (np.array(values) for values in np.broadcast_arrays(x, r))
    centred = x - distribution.origin
    inside = (centred > 0.0) & (centred < np.inf) & (not distribution.is_point_mass)
    value = np.full(x.shape, -np.inf)
    value[np.isnan(x)] = np.nan
    if inside.any():
        at = centred[inside]
        log_density, _, _ = untilted_log_density(distribution, at)
        value[inside] = log_density - np.log(at) - r[inside] * at - distribution.real(r[inside])
    return value


def untilted_log_density(distribution: TiltedDistribution, x: Array) -> tuple[Array, Array, Array]:
    """Return log(x π(x)) at x > 0, relative to the origin, by the saddlepoint's tilt ρ.

    The first result is the density of log ω at r = 0; its error is the quotient of the third and
    the second, x f_ρ(x) with its absolute error. A value that is negative, from rounding or because
    φ is no Laplace transform of a positive distribution, counts as 1e-11.
    """
    tilt = saddlepoints(distribution, x)
    sites = Sites(distribution, tilt)
    _, density, error = sites.cdf_and_pdf(x)
    mass = x * density
    log_mass = np.log(np.maximum(mass, FLOOR))
    return log_mass + tilt * x + sites.log_phi_r, mass, error


def saddlepoints(distribution: TiltedDistribution, x: Array) -> Array:
    """Find a tilt with mean x, to a fraction of its standard deviation; tiny if there is none."""
    log_x = np.log(x)
    log_r, log_mean = mean_curve(distribution, log_x.min(), log_x.max())
    tilt = np.interp(-log_x, -log_mean, log_r)
    bottom, top = log_r[0], log_r[-1]
    for _ in range(NEWTON_STEPS):
        mean, std = distribution.rough_moments(np.exp(tilt))
        with np.errstate(all="ignore"):
            step = (np.log(mean) - log_x) * mean / (np.exp(tilt) * std**2)
        step = np.where(np.isfinite(step), np.clip(step, -CURVE_STEP, CURVE_STEP), 0.0)
        tilt = np.clip(tilt + step, bottom, top)
    return np.exp(tilt)


def mean_curve(
    distribution: TiltedDistribution, log_low: float, log_high: float
) -> tuple[Array, Array]:
    """Return log r, increasing, and log E[ω] of the tilts r, decreasing, to cover the range of ω.

    If no tilt has so large a mean, the curve ends at a tilt that is negligible at that ω. It ends
    earlier where log φ fails for a large r.
    """
    start = np.clip(np.log(LEAST_TILT) - log_high, -MAX_LOG, MAX_LOG)
    # −log φ(r) ≥ r E[ω] under the tilt: a mean of ω needs r far beyond 1/ω only for narrow
    # distributions.
    end = min(max(-log_low, start) + 8.0, MAX_LOG)
    while True:
        log_r = np.linspace(start, end, 2 + int((end - start) / CURVE_STEP))
        with np.errstate(all="ignore"):
            log_mean = np.log(distribution.mean(np.exp(log_r)))
        finite = np.isfinite(log_mean)
        if not finite[-1] or log_mean[-1] <= log_low or end >= MAX_LOG:
            break
        end = min(end + 0.5 * (end - start), MAX_LOG)
    log_r, log_mean = log_r[finite], log_mean[finite]
    return log_r, np.minimum.accumulate(log_mean)
