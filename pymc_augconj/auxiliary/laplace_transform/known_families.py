"""Distributions whose Laplace transform φ and tilts have closed forms, and finding them.

=====================  =====================================  ====================================
distribution at r = 0           φ(r)                                   tilt by r
=====================  =====================================  ====================================
Gamma(k, rate s)       (1 + r/s)^{−k}                         Gamma(k, rate s + r)
GIG(−ν, 0, b)          2 (z/2)^ν K_ν(z)/Γ(ν), z = √(2br)       GIG(−ν, 2r, b)
PG(h, 0)/2τ            cosh(√(r/τ)/2)^{−h}                    PG(h, √(r/τ))/2τ
=====================  =====================================  ====================================

They belong to Student-t, Matérn (ν = ½ is Laplace) and logistic likelihoods. `find_known` compares
φ with each family, whose one or two parameters are read off from φ.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln, xlogy

from pymc_augconj.auxiliary.generalized_inverse_gaussian import (
    logpdf_generalized_inverse_gaussian,
    random_generalized_inverse_gaussian,
)
from pymc_augconj.auxiliary.polya_gamma.distribution import (
    logpdf_polya_gamma,
    random_polya_gamma,
)
from pymc_augconj.typing import Array

SMOOTHNESS = (0.5, 1.5, 2.5)
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

    def random(self, rng: np.random.Generator, r: Array) -> Array:
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

    def random(self, rng: np.random.Generator, r: Array) -> Array:
        return random_generalized_inverse_gaussian(rng, -self.nu, 2.0 * r, self.b)

    def logpdf(self, omega: Array, r: Array) -> Array:
        return logpdf_generalized_inverse_gaussian(omega, -self.nu, 2.0 * r, self.b)


@dataclass(frozen=True)
class PolyaGammaTilts:
    """PG(``h``, 0)/2τ: logistic observations."""

    h: float
    tau: float
    name = "Pólya–Gamma"

    def log_phi(self, r: Array) -> Array:
        half = 0.5 * np.sqrt(r / self.tau)
        return -self.h * (half + np.log1p(np.exp(-2.0 * half)) - np.log(2.0))

    def random(self, rng: np.random.Generator, r: Array) -> Array:
        return random_polya_gamma(rng, self.h, np.sqrt(r / self.tau)) / (2.0 * self.tau)

    def logpdf(self, omega: Array, r: Array) -> Array:
        scaled = 2.0 * self.tau * omega
        return logpdf_polya_gamma(scaled, self.h, np.sqrt(r / self.tau)) + np.log(2.0 * self.tau)


#: The tilts of one distribution: log φ(r), a draw from each tilt, and their log densities.
type KnownTilts = GammaTilts | InverseGaussianTilts | PolyaGammaTilts


def find_known(log_phi: Callable[[Array], Array]) -> KnownTilts | None:
    """Return the known distribution with this log φ, on float arrays of r ≥ 0, or None."""
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
    for nu in SMOOTHNESS:
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
