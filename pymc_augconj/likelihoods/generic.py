"""Any likelihood known only by its log density, a function of NumPy arrays.

What reads the model (``recognize``) rebuilds PyMC's own density of an observed variable as a plain
function of y, η and the hyperparameters it contains, and hands it over here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from pymc_augconj.errors import AugmentationError
from pymc_augconj.typing import Array

from .base import DensityLikelihood, LikelihoodFacts, Params, refusal
from .several import MultiDensity

__all__ = ["GenericLikelihood", "GenericSeveral"]

# Predictors at one of which an observation that is possible at all has a density.
_ETA = np.array([0.0, -0.5, 0.5, -2.0, 2.0, -6.0, 6.0])

Density = Callable[[Array, Array, Params], Array]


class GenericLikelihood(DensityLikelihood):
    """One likelihood of PyMC's.

    Parameters
    ----------
    name, link : str
        For reports and messages. The link ``"identity"`` means that η is a parameter of the
        distribution itself.
    log_density : callable
        ``(y, eta, params)``: log p(y | η); arguments broadcast.
    log_cdf : callable, optional
        Likewise log P(Y ≤ y | η).
    discrete : bool
        Whether y takes integer values only.
    """

    patterns = ()

    def __init__(
        self,
        name: str,
        link: str,
        log_density: Density,
        log_cdf: Density | None = None,
        *,
        discrete: bool = False,
    ) -> None:
        self.name, self.link, self.discrete = name, link, discrete
        self._log_density, self._log_cdf = log_density, log_cdf

    def check(self, y: Array, params: Params) -> str | None:
        etas = (np.full(y.shape, eta) for eta in _ETA)
        return _check(self, y, (self.log_density(y, eta, params) for eta in etas))

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        return self._log_density(y, eta, params)

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        if self._log_cdf is None:
            raise AugmentationError(
                f"PyMC has no distribution function of {self.name}, which quantiles of y need; ask "
                "for its mean and standard deviation, or for log densities (ynew=…)"
            )
        if self.discrete:
            y = np.floor(y)
        return np.exp(self._log_cdf(y, eta, params))


class GenericSeveral(MultiDensity):
    """One likelihood of PyMC's with several predictors.

    Parameters
    ----------
    name : str
        For reports and messages.
    n_predictors : int
        P.
    log_density : callable
        ``(y, eta, params)``: log p(y | η), for ``eta`` of shape (P, …); arguments broadcast.
    discrete : bool
        Whether y takes integer values only.
    """

    patterns, link = (), "its own"

    def __init__(
        self, name: str, n_predictors: int, log_density: Density, *, discrete: bool = False
    ) -> None:
        self.name, self.n_predictors, self.discrete = name, n_predictors, discrete
        self._log_density = log_density

    def check(self, y: Array, params: Params) -> str | None:
        signs = np.where(np.arange(self.n_predictors) % 2, -1.0, 1.0)
        etas = [eta * sign for eta in _ETA for sign in (np.ones(self.n_predictors), signs)]
        wide = (np.repeat(eta[:, None], y.size, axis=1) for eta in etas)
        return _check(self, y, (self.log_density(y, eta, params) for eta in wide))

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        return self._log_density(y, eta, params)


def _check(likelihood: LikelihoodFacts, y: Array, log_densities: Iterable[Array]) -> str | None:
    """Return what is wrong with y, from its log densities at several predictors."""
    sentence = refusal(y, np.isfinite(y), "a finite number")
    if sentence is None and likelihood.discrete:
        sentence = refusal(y, y == np.floor(y), "an integer")
    if sentence is not None:
        return sentence
    possible = np.zeros(y.shape, dtype=bool)
    for log_density in log_densities:
        possible |= log_density > -np.inf
    # Parameters out of range leave no y possible at all, and are PyMC's to refuse.
    if not possible.any():
        return None
    return refusal(y, possible, f"a value that {likelihood.name} can take")
