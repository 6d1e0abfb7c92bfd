"""Draws of ω from the tilts of a distribution known only by its Laplace transform φ.

The distribution function F of the tilt by r is the inverse Laplace transform of φ(s + r)/(s φ(r)).
Draws are F⁻¹(u), u uniform, with F by **Euler summation** and F(x) = u solved by Newton's iteration
within a bracket. A completely monotone φ may be analytic for Re s > 0 only: Talbot's and other
contours bend into the left half-plane, Euler's nodes (A/2 + iπk)/x stay in the right one. The sum
is Poisson's: its error is at most e^{−A}/(1 − e^{−A}), 1e-10 at A = 23, where the factor e^{A/2}
magnifies the rounding of log φ by 1e5. The alternating series is accelerated by binomial averages.
Where the coefficient of variation is small, |log φ| is large: such tilts have the other methods of
:mod:`.inversion`.

The absolute error in F is 1e-9 or better where log φ is accurate to rounding and F smooth for x >
0. An atom at zero, an infinite density there, an end of the support above zero and an infinite mean
are supported. F is *less* accurate near a jump or kink at x > 0 (other atoms, uniform densities),
as with every method that evaluates φ on a few nodes.

References
----------
Abate & Whitt (1995), Numerical inversion of Laplace transforms of probability distributions, ORSA
Journal on Computing 7. Ridout (2009), Generating random numbers from a distribution specified by
its Laplace transform, Statistics and Computing 19.
"""

import warnings

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from pymc_augconj.errors import refuse
from pymc_augconj.typing import Array, Index

from . import kernels
from .distribution import LogPhi, TiltedDistribution, as_distribution, checked_tilt
from .inversion import CAREFUL, UNCONVERGED, WEIGHTS, Sites

WIDE_START = 1.2  # coefficient of variation above which Newton starts from φ(1/x) = u
MAX_STEPS = 100
BLOCK = 20_000  # sites at a time: the nodes of one Newton step take a kilobyte each
NOT_SMOOTH = 1e-5  # last change of F under the longest rule that is worth a warning
LAST_STEP = 1e-5  # in log x: the error after a step is of the order of its square


def quantile_tilted(u: ArrayLike, log_phi: LogPhi | TiltedDistribution, r: ArrayLike) -> Array:
    """Return the quantiles F⁻¹(u) of the tilts; F of the result is u to 1e-9.

    u up to P(ω = 0) gives zero; u within 1e-12 of 0 or 1 is moved to that distance. Raises
    ValueError if an r is negative or not finite, log φ is not finite there, or a u is not a
    probability. For many draws under one φ :class:`.table_sampler.TiltedSampler` is faster.
    """
    r, u, distribution = checked_tilt(r), np.asarray(u, dtype=float), as_distribution(log_phi)
    refuse("u", u, (u >= 0.0) & (u <= 1.0), "a probability u")
    shape = np.broadcast_shapes(u.shape, r.shape)
    level = np.clip(np.broadcast_to(u, shape).ravel(), 1e-12, 1.0 - 1e-12)
    tilt = np.broadcast_to(r, shape).ravel()
    x = np.empty(level.size)
    for first in range(0, level.size, BLOCK):
        block = slice(first, first + BLOCK)
        x[block] = _quantiles(Sites(distribution, tilt[block]), level[block])
    return (x + distribution.origin).reshape(shape)


def _quantiles(sites: Sites, u: Array) -> Array:
    """Quantiles relative to the distribution's origin, each site by its method."""
    x = np.zeros(u.size)
    if sites.normal is not None and sites.is_normal.any():
        x[sites.is_normal] = sites.normal.quantile(u[sites.is_normal])
    fourier, which = sites.fourier, sites.is_fourier
    if fourier is not None and which.any():
        start = np.maximum(_wilson_hilferty(u[which], sites.mean[which], sites.std[which]), 0.0)
        out = np.empty(start.size)
        kernels.fourier_quantiles(u[which], start, *fourier, out)
        x[which] = out
    for rule, which in ((0, sites.is_wide), (CAREFUL, sites.is_euler_narrow)):
        index = np.nonzero(which & (u > sites.atom))[0]
        while index.size:
            x[index], truncation = _euler_quantile(sites, index, u[index], rule)
            rule += 1
            if rule == len(WEIGHTS):
                _warn_of_jumps(truncation.max())
                break
            index = index[truncation > UNCONVERGED]
    return x


