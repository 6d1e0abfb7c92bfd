"""Any super-Gaussian likelihood, known only by its log φ.

    p(y | η) = C exp(g η) φ(c²),  c² = α − βη + γη²,  φ(r) = ∫ e^{−ωr} π(ω) dω,
    ω ~ e^{−c²ω} π(ω)/φ(c²),    λ = 2γω,  h = g + βω.

A location family has g = 0, c² = (y − η)². log C, g, α, β and γ may depend on y; they are
parameters. All else is numerical: draws and densities of ω by inversion of φ, and
E[ω] = −(log φ)′(c²) by automatic differentiation.

References
----------
Galy-Fajou, T., Wenzel, F. & Opper, M. (2020). Automated augmented conjugate inference for
non-conjugate Gaussian process models. AISTATS. Ridout, M. S. (2009). Generating random numbers from
a distribution specified by its Laplace transform. Statistics and Computing 19.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from pymc_augconj.auxiliary.laplace_transform.distribution import (
    KnownTilts,
    ResidualDistribution,
    find_known,
)
from pymc_augconj.errors import NotSuperGaussianError
from pymc_augconj.typing import Array, Generator

from .base import Joint, JointWriter, Likelihood, Params, Sites
from .registry import register

# Number of hyperparameter values whose distributions, with their tables, are kept.
_KEPT = 8
# The same for residuals, some 30 kB each: one for every posterior draw of φ's hyperparameters.
_KEPT_RESIDUALS = 4096

# Of r in a complex step, relative and absolute: errors of its square, and no cancellation of √r.
_RELATIVE_STEP = 1e-8
_LEAST_STEP = 1e-6

# Distinct hyperparameters of φ that are checked for an augmentation after a fit.
_MOST_CHECKED = 5

# Below −this, relative to α, the least value of c² is negative by more than rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Phi:
    """log φ as a NumPy function, with the names of its hyperparameters in the likelihood.

    ``log_phi`` is ``(r, values)`` at real or complex r of any shape, with hyperparameters that
    broadcast against it; ``slope`` is its derivative, at real r.
    """

    names: tuple[str, ...]
    log_phi: Callable[[Any, list[Array]], Any]
    slope: Callable[[Array, list[Array]], Array]

    def values(self, params: Params) -> list[Array]:
        """Return its hyperparameters' values."""
        return [np.asarray(params[name], dtype=float) for name in self.names]


