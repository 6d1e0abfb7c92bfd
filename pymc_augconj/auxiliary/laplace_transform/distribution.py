"""A positive distribution known only by its Laplace transform φ, and its exponential tilts.

φ(s) = E exp(−sω) for ω ≥ 0. The tilt by r ≥ 0 has the density exp(−rω) π(ω)/φ(r), so its Laplace
transform is φ(s + r)/φ(r), and with K = log φ its mean is −K′(r) and its variance K″(r).

The argument ``log_phi`` is a vectorised function from complex128 arrays to complex128 arrays of the
same shape. The class calls it only in the closed right half-plane, where every Laplace transform is
analytic, so that a branch cut on the negative axis is harmless.

For the distribution with density ∝ φ(e²) of a residual e, |e| is tabulated on the same
double-exponential scale as the normaliser, |e| = s exp(½π sinh t): on cells of t the distribution
function is integrated by Gauss–Legendre's rule, and within a cell it is a cubic whose end slopes
are the exact density, with an error below 1e-8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import gammaln, xlogy

from pymc_augconj.auxiliary.generalized_inverse_gaussian import (
    ORDERS,
    logpdf_generalized_inverse_gaussian,
    random_generalized_inverse_gaussian,
)
from pymc_augconj.auxiliary.polya_gamma.distribution import logpdf_polya_gamma, random_polya_gamma
from pymc_augconj.errors import refuse
from pymc_augconj.typing import Array, ComplexArray, Generator

LogPhi = Callable[[ComplexArray], ComplexArray]

FARTHEST = 1e250  # in units of the scale: where φ stands for its limit at infinity
NO_ATOM_BELOW = -60.0  # a log φ there that small is no atom at zero
COMPLEX_STEP = 1e-20  # relative to r
STEP_AT_ZERO = 1e-16  # relative to the scale: a larger one, as roots of r cancel near zero
LEAST_FARTHEST = 1e10  # an s below that, in units of the scale, does not stand for infinity
ROUNDING = 64.0 * np.finfo(float).eps  # of log φ near a straight line, relative
EXACT_SHIFT = 1e11  # beyond s = EXACT_SHIFT/origin, s · origin has lost its digits
SUPPORT_MARGIN = 50.0  # the support's end has at most exp(−50) of the mass below it


class TiltedDistribution:
    """φ with its scale, support and atom, for all tilts r.

    ``origin`` is the lower end of the support, zero for most distributions. ``scale`` is the r at
    which −log φ₀ is one (or half its limit, if it stays below two), where φ₀(s) = φ(s) exp(s ·
    origin) is the transform of ω − origin: 1/scale is a typical ω. ``log_atom`` is log P(ω =
    origin) at r = 0, which is log φ₀(∞); −∞ without an atom.
    """

    def __init__(self, log_phi: LogPhi) -> None:
        self._log_phi = log_phi
        self.origin, self.log_atom = 0.0, -np.inf
        at_zero = self.real(np.zeros(1))[0]
        if not abs(at_zero) < 1e-9:
            raise ValueError(f"expected log φ(0) = 0, got {at_zero}")
        self.scale, farthest = self._find_scale()
        if farthest > 0.0:
            s = np.array([np.sqrt(farthest * self.scale), farthest])
            near, edge = -(self.real(s) + SUPPORT_MARGIN) / s
            # Linear growth of −log φ: the support keeps away from zero.
            if edge * self.scale > 1e-6 and abs(near / edge - 1.0) < 1e-3:
                self.origin = float(edge)
                self.scale, farthest = self._find_scale()
        if farthest > 0.0:
            limit = self.real(np.array([farthest]))[0]
            if limit > NO_ATOM_BELOW and farthest > LEAST_FARTHEST * self.scale:
                self.log_atom = min(limit, 0.0)
        self.farthest = farthest

    def __call__(self, s: ComplexArray) -> ComplexArray:
        """Return log φ₀(s), φ₀ the transform of ω − origin."""
        # Far out in the half-plane an intermediate result may overflow; callers handle infinities.
        with np.errstate(all="ignore"):
            value = np.asarray(self._log_phi(s), dtype=np.complex128)
            return value + s * self.origin if self.origin else value

    def real(self, r: Array) -> Array:
        """Return log φ₀ at real r ≥ 0."""
        return self(np.asarray(r, dtype=np.complex128)).real

    @property
    def is_point_mass(self) -> bool:
        """Whether ω − origin is zero with certainty."""
        return self.log_atom > -1e-12 or not np.isfinite(self.scale)

    def mean(self, r: Array) -> Array:
        """E[ω − origin] under the tilts r, by a complex step; finite (a large number) at r = 0."""
        r = np.asarray(r, dtype=float)
        step = np.where(r > 0.0, COMPLEX_STEP * r, STEP_AT_ZERO * self.scale)
        return -self(r + 1j * step).imag / step

    def rough_moments(self, r: Array) -> tuple[Array, Array]:
        """E[ω − origin] and a standard deviation good to a per cent or so, from three values of φ.

        The better of two differences: over a small part of r, for distributions singular at zero,
        and over a small part of the scale, for r so small that the first is lost in rounding.
        """
        if self.is_point_mass:
            return np.zeros(r.shape), np.zeros(r.shape)
        r = np.where(r > 0.0, r, STEP_AT_ZERO * self.scale)
        mean = self.mean(r)
        # Relative to the mean, as a variance may underflow where its root does not.
        variation = np.zeros_like(mean)
        for step in (1e-4 * r, np.full_like(mean, 1e-3 * self.scale)):
            drop = 1.0 - self.mean(r + step) / mean
            # The part of the drop that is above its rounding.
            drop = np.maximum(drop - 1e-14 * (1.0 + self.origin / mean), 0.0)
            with np.errstate(divide="ignore", invalid="ignore"):
                variation = np.fmax(variation, drop / (step * mean))
        return mean, mean * np.sqrt(variation)

    def _find_scale(self) -> tuple[float, float]:
        """Find the scale, and the farthest s at which log φ₀ could be evaluated (0 if nowhere)."""
        end = 280.0 if self.origin == 0.0 else np.log10(EXACT_SHIFT / self.origin)
        exponents = grid = np.linspace(-280.0, end, 141)
        values = -self.real(10.0**exponents)
        finite = np.isfinite(values) & np.isfinite(self((1.0 + 1.0j) * 10.0**exponents))
        # If log φ is a straight line, centring ω leaves rounding only: of r · ω, and of constants
        # of order one that cancel, such as a density's normaliser.
        rounding = ROUNDING * (1.0 + self.origin * 10.0**exponents)
        if not np.any(values[finite] > rounding[finite]):
            return np.inf, 0.0
        last = finite.size - 1 if finite.all() else max(int(np.argmin(finite)) - 1, 0)
        level = min(1.0, 0.5 * values[last])
        for _ in range(3):
            beyond = ~np.isfinite(values) | (values >= level)
            first = max(int(np.argmax(beyond)), 1) if beyond.any() else len(values) - 1
            low, high = exponents[first - 1], exponents[first]
            refined = np.linspace(low, high, 13)
            exponents, values = refined, -self.real(10.0**refined)
        scale = 10.0 ** exponents[min(int(np.argmax(values >= level)), 12)]
        return scale, float(min(10.0 ** grid[last], FARTHEST * max(scale, 1.0)))


def as_distribution(log_phi: LogPhi | TiltedDistribution) -> TiltedDistribution:
    """Return ``log_phi`` as a `TiltedDistribution`."""
    return log_phi if isinstance(log_phi, TiltedDistribution) else TiltedDistribution(log_phi)


def checked_tilt(r: ArrayLike) -> Array:
    """``r`` as float64, refused unless finite and ≥ 0."""
    r = np.asarray(r, dtype=float)
    refuse("r", r, (r >= 0.0) & (r < np.inf), "a finite r ≥ 0")
    return r


# Cells, and Gauss–Legendre nodes within a cell.
_EDGES = np.linspace(-3.7, 5.9, 1201)
_WIDTH = _EDGES[1] - _EDGES[0]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)

# Grid of log |e| for the search of the scale.
_LOG_SCALES = np.linspace(-70.0, 70.0, 561)

# Second moments whose integrand falls more slowly than this power of |e| at the end of the table
# count as infinite: double precision cannot tell them from that.
_LEAST_DECAY = 1e-6


class ResidualDistribution:
    """The distribution of density ∝ φ(e²), from log φ on float arrays, tabulated when made."""

    def __init__(self, log_phi: Callable[[np.ndarray], np.ndarray]) -> None:
        with np.errstate(all="ignore"):
            distance = np.abs(np.log(-log_phi(np.exp(2.0 * _LOG_SCALES))))
        self._log_scale = _LOG_SCALES[np.nanargmin(distance)]
        self._log_phi = log_phi
        t = 0.5 * (_EDGES[:-1] + _EDGES[1:])[:, None] + 0.5 * _WIDTH * _NODES
        log_values, log_ends = self._log_density(t), self._log_density(_EDGES)
        top = log_values.max()
        self._masses = 0.5 * _WIDTH * np.exp(log_values - top) @ _WEIGHTS
        self._cumulative = np.concatenate(([0.0], np.cumsum(self._masses)))
        self._slopes = np.exp(log_ends - top) * _WIDTH
        self.variance = self._second_moment(t, log_values, log_ends)

    def _log_density(self, t: np.ndarray) -> np.ndarray:
        log_e = self._log_scale + 0.5 * np.pi * np.sinh(t)
        with np.errstate(all="ignore"):
            value = self._log_phi(np.exp(2.0 * log_e)) + log_e + np.log(np.cosh(t))
        return np.where(np.isnan(value), -np.inf, value)

    def _second_moment(self, t: Array, log_values: Array, log_ends: Array) -> float:
        """Return E[e²]; the tail beyond the table is continued as a power of |e|."""
        log_terms = log_values + np.pi * np.sinh(t)
        top = log_terms.max()
        total = 0.5 * _WIDTH * float((np.exp(log_terms - top) @ _WEIGHTS).sum())
        # Density of log |e| at the last two edges: the density of t over d log|e|/dt.
        log_e = 0.5 * np.pi * np.sinh(_EDGES[-2:])
        ends = log_ends[-2:] + 2.0 * log_e - np.log(0.5 * np.pi * np.cosh(_EDGES[-2:])) - top
        if np.isfinite(ends).all():
            decay = -(ends[1] - ends[0]) / (log_e[1] - log_e[0])
            if decay <= _LEAST_DECAY:
                return np.inf
            total += float(np.exp(ends[1])) / decay
        log_mass = np.log(self._cumulative[-1]) + log_values.max()
        with np.errstate(over="ignore"):
            return float(np.exp(np.log(total) + top - log_mass + 2.0 * self._log_scale))

    def cdf(self, e: np.ndarray) -> np.ndarray:
        """Return P(residual ≤ e), of e's shape."""
        e = np.asarray(e, dtype=float)
        with np.errstate(divide="ignore"):
            log_ratio = np.log(np.abs(e)) - self._log_scale
        t = np.clip(np.arcsinh(log_ratio / (0.5 * np.pi)), _EDGES[0], _EDGES[-1])
        cell = np.minimum(((t - _EDGES[0]) / _WIDTH).astype(int), self._masses.size - 1)
        x, mass = (t - _EDGES[cell]) / _WIDTH, self._masses[cell]
        safe = np.where(mass > 0.0, mass, 1.0)
        left, right = self._slopes[cell] / safe, self._slopes[cell + 1] / safe
        share = self._cumulative[cell] + mass * _cubic(
            x, np.minimum(left, 3.0), np.minimum(right, 3.0)
        )
        return 0.5 + 0.5 * np.sign(e) * share / self._cumulative[-1]

    def random(self, rng: Generator, size: int) -> np.ndarray:
        """Draw independent residuals, shape (size,)."""
        u = rng.random(size) * self._cumulative[-1]
        # Cells without mass are never chosen.
        cell = np.searchsorted(self._cumulative, u, side="right") - 1
        cell = np.clip(cell, 0, self._masses.size - 1)
        mass = self._masses[cell]
        share = (u - self._cumulative[cell]) / mass
        left, right = self._slopes[cell] / mass, self._slopes[cell + 1] / mass
        t = _EDGES[cell] + _WIDTH * _invert(share, left, right)
        e = np.exp(self._log_scale + 0.5 * np.pi * np.sinh(t))
        return np.where(rng.random(size) < 0.5, -e, e)


