"""Any likelihood known only by its log density, a function of NumPy arrays.

What reads the model (``recognize``) rebuilds PyMC's own density of an observed variable as a plain
function of y, η and the hyperparameters it contains, and hands it over here. If it is censored, an
observation at ``params["lower"]`` means y ≤ lower, one at ``params["upper"]`` y ≥ upper.

References
----------
Tobin, J. (1958). Estimation of relationships for limited dependent variables. Econometrica 26.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from pymc_augconj.errors import AugmentationError
from pymc_augconj.typing import Array

from .base import Params, refusal
from .contract import MultiDensity

__all__ = ["GenericLikelihood"]

# Predictors at one of which an observation that is possible at all has a density.
_ETA = np.array([0.0, -0.5, 0.5, -2.0, 2.0, -6.0, 6.0])

LogDensity = Callable[[Array, Array, Params], Array]


class GenericLikelihood(MultiDensity):
    """One likelihood of PyMC's.

    Parameters
    ----------
    name, link : str
        For reports and messages. The link ``"identity"`` means that η is a parameter of the
        distribution itself.
    log_density : callable
        ``(y, eta, params)``: log p(y | η), for ``eta`` of shape (P, …); arguments broadcast.
    log_cdf : callable, optional
        Likewise log P(Y ≤ y | η).
    discrete : bool
        Whether y takes integer values only.
    n_predictors : int
        P.
    n_classes : int, optional
        Number of classes, if y is one.
    censored : bool
        Whether y is censored; a parameter that is not there is an infinite bound.
    """

    patterns = ()

    def __init__(
        self,
        name: str,
        link: str,
        log_density: LogDensity,
        log_cdf: LogDensity | None = None,
        *,
        discrete: bool = False,
        n_predictors: int = 1,
        n_classes: int | None = None,
        censored: bool = False,
    ) -> None:
        self.name, self.link, self.discrete = name, link, discrete
        self.n_predictors, self.n_classes = n_predictors, n_classes
        self._log_density, self._log_cdf, self._censored = log_density, log_cdf, censored

    def bounds(self, params: Params) -> tuple[Array, Array] | None:
        if not self._censored:
            return None
        return params.get("lower", np.array(-np.inf)), params.get("upper", np.array(np.inf))

    def check(self, y: Array, params: Params) -> str | None:
        sentence = refusal(y, np.isfinite(y), "a finite number")
        if sentence is None and self.discrete:
            sentence = refusal(y, y == np.floor(y), "an integer")
        if sentence is not None:
            return sentence
        possible = np.zeros(y.shape, dtype=bool)
        # Predictors that are the same, and with signs in turn.
        signs = {1.0, 1.0 if self.n_predictors == 1 else -1.0}
        for first, sign in product(_ETA, sorted(signs, reverse=True)):
            at = first * np.where(np.arange(self.n_predictors) % 2, sign, 1.0)
            eta = np.broadcast_to(at[:, None], (at.size, y.size))
            possible |= self.log_density(y, eta, params) > -np.inf
        # Parameters out of range leave no y possible at all, and are PyMC's to refuse.
        if not possible.any():
            return None
        return refusal(y, possible, f"a value that {self.name} can take")

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        return self._log_density(y, eta, params)

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        if self._log_cdf is None:
            raise AugmentationError(
                f"PyMC has no distribution function of {self.name}, which quantiles of y need; ask "
                "for its mean and standard deviation, or for log densities (ynew=…)"
            )
        return np.exp(self._log_cdf(np.floor(y) if self.discrete else y, eta, params))
