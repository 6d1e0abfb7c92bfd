"""Tilted moments of a likelihood: in closed form where that is exact, else by quadrature.

With the cavity N(m, v):

* probit, s = ±1 the sign of y, z = s m/√(1 + v), ρ = φ(z)/Φ(z):

      Ẑ = Φ(z),    mean = m + s v ρ/√(1 + v),    var = v (1 + v (1 − ρ (z + ρ))) / (1 + v);

* normal of variance σ², any power η: the product of two normals; δ = 0.

* Poisson with square link: even moments of a normal, see
  :mod:`~pymc_augconj.likelihoods.poisson_square`.

References
----------
Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, section 3.9.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.special import erfcx, gammaln, log_ndtr, xlogy

from pymc_augconj.likelihoods.bernoulli_probit import BernoulliProbit
from pymc_augconj.likelihoods.density import LikelihoodDensity
from pymc_augconj.likelihoods.normal import Normal
from pymc_augconj.likelihoods.poisson_square import LARGEST_COUNT, PoissonSquare, log_moment, tilt
from pymc_augconj.quadrature.density import SiteDensity
from pymc_augconj.quadrature.tilted import Tilted, check_cavities, tilted_moments
from pymc_augconj.typing import Array, Mask

__all__ = [
    "normal_tilted",
    "poisson_square_tilted",
    "probit_delta",
    "probit_tilted",
    "site_moments",
]


_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)
_SQRT_2_OVER_PI = np.sqrt(2.0 / np.pi)
# Below this, 1 − ρ(z + ρ) comes from its asymptotic series, of relative error 700/z⁸.
_FAR = -60.0

# Above this, the variance as a difference of moments E[f²] − E[f]² has lost too many digits.
_LARGEST_CANCELLATION = 1e4


def probit_tilted(positive: Mask, cavity_mean: Array, cavity_var: Array) -> Tilted:
    """Return the moments of Φ(±f) N(f | m, v); ``positive`` says for which sites the sign is +."""
    sign = np.where(positive, 1.0, -1.0)
    root = np.sqrt(1.0 + cavity_var)
    z = sign * cavity_mean / root
    # φ/Φ without an underflow of either.
    ratio = _SQRT_2_OVER_PI / erfcx(-z / np.sqrt(2.0))
    far = np.minimum(z, _FAR) ** -2.0
    series = far * (1.0 - far * (6.0 - far * (50.0 - 518.0 * far)))
    shrunk = np.where(z < _FAR, series, 1.0 - ratio * (z + ratio))
    mean = cavity_mean + sign * cavity_var * ratio / root
    return Tilted(log_ndtr(z), mean, cavity_var * (1.0 + cavity_var * shrunk) / root**2)


def normal_tilted(
    y: Array, sigma: Array, cavity_mean: Array, cavity_var: Array, power: float = 1.0
) -> Tilted:
    """Return the moments of N(y | f, σ²)^η N(f | m, v)."""
    noise = sigma**2 / power
    total = noise + cavity_var
    gain = cavity_var / total
    error = y - cavity_mean
    # N(y | f, σ²)^η = N(y | f, σ²/η) · (2πσ²)^(−η/2) (2πσ²/η)^½
    log_factor = (1.0 - power) * (_HALF_LOG_2PI + np.log(sigma)) - 0.5 * np.log(power)
    log_Z = log_factor - 0.5 * (error**2 / total + np.log(total)) - _HALF_LOG_2PI
    return Tilted(log_Z, cavity_mean + gain * error, gain * noise)


def poisson_square_tilted(
    y: Array, exposure: Array, cavity_mean: Array, cavity_var: Array
) -> Tilted | None:
    """Return the moments of Poisson(y | c f²) N(f | m, v), or None where they would be rounded."""
    if np.max(y, initial=0.0) > LARGEST_COUNT:
        return None
    log_constant, mean, var = tilt(cavity_mean, cavity_var, exposure)
    zeroth, first, second = (log_moment(2.0 * y + k, mean, var) for k in range(3))
    tilted_mean = np.sign(mean) * np.exp(first - zeroth)
    square = np.exp(second - zeroth)
    tilted_var = square - tilted_mean**2
    if not np.all(square < _LARGEST_CANCELLATION * tilted_var):
        return None
    log_Z = xlogy(y, exposure) - gammaln(y + 1.0) + log_constant + zeroth
    return Tilted(log_Z, tilted_mean, tilted_var)


def _poisson_square(
    density: LikelihoodDensity, cavity_mean: Array, cavity_var: Array, power: float, delta: bool
) -> Tilted | None:
    if power != 1.0 or delta:
        return None
    exposure = np.asarray(density.params["exposure"])
    return poisson_square_tilted(density.y, exposure, cavity_mean, cavity_var)


def probit_delta(positive: Mask, cavity_mean: Array, cavity_var: Array, tilted: Tilted) -> Array:
    """Return δ of quantile propagation for sites whose moments are known.

    It is NaN where a step is too steep, or too little of the cavity beyond it, for the panels of
    :mod:`.probit_delta`.
    """
    # Loads Numba, which nothing else here needs.
    from .probit_shift import fill_probit_delta

    sign, root = np.where(positive, 1.0, -1.0), np.sqrt(cavity_var)
    mean, std = sign * (tilted.mean - cavity_mean) / root, np.sqrt(tilted.var) / root
    delta = np.empty(cavity_mean.shape)
    fill_probit_delta(sign * cavity_mean, root, tilted.log_Z, mean, std, delta)
    return delta


def _probit(
    density: LikelihoodDensity, cavity_mean: Array, cavity_var: Array, power: float, delta: bool
) -> Tilted | None:
    if power != 1.0:
        return None
    positive = density.y > 0
    tilted = probit_tilted(positive, cavity_mean, cavity_var)
    if not delta:
        return tilted
    found = probit_delta(positive, cavity_mean, cavity_var, tilted)
    hard = np.flatnonzero(np.isnan(found))
    if hard.size:
        rest = LikelihoodDensity(density.likelihood, density.y[hard], density.params)
        panels = tilted_moments(rest, cavity_mean[hard], cavity_var[hard], delta=True)
        found[hard] = panels.delta
    return replace(tilted, delta=found)


def _normal(
    density: LikelihoodDensity, cavity_mean: Array, cavity_var: Array, power: float, delta: bool
) -> Tilted | None:
    sigma = np.asarray(density.params["sigma"])
    tilted = normal_tilted(density.y, sigma, cavity_mean, cavity_var, power)
    return replace(tilted, delta=np.zeros(tilted.mean.shape)) if delta else tilted


_CLOSED: dict[type, Callable[..., Tilted | None]] = {
    BernoulliProbit: _probit,
    Normal: _normal,
    PoissonSquare: _poisson_square,
}


def site_moments(
    density: SiteDensity,
    cavity_mean: Array,
    cavity_var: Array,
    *,
    power: float = 1.0,
    higher: bool = False,
    delta: bool = False,
) -> Tilted:
    """Return the tilted moments by the closed form, if there is one for what is asked.

    Parameters and errors are those of :func:`~pymc_augconj.quadrature.tilted.tilted_moments`.
    """
    if isinstance(density, LikelihoodDensity) and not higher:
        closed = _CLOSED.get(type(density.likelihood))
        if closed is not None:
            check_cavities(cavity_mean, cavity_var)
            moments = closed(density, cavity_mean, cavity_var, power, delta)
            if moments is not None:
                return moments
    return tilted_moments(density, cavity_mean, cavity_var, power=power, higher=higher, delta=delta)