def _cubic(x: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the cubic from 0 at 0 to 1 at 1 with slopes ``left`` and ``right``."""
    a, b = left + right - 2.0, 3.0 - 2.0 * left - right
    return x * (left + x * (b + x * a))


def _invert(share: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve H(x) = share on (0, 1), H the cubic from 0 to 1 with slopes ``left`` and ``right``."""
    # Slopes beyond 3 could make the cubic leave (0, 1).
    left, right = np.minimum(left, 3.0), np.minimum(right, 3.0)
    low, high, x = np.zeros_like(share), np.ones_like(share), share.copy()
    for _ in range(12):
        a, b = left + right - 2.0, 3.0 - 2.0 * left - right
        value = x * (left + x * (b + x * a)) - share
        low, high = np.where(value < 0.0, x, low), np.where(value < 0.0, high, x)
        slope = left + x * (2.0 * b + 3.0 * x * a)
        with np.errstate(all="ignore"):
            step = x - value / slope
        x = np.where((step > low) & (step < high), step, 0.5 * (low + high))
    return x


LOGISTIC_POWERS = (1.0, 2.0)
GRID = np.geomspace(1e-4, 1e6, 21)  # in units of the scale, where log φ = −1
TOLERANCE = 1e-8


@dataclass(frozen=True)
class GammaTilts:
    """Gamma(``shape``, ``rate``): Student-t observations."""

    shape: float
    rate: float
    name = "gamma"

    def log_phi(self, r: Array) -> Array:
        return -self.shape * np.log1p(r / self.rate)

    def random(self, rng: Generator, r: Array) -> Array:
        return rng.standard_gamma(self.shape, size=np.shape(r)) / (self.rate + r)

    def logpdf(self, omega: Array, r: Array) -> Array:
        rate = self.rate + r
        log_norm = self.shape * np.log(rate) - gammaln(self.shape)
        return log_norm + xlogy(self.shape - 1.0, omega) - rate * omega


@dataclass(frozen=True)
class InverseGaussianTilts:
    """GIG(−``nu``, 0, ``b``): Matérn and Laplace observations."""

    nu: float
    b: float
    name = "generalised inverse Gaussian"

    def log_phi(self, r: Array) -> Array:
        z = np.sqrt(2.0 * self.b * r)
        polynomial = (self.nu > 1.0) * z + (self.nu > 2.0) * z**2 / 3.0
        return np.log1p(polynomial) - z

    def random(self, rng: Generator, r: Array) -> Array:
        return random_generalized_inverse_gaussian(rng, self.nu, 2.0 * r, self.b)

    def logpdf(self, omega: Array, r: Array) -> Array:
        return logpdf_generalized_inverse_gaussian(omega, self.nu, 2.0 * r, self.b)


@dataclass(frozen=True)
class PolyaGammaTilts:
    """PG(``h``, 0)/2τ: logistic observations."""

    h: float
    tau: float
    name = "Pólya–Gamma"

    def log_phi(self, r: Array) -> Array:
        half = 0.5 * np.sqrt(r / self.tau)
        return -self.h * (half + np.log1p(np.exp(-2.0 * half)) - np.log(2.0))

    def random(self, rng: Generator, r: Array) -> Array:
        return random_polya_gamma(rng, self.h, np.sqrt(r / self.tau)) / (2.0 * self.tau)

    def logpdf(self, omega: Array, r: Array) -> Array:
        scaled = 2.0 * self.tau * omega
        return logpdf_polya_gamma(scaled, self.h, np.sqrt(r / self.tau)) + np.log(2.0 * self.tau)


#: The tilts of one distribution: log φ(r), a draw from each tilt, and their log densities.
type KnownTilts = GammaTilts | InverseGaussianTilts | PolyaGammaTilts


def find_known(log_phi: Callable[[Array], Array]) -> KnownTilts | None:
    """Return the known distribution with this log φ, on float arrays of r ≥ 0, or None.

    =====================  =====================================  ==========================
    distribution at r = 0           φ(r)                                   tilt by r
    =====================  =====================================  ==========================
    Gamma(k, rate s)       (1 + r/s)^{−k}                         Gamma(k, rate s + r)
    GIG(−ν, 0, b)          2 (z/2)^ν K_ν(z)/Γ(ν), z = √(2br)       GIG(−ν, 2r, b)
    PG(h, 0)/2τ            cosh(√(r/τ)/2)^{−h}                    PG(h, √(r/τ))/2τ
    =====================  =====================================  ==========================

    They belong to Student-t, Matérn (ν = ½ is Laplace) and logistic likelihoods. φ is compared with
    each family, whose one or two parameters are read off from φ.
    """
    exponents = np.linspace(-60.0, 60.0, 481)
    with np.errstate(all="ignore"):
        values = log_phi(10.0**exponents)
        distance = np.abs(np.log(-values))
    if not np.isfinite(distance).any():
        return None
    scale = 10.0 ** exponents[np.nanargmin(distance)]
    at = float(log_phi(np.array([scale]))[0])
    with np.errstate(all="ignore"):
        expected = log_phi(scale * GRID)
        for distribution in _candidates(log_phi, scale, at):
            difference = np.abs(distribution.log_phi(scale * GRID) - expected)
            compared = np.isfinite(expected)
            if compared.any() and np.all(
                difference[compared] <= TOLERANCE * (1.0 + np.abs(expected[compared]))
            ):
                return distribution
    return None


def _candidates(log_phi: Callable[[Array], Array], scale: float, at: float) -> Iterator[KnownTilts]:
    """Yield a distribution of each family that agrees with φ at the scale and one other point."""
    for nu in ORDERS:
        z = brentq(lambda x, nu=nu: InverseGaussianTilts(nu, 0.5).log_phi(x**2) - at, 1e-6, 60.0)
        yield InverseGaussianTilts(nu, _rounded(0.5 * z**2 / scale))
    for h in LOGISTIC_POWERS:
        yield PolyaGammaTilts(h, _rounded(0.25 * scale / np.arccosh(np.exp(-at / h)) ** 2))
    # log φ(4 scale)/log φ(scale) gives s, and then log φ(scale) gives k.
    ratio = float(log_phi(np.array([4.0 * scale]))[0]) / at

    def excess(log_s: float) -> float:
        s = np.exp(log_s)
        return np.log1p(4.0 / s) / np.log1p(1.0 / s) - ratio

    if excess(-40.0) * excess(25.0) < 0.0:
        s = np.exp(brentq(excess, -40.0, 25.0, xtol=1e-14))
        yield GammaTilts(_rounded(-at / np.log1p(1.0 / s)), _rounded(s * scale))


def _rounded(value: float) -> float:
    """Drop the digits that root finding left undetermined."""
    return float(f"{value:.11g}")
