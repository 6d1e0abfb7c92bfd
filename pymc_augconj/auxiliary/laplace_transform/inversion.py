"""F and the density at given x for a batch of tilts, each with its method of inversion.

Wide tilts take Euler summation, see :mod:`.quantiles`. Tilts with a standard deviation that is
small relative to their mean have a large |log φ|, and Euler summation would magnify its rounding.
Their mass, up to ε, lies in an interval [low, high] with ends by Chernoff's bound,

    P(ω < low) ≤ exp(t low) φ(r + t)/φ(r),   P(ω > high) ≤ exp(−t high) φ(r − t)/φ(r).

**Fourier series** (`fourier_nodes`). On that interval the density is the Fourier series of period
high − low with coefficients φ(r + iτ)/φ(r), τ = 2πk/period. Its error is about ε. The nodes do not
depend on x, so one evaluation of φ serves all of Newton's steps.

**Cornish–Fisher** (`normal_cumulants`). For tiny skewness and excess kurtosis the normal
distribution with corrections of second order in these, whose error is 1e-8 at the switch-over. The
rounding of log φ, of the order of 1/CV², then ruins any inversion.

An inversion has an absolute error. But the density at x of one tilt gives the density of every
other tilt,

    log f_r(x) = log f_ρ(x) + (ρ − r) x + log φ(ρ) − log φ(r),

and the tilt ρ with mean x, the saddlepoint, has a density of the order of 1/std there: so its
relative error is small at any depth of the left tail, and in the right tail up to the largest mean
of a tilt; beyond it the error is relative to the density at r = 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import comb, ndtr, ndtri

from pymc_augconj.errors import refuse
from pymc_augconj.typing import Array, ComplexArray, Index, Mask

from . import kernels
from .distribution import LogPhi, TiltedDistribution, as_distribution, checked_tilt

HALF_A = 11.5  # A/2 of Euler summation
NARROW = 0.3  # coefficient of variation below which these methods are tried
LOG_TAIL = -30.0  # log ε of the Fourier interval
LOG_ORIGIN_TAIL = -50.0  # of an origin for Euler summation, which magnifies mass below it
LADDER = np.array([3.0, 5.0, 7.0, 8.5, 10.0, 12.0, 16.0, 24.0, 40.0, 80.0])  # t, in 1/std
DECAY = np.array([8.0, 9.5, 12.0, 16.0, 24.0, 40.0, 64.0])  # τ, in 1/std
MAX_COEFFICIENTS = 128
MAYBE_NORMAL = 0.02  # coefficient of variation below which the cumulants are computed
MAX_SKEWNESS, MAX_EXCESS = 4e-3, 1e-4
CIRCLE_POINTS = 64
TAYLOR_TERMS = 14
LEAST_TILT = 1e-3  # in units of 1/x: a smaller tilt is none, at x
CURVE_STEP = 0.25  # of log r, between the means from which saddlepoints are interpolated
MAX_LOG = 690.0  # of an ω or r that is represented
FLOOR = 1e-11  # of x f(x), in place of values made negative by rounding
NEWTON_STEPS = 2


#: low, period and log φ(r) of each site; log φ(r + iτ) and τ, site after site; and where each site
#: starts in these: arguments of the kernels.
FourierNodes = tuple[Array, Array, Array, ComplexArray, Array, Index]


def fourier_nodes(
    distribution: TiltedDistribution, r: Array, std: Array, log_phi_r: Array
) -> tuple[Mask, Array, Array, FourierNodes]:
    """Find which sites have a Fourier series and its nodes, and Euler origins for the others.

    Above an origin x ≥ 0 is all but exp(−50) of the mass; up to the floor Euler summation from it
    must not be used, which would magnify that mass, and F is zero, to e⁻³⁸.
    """
    t = LADDER / std[:, None]
    base = log_phi_r[:, None]
    lower = distribution.real(r[:, None] + t) - base
    low = _best((LOG_TAIL - lower) / t, np.max)
    origins = np.nan_to_num((LOG_ORIGIN_TAIL - lower) / t, nan=-np.inf)
    best = np.argmax(origins, axis=1)[:, None]
    origin = np.maximum(np.take_along_axis(origins, best, axis=1)[:, 0], 0.0)
    best_t = np.take_along_axis(t, best, axis=1)[:, 0]
    floor = np.where(origin > 0.0, origin + HALF_A / best_t, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        downward = r[:, None] * t / (r[:, None] + t)  # below r, and about t where that is far below
        upper = distribution.real(np.maximum(r[:, None] - downward, 0.0)) - base
        high = _best((upper - LOG_TAIL) / downward, np.min)
    tau_end = DECAY / std[:, None]
    decayed = distribution(r[:, None] + 1j * tau_end).real - base < LOG_TAIL
    end = np.take_along_axis(tau_end, np.argmax(decayed, axis=1)[:, None], axis=1)[:, 0]
    low = np.maximum(low, 0.0)
    with np.errstate(invalid="ignore"):
        period = high - low
        counts = np.ceil(end * period / (2.0 * np.pi))
        usable = decayed.any(axis=1) & (period > 0.0) & (counts <= MAX_COEFFICIENTS)
    low, period, counts = low[usable], period[usable], counts[usable].astype(np.intp)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    k = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts) + 1
    tau = 2.0 * np.pi * k / np.repeat(period, counts)
    values = distribution(np.repeat(r[usable], counts) + 1j * tau)
    return usable, origin, floor, (low, period, log_phi_r[usable], values, tau, offsets)


class NormalCumulants(NamedTuple):
    """Mean, standard deviation, skewness and excess kurtosis; shape (n,)."""

    mean: Array
    std: Array
    skewness: Array
    excess: Array

    def quantile(self, u: Array) -> Array:
        """Cornish and Fisher's expansion to second order."""
        z, g, e = ndtri(u), self.skewness, self.excess
        shift = g * (z * z - 1) / 6 + e * (z**3 - 3 * z) / 24 - g * g * (2 * z**3 - 5 * z) / 36
        return np.maximum(self.mean + self.std * (z + shift), 0.0)

    def cdf_and_pdf(self, x: Array) -> tuple[Array, Array]:
        """Edgeworth's expansion to second order."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            z = (x - self.mean) / self.std
            g, e = self.skewness, self.excess
            normal = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
            z2 = np.minimum(z * z, 1e4)
            he3, he4 = z * (z2 - 3), z2 * (z2 - 6) + 3
            he5, he6 = z * (z2 * (z2 - 10) + 15), z2 * (z2 * (z2 - 15) + 45) - 15
            density = normal * (1 + g * he3 / 6 + e * he4 / 24 + g * g * he6 / 72)
            below = g * (z2 - 1) / 6 + e * he3 / 24 + g * g * he5 / 72
            return np.clip(ndtr(z) - normal * below, 0.0, 1.0), density / self.std


def normal_cumulants(
    distribution: TiltedDistribution, r: Array, mean: Array, std: Array
) -> tuple[NormalCumulants, Mask]:
    """Cumulants by Cauchy integrals of log φ on a circle in the half-plane, and which are normal's.

    The circle is about r with radius r/2, or, for an r too near zero, it reaches from r on eight
    standard units to the right. Symmetry saves three evaluations in four.
    """
    safe = np.where(std > 0.0, std, 1.0)
    wide = r * safe >= 8.0
    radius = np.where(wide, 0.5 * r, 4.0 / safe)
    centre = np.where(wide, r, r + radius)
    angle = 2.0 * np.pi * np.arange(CIRCLE_POINTS // 2 + 1) / CIRCLE_POINTS
    circle = np.maximum(np.cos(angle), -1.0) + 1j * np.sin(angle)
    values = distribution(centre[:, None] + radius[:, None] * circle)
    weights = np.full(angle.size, 2.0)
    weights[[0, -1]] = 1.0
    order = np.arange(TAYLOR_TERMS)
    taylor = (values * weights) @ np.exp(-1j * np.outer(angle, order))
    taylor = taylor.real / CIRCLE_POINTS
    at = np.where(wide, 0.0, -1.0)
    derivatives = []
    for which in (2, 3, 4):
        falling = np.array([np.prod(np.arange(j, j - which, -1.0)) for j in order[which:]])
        powers = at[:, None] ** (order[which:] - which)
        unit = (radius * safe) ** which  # standard units: a power of the radius alone may overflow
        derivatives.append((taylor[:, which:] * falling * powers).sum(axis=1) / unit)
    second, third, fourth = derivatives
    with np.errstate(all="ignore"):
        # The rough variance is kept where the circle's is lost in rounding.
        sharp = np.where(np.abs(second - 1.0) < 0.1, second, 1.0)
        skewness, excess = -third / sharp**1.5, fourth / sharp**2
    near = (np.abs(skewness) < MAX_SKEWNESS) & (np.abs(excess) < MAX_EXCESS)
    degenerate = std == 0.0
    skewness, excess = (np.where(degenerate, 0.0, value) for value in (skewness, excess))
    sharp_std = np.where(degenerate, 0.0, safe * np.sqrt(sharp))
    return NormalCumulants(mean, sharp_std, skewness, excess), near | degenerate


def _best(values: Array, choose: Callable[..., Array]) -> Array:
    """Return the best finite bound of each row."""
    worst = -np.inf if choose is np.max else np.inf
    return choose(np.where(np.isfinite(values), values, worst), axis=1)


CAREFUL = 1  # the rule for densities, and for narrow distributions
UNCONVERGED = 3e-10  # last change of F that asks for the next rule


def _euler_weights(terms: int, averaged: int) -> Array:
    """Signed weights of ``terms`` + ``averaged`` + 1 nodes, and weights with one average less."""
    rows = []
    for count in (averaged, averaged - 1):
        tail = np.cumsum(comb(count, np.arange(count + 1))[::-1])[::-1] / 2.0**count
        row = np.ones(terms + averaged + 1)
        row[terms : terms + count + 1] = tail
        row[terms + count + 1 :] = 0.0
        row[0] = 0.5
        rows.append(row * (-1.0) ** np.arange(row.size))
    return np.array(rows)


# Each rule is for the sites that the previous one leaves unconverged.
WEIGHTS = [_euler_weights(*rule) for rule in ((22, 16), (40, 20), (150, 50), (600, 80))]


class Sites:
    """A batch of tilts, each with its method; everything relative to the distribution's origin."""

    def __init__(self, distribution: TiltedDistribution, r: Array) -> None:
        self.distribution, self.r = distribution, r
        self.log_phi_r = distribution.real(r)
        refuse("r", r, np.isfinite(self.log_phi_r), "an r at which log φ is finite")
        self.mean, self.std = distribution.rough_moments(r)
        with np.errstate(all="ignore"):
            self.variation = np.where(self.mean > 0.0, self.std / self.mean, 0.0)
        # A heavy tail's infinite or missing moments make it wide.
        self.variation = np.where(np.isfinite(self.variation), self.variation, np.inf)
        with np.errstate(over="ignore"):
            self.atom = np.minimum(np.exp(distribution.log_atom - self.log_phi_r), 1.0)
        self.origin, self.floor = np.zeros((2, r.size))  # of Euler summation

        self.is_normal = self.variation < MAYBE_NORMAL
        self.normal: NormalCumulants | None = None
        tried = np.flatnonzero(self.is_normal)
        if tried.size:
            found, near = normal_cumulants(
                distribution, r[tried], self.mean[tried], self.std[tried]
            )
            self.is_normal[tried] = near
            self.normal = NormalCumulants(*(values[near] for values in found))
        self.is_fourier = (self.variation < NARROW) & ~self.is_normal & (self.std > 0.0)
        self.is_wide = ~self.is_fourier & ~self.is_normal
        self.is_euler_narrow = self.is_fourier.copy()
        self.fourier: FourierNodes | None = None
        tried = np.flatnonzero(self.is_fourier)
        if tried.size:
            usable, origin, floor, self.fourier = fourier_nodes(
                distribution, r[tried], self.std[tried], self.log_phi_r[tried]
            )
            self.is_fourier[tried] = usable
            self.is_euler_narrow &= ~self.is_fourier
            self.origin[tried] = np.where(usable, 0.0, origin)
            self.floor[tried] = np.where(usable, 0.0, floor)

    def euler(self, which: Index, x: Array, rule: int) -> tuple[Array, Array, Array]:
        """F(x), x f(x) (x from the Euler origin) and their truncation errors, for some sites."""
        r, origin, weights = self.r[which], self.origin[which], WEIGHTS[rule]
        nodes = np.empty((x.size, weights.shape[1]), dtype=np.complex128)
        kernels.fill_nodes(r, x, origin, HALF_A, nodes)
        cdf, pdf, errors = np.empty(x.size), np.empty(x.size), np.empty((2, x.size))
        values = self.distribution(nodes)
        kernels.euler_sums(
            values, self.log_phi_r[which], x, origin, HALF_A, weights, cdf, pdf, errors
        )
        return cdf, pdf, errors

    def cdf_and_pdf(self, x: Array) -> tuple[Array, Array, Array]:
        """F(x), f(x) and an error of x f(x), x > 0 relative to the distribution's origin."""
        cdf, pdf, error = np.empty((3, x.size))
        which = self.is_normal
        if self.normal is not None and which.any():
            cdf[which], pdf[which] = self.normal.cdf_and_pdf(x[which])
            error[which] = 1e-8 * x[which] * pdf[which]
        which, fourier = self.is_fourier, self.fourier
        if fourier is not None and which.any():
            out = np.empty((2, np.count_nonzero(which)))
            kernels.fourier_sums(x[which], *fourier, *out)
            cdf[which], pdf[which] = out
            rounding = 1e-12 + 1e-15 * np.abs(self.log_phi_r[which])
            error[which] = rounding * x[which] / self.std[which]
        index = np.nonzero(self.is_wide | self.is_euler_narrow)[0]
        below = x[index] <= self.floor[index]
        cdf[index[below]] = pdf[index[below]] = error[index[below]] = 0.0
        index = index[~below]
        for rule in range(CAREFUL, len(WEIGHTS)):
            if index.size == 0:
                break
            at = x[index]
            distance = at - self.origin[index]
            cdf[index], density, (missing, truncation) = self.euler(index, at, rule)
            pdf[index] = density / distance
            size = 1.0 + np.abs(self.log_phi_r[index]) + 60.0 * self.distribution.origin / distance
            rounding = np.exp(HALF_A) * 1e-16 * size
            error[index] = (truncation + np.exp(-2.0 * HALF_A) + rounding) * (at / distance)
            index = index[np.maximum(missing, 0.1 * truncation) > UNCONVERGED]
        return cdf, pdf, error


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
