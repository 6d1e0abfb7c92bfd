"""A likelihood with its observations, as engines that integrate over one observation see it.

A likelihood may name its own by an optional method ``landmarks(y, params)``, shape (L, N), as one
with a square link should (0 and ±√y); otherwise they are y where the link is the identity, and
none elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_augconj.quadrature.density import Index

from .base import DensityLikelihood, Params

__all__ = ["LikelihoodDensity", "select_params"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LikelihoodDensity:
    """A likelihood with its observations and parameters, as a
    :class:`~pymc_augconj.quadrature.density.SiteDensity`.

    Attributes
    ----------
    likelihood : DensityLikelihood
        With one predictor.
    y : ndarray, shape (N,)
    params : mapping
        Each entry broadcasts against (N,).
    """

    likelihood: DensityLikelihood
    y: Array
    params: Params

    def __post_init__(self):
        if self.likelihood.n_predictors != 1:
            raise ValueError(
                f"expected a likelihood of one predictor, got {self.likelihood.name} with "
                f"{self.likelihood.n_predictors}; a site's moments are integrals over one η: use "
                'method="cavi" or the Gibbs sampler'
            )

    @property
    def size(self) -> int:
        """N, the number of observations."""
        return self.y.size

    @property
    def landmarks(self) -> Array:
        """See :class:`~pymc_augconj.quadrature.density.SiteDensity`."""
        own = getattr(self.likelihood, "landmarks", None)
        if own is not None:
            return np.stack(
                [np.broadcast_to(mark, self.y.shape) for mark in own(self.y, self.params)]
            )
        if self.likelihood.link == "identity":
            return self.y[None]
        return np.empty((0, self.size))

    def __call__(self, eta: Array, sites: Index) -> Array:
        """See :class:`~pymc_augconj.quadrature.density.SiteDensity`."""
        params = select_params(self.params, sites, self.size)
        return self.likelihood.log_density(self.y[sites], eta, params)

    def with_params(self, params: Mapping[str, Array]) -> LikelihoodDensity:
        """Return the same observations under other parameters."""
        return LikelihoodDensity(self.likelihood, self.y, params)


def select_params(params: Params, sites: Index, size: int) -> dict[str, Array]:
    """Return the parameters of the chosen sites; one that all sites share stays as it is."""
    chosen = {}
    for name, value in params.items():
        value = np.asarray(value)
        varies = value.ndim > 0 and value.shape[-1] == size and size > 1
        chosen[name] = value[..., sites] if varies else value
    return chosen