def _euler_quantile(sites: Sites, index: Index, u: Array, rule: int) -> tuple[Array, Array]:
    """Newton's iteration in y = log(x − origin), for log F where u < ½ and log(1 − F) elsewhere.

    Also returns the truncation error of F.
    """
    origin, atom = sites.origin[index], sites.atom[index]
    y = np.log(np.maximum(_start(sites, index, u) - origin, 1e-3 * sites.std[index]))
    with np.errstate(divide="ignore"):
        low = np.log(sites.floor[index] - origin)
    y, high = np.maximum(y, low + 1e-3), np.full(y.size, np.inf)
    right = u > 0.5 * (1.0 + atom)
    target = np.log(np.where(right, 1.0 - u, u - atom))
    truncation = np.zeros(y.size)
    active = np.arange(y.size)
    limit = 3.0
    for _ in range(MAX_STEPS):
        here = y[active]
        cdf, density, errors = sites.euler(index[active], origin[active] + np.exp(here), rule)
        truncation[active] = errors[0]
        below = cdf < u[active]
        low[active] = np.where(below, here, low[active])
        high[active] = np.where(below, high[active], here)
        on_right = right[active]
        mass = np.where(on_right, 1.0 - cdf, cdf - atom[active])
        with np.errstate(all="ignore"):
            step = (np.log(mass) - target[active]) * mass / density
            step = np.where(on_right, step, -step)
        # If rounding has left no mass or density, move towards the side that has some.
        good = (mass > 0.0) & (density > 0.0) & np.isfinite(step)
        step = np.where(good, np.clip(step, -limit, limit), np.where(below, limit, -limit))
        proposal = here + step
        inside = ((proposal > low[active]) & (proposal < high[active])) | (proposal == here)
        with np.errstate(invalid="ignore"):
            middle = 0.5 * (low[active] + high[active])
            narrow = high[active] - low[active] < 1e-13 * np.maximum(1.0, np.abs(here))
        y[active] = np.where(inside, proposal, middle)
        done = (inside & (np.abs(step) < LAST_STEP)) | narrow
        active = active[~done]
        if active.size == 0:
            break
        limit *= 1.5
    return origin + np.exp(y), truncation


def _warn_of_jumps(truncation: float) -> None:
    if truncation > NOT_SMOOTH:
        warnings.warn(
            "expected a smooth distribution function of ω, found one with jumps or kinks: "
            f"draws of ω are good to about {truncation:.0e} in distribution only",
            RuntimeWarning,
            stacklevel=3,
        )


def _start(sites: Sites, index: Index, u: Array) -> Array:
    """Wilson & Hilferty's gamma quantile; for wide ones the x at which φ(r + 1/x)/φ(r) = u."""
    mean, std, variation = sites.mean[index], sites.std[index], sites.variation[index]
    wide = variation > WIDE_START
    with np.errstate(all="ignore"):
        x = np.maximum(_wilson_hilferty(u, mean, std), 1e-3 * mean)
    if wide.any():
        x[wide] = _transform_quantile(sites, index[wide], u[wide])
    return x


def _wilson_hilferty(u: Array, mean: Array, std: Array) -> Array:
    ninth = (std / mean) ** 2 / 9.0
    return mean * np.maximum(1.0 - ninth + ndtri(u) * np.sqrt(ninth), 0.0) ** 3


def _transform_quantile(sites: Sites, index: Index, u: Array) -> Array:
    """Solve (φ(r + s)/φ(r) − atom)/(1 − atom) = u for x = 1/s, roughly, and cap the upper tail."""
    distribution, r = sites.distribution, sites.r[index]
    base, atom = sites.log_phi_r[index], sites.atom[index]
    right = u > 0.5 * (1.0 + atom)
    target = np.log(np.where(right, 1.0 - u, u - atom))
    log_s = np.log(np.maximum(r, distribution.scale))
    for _ in range(8):
        s = np.exp(log_s)
        value = distribution(r + s + 1e-20j * s)
        ratio = np.exp(np.minimum(value.real - base, 0.0))
        slope = -value.imag * 1e20 * ratio  # −d ratio/d log s
        mass = np.where(right, -np.expm1(np.minimum(value.real - base, 0.0)), ratio - atom)
        with np.errstate(all="ignore"):
            step = (np.log(mass) - target) * mass / slope
        step = np.where(np.isfinite(step), np.where(right, -step, step), -5.0)
        log_s = np.clip(log_s + np.clip(step, -25.0, 25.0), -690.0, 690.0)
    x = np.exp(-log_s)
    with np.errstate(all="ignore"):
        cap = 2.0 * (distribution.real(0.5 * r) - base - np.log1p(-u)) / r
    return np.where(cap > 0.0, np.minimum(x, cap), x)