@register
class SuperGaussian(Likelihood):
    """One super-Gaussian likelihood.

    With ``is_location`` c² = (y − η)², and ``params`` has ``log_c``, but no g, alpha, beta and
    gamma. ``known`` is the closed form of the distribution of ω by :meth:`find_known` at some
    hyperparameters; the class finds it again at other values.
    """

    name = "super-Gaussian"
    augmentation = "inverse Laplace of φ (numerical)"
    patterns = ()

    def __init__(self, phi: Phi, is_location: bool = True, known: KnownTilts | None = None) -> None:
        self.phi, self.is_location, self._known = phi, is_location, known is not None
        if known is not None:
            self.augmentation = f"{known.name} (closed form of φ)"
        if not is_location:
            self.unpredictable = (
                "g, α, β and γ are known at the observed y alone, so that a new y has no "
                "distribution; predict kind='f'"
            )
        self._start_caches()

    def _start_caches(self) -> None:
        self._tilts_at = lru_cache(_KEPT)(self._find_tilts)
        self._residuals_at = lru_cache(_KEPT_RESIDUALS)(self._find_residuals)

    def __getstate__(self) -> dict[str, Any]:
        # Tables are made again in the process that needs them.
        caches = ("_tilts_at", "_residuals_at", "_families")
        return {name: value for name, value in vars(self).items() if name not in caches}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start_caches()

    @staticmethod
    def find_known(phi: Phi, values: list[Array]) -> KnownTilts | None:
        """Return the closed form of a φ at the given hyperparameters, or None."""
        return find_known(lambda r: phi.log_phi(r, values))

    # -- the contract -------------------------------------------------------------------------

    def check(self, y: Array, params: Params) -> str | None:
        sentence = super().check(y, params)
        if sentence is None and not self.is_location:
            least = self._least(params)
            bad = np.flatnonzero(~np.broadcast_to(least >= 0.0, y.shape))
            if bad.size:
                return f"expected α − βf + γf² ≥ 0 for every f, γ > 0, at position {bad[0]}"
        return sentence

    def check_augmentation(self, params: Params) -> str | None:
        # Imported here: a user of other likelihoods does not pay for Numba.
        from pymc_augconj.auxiliary.laplace_transform.complete_monotonicity import (
            check_completely_monotone,
        )

        values = self.phi.values(params)
        if not values:
            return None
        rows = np.stack([value.ravel() for value in np.broadcast_arrays(*values)], axis=-1)
        for row in np.unique(rows, axis=0)[:_MOST_CHECKED]:
            with np.errstate(all="ignore"):
                reason = check_completely_monotone(self._log_phi_at(row))
            if reason is not None:
                return _no_augmentation(row, reason)
        return None

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        return self._log_bound(y, eta, 0.0, params)

    def draw_auxiliary(self, rng: Generator, y: Array, eta: Array, params: Params) -> Array:
        return self._draw(rng, self._tilt(y, eta, 0.0, params), params)

    def _draw(self, rng: Generator, r: Array, params: Params) -> Array:
        values = self.phi.values(params)
        if _is_one(values):
            return self._distribution(values).random(rng, r)
        omega = np.empty_like(r)
        for here, own in self._groups(values, r.shape):
            omega[here] = self._distribution(own).random(rng, r[here])
        return omega

    def sites(self, y: Array, omega: Any, params: Params) -> Sites:
        g, beta, gamma = self._coefficients(y, params)
        return g + beta * omega, 2.0 * gamma * omega

    def expected_sites(self, y: Array, mean: Array, var: Array, params: Params) -> Sites:
        _, _, gamma = self._coefficients(y, params)
        r = self._tilt(y, mean, gamma * var, params)
        return self.sites(y, self._mean(r, self.phi.values(params)), params)

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        return self._log_bound(y, mean, self._coefficients(y, params)[2] * var, params)

    def log_base(self, y: Array, omega: Any, params: Params) -> Array:
        # log π(ω), and −αω = −γ(β/2γ)²ω − least · ω.
        _, beta, gamma = self._coefficients(y, params)
        alpha = 0.25 * beta**2 / gamma + self._least(params)
        return params["log_c"] - alpha * omega + self._log_prior(omega, params)

    def log_conditional(self, omega: Any, y: Array, eta: Array, params: Params) -> Array:
        return self._log_density_of(omega, self._tilt(y, eta, 0.0, params), params)

    def joint(self, write: JointWriter, y: Any, eta: Any, params: Params) -> Joint:
        names = self.phi.names

        def logpdf(omega: Array, *values: Array) -> Array:
            omega, *others = np.broadcast_arrays(omega, *values)
            return self._log_prior(omega, dict(zip(names, others, strict=True)))

        def random(rng: Generator, shape: tuple[int, ...], *values: Array) -> Array:
            return self._draw(rng, np.zeros(shape), dict(zip(names, values, strict=True)))

        def log_factor(y: Any, eta: Any, omega: Any, params: Any) -> Any:
            if self.is_location:
                return params["log_c"] - omega * (y - eta) ** 2
            square = params["alpha"] - params["beta"] * eta + params["gamma"] * eta**2
            return params["log_c"] + params["g"] * eta - omega * square

        hyper = [params[name] for name in names]
        omega = write.numerical("omega", "InverseLaplace", logpdf, random, hyper, positive=True)
        return [omega], log_factor

    def _log_prior(self, omega: Array, params: Params) -> Array:
        """Return log π(ω)."""
        return self._log_density_of(omega, np.zeros(1), params)

    def _mean(self, r: Array, values: list[Array]) -> Array:
        """Return E[ω] under the tilts r."""
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = -self.phi.slope(r, values)
        if np.isnan(mean).any():
            # By the chain rule a derivative may be 0 · ∞ at r = 0; a complex step is not.
            step = np.maximum(_RELATIVE_STEP * r, _LEAST_STEP)
            by_step = -self.phi.log_phi(r + 1j * step, values).imag / step
            mean = np.where(np.isnan(mean), by_step, mean)
        return mean

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array]:
        values = self.phi.values(params)
        if _is_one(values):
            return eta, np.full(np.shape(eta), self._residuals(values).variance)
        var = np.empty(np.broadcast_shapes(*(value.shape for value in values)))
        for here, own in self._groups(values, var.shape):
            var[here] = self._residuals(own).variance
        return eta, np.broadcast_to(var, np.shape(eta))

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        values, e = self.phi.values(params), y - eta
        if _is_one(values):
            return self._residuals(values).cdf(e)
        shape = np.broadcast_shapes(*(value.shape for value in values))
        # Hyperparameters differ along the axes on which their shape is not 1.
        result = np.empty(e.shape)
        for here, own in self._groups(values, shape):
            at = tuple(i if n > 1 else slice(None) for i, n in zip(here, shape, strict=True))
            result[at] = self._residuals(own).cdf(e[at])
        return result

    def _residuals(self, values: list[Array]) -> ResidualDistribution:
        return self._residuals_at(*(float(np.ravel(value)[0]) for value in values))

    def _find_residuals(self, *values: float) -> ResidualDistribution:
        return ResidualDistribution(self._log_phi_at(values))

    def _log_phi_at(self, values: Iterable[float]) -> Callable[[Any], Any]:
        """Return log φ as a function of r."""
        fixed = [np.array(value) for value in values]
        return lambda r: self.phi.log_phi(r, fixed)

    # -- formulas -----------------------------------------------------------------------------

    def _coefficients(self, y: Array, params: Params) -> tuple[Any, Any, Any]:
        """Return g, β and γ."""
        if self.is_location:
            return 0.0, 2.0 * y, 1.0
        return params["g"], params["beta"], params["gamma"]

    def _least(self, params: Params) -> Array | float:
        """Return min c² over η, NaN where it is negative or there is none."""
        if self.is_location:
            return 0.0
        alpha, beta, gamma = params["alpha"], params["beta"], params["gamma"]
        with np.errstate(all="ignore"):
            least = alpha - 0.25 * beta**2 / gamma
        good = (least >= -_ROUNDING * (1.0 + np.abs(alpha))) & (gamma > 0.0)
        return np.where(good, np.maximum(least, 0.0), np.nan)

    def _tilt(self, y: Array, eta: Array, excess: Array | float, params: Params) -> Array:
        """Return c² at η, plus ``excess``: the square is completed, so that nothing cancels."""
        if self.is_location:
            return (y - eta) ** 2 + excess
        _, beta, gamma = self._coefficients(y, params)
        return gamma * (eta - 0.5 * beta / gamma) ** 2 + self._least(params) + excess

    def _log_bound(self, y: Array, eta: Array, excess: Array | float, params: Params) -> Array:
        r = self._tilt(y, eta, excess, params)
        g, _, _ = self._coefficients(y, params)
        with np.errstate(over="ignore"):
            log_phi = self.phi.log_phi(r, self.phi.values(params))
        return params["log_c"] + g * eta + log_phi

    def _log_density_of(self, omega: Any, r: Array, params: Params) -> Array:
        omega, r = np.broadcast_arrays(np.asarray(omega, dtype=float), r)
        values = self.phi.values(params)
        if _is_one(values):
            return self._distribution(values).logpdf(omega, r)
        result = np.empty(omega.shape)
        for here, own in self._groups(values, omega.shape):
            result[here] = self._distribution(own).logpdf(omega[here], r[here])
        return result

    def _groups(
        self, values: list[Array], shape: tuple[int, ...]
    ) -> Iterator[tuple[Any, list[Array]]]:
        """Yield (indices, hyperparameters) of the sites that have the same hyperparameters."""
        rows = np.stack([np.broadcast_to(value, shape).ravel() for value in values], axis=-1)
        distinct, which = np.unique(rows, axis=0, return_inverse=True)
        for i, row in enumerate(distinct):
            yield np.unravel_index(np.flatnonzero(which == i), shape), [np.array(v) for v in row]

    def _distribution(self, values: list[Array]) -> Any:
        """Return the tilts of φ at hyperparameters: ``random(rng, r)`` and ``logpdf(ω, r)``."""
        return self._tilts_at(*(float(np.ravel(value)[0]) for value in values))

    def _find_tilts(self, *values: float) -> Any:
        log_phi = self._log_phi_at(values)
        if self._known and (known := find_known(log_phi)) is not None:
            return known
        try:
            return self._families.find(log_phi)
        except NotSuperGaussianError as error:
            raise NotSuperGaussianError(_no_augmentation(values, str(error))) from None

    @cached_property
    def _families(self) -> Any:
        # Imported here: a user of other likelihoods does not pay for Numba.
        from pymc_augconj.auxiliary.laplace_transform.table_sampler import ScaleFamilies

        return ScaleFamilies()


def _is_one(values: list[Array]) -> bool:
    """Whether all sites have the same hyperparameters."""
    return all(value.size == 1 for value in values)


def _no_augmentation(values: Iterable[float], why: str) -> str:
    listed = ", ".join(f"{float(value):.4g}" for value in values)
    return (
        f"log_phi with its hyperparameters at ({listed}), which their prior allows: {why}, so that "
        "there is no auxiliary variable; give them a prior that excludes such values, or use "
        "pac.fit with method 'vgp' or 'ep', which need only the density"
    )
