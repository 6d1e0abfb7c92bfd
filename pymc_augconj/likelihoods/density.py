"""A likelihood with its observations, as engines that integrate over one observation see it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pymc_augconj.quadrature.tilted import SiteDensity, Tilted, check_cavities, tilted_moments
from pymc_augconj.typing import Array, Index

from .base import Density, Params
from .contract import lift

__all__ = ["LikelihoodDensity", "select_params", "site_moments"]


@dataclass(frozen=True)
class LikelihoodDensity:
    """The :class:`.SiteDensity` of a likelihood, with its observations and parameters.

    Attributes
    ----------
    likelihood : Density
        With one predictor; kept as engines see it.
    y : ndarray, shape (N,)
    params : mapping
        Each entry broadcasts against (N,).
    """

    likelihood: Density
    y: Array
    params: Params

    def __post_init__(self) -> None:
        if self.likelihood.n_predictors != 1:
            raise ValueError(
                f"expected a likelihood of one predictor, got {self.likelihood.name} with "
                f"{self.likelihood.n_predictors}; a site's moments are integrals over one η: use "
                'method="cavi" or the Gibbs sampler'
            )
        object.__setattr__(self, "likelihood", lift(self.likelihood))

    @property
    def size(self) -> int:
        """N, the number of observations."""
        return self.y.size

    @property
    def landmarks(self) -> Array:
        """See :class:`~pymc_augconj.quadrature.tilted.SiteDensity`."""
        marks = self.likelihood.landmarks(self.y, self.params)
        return np.broadcast_to(marks, (len(marks), self.size))

    def __call__(self, eta: Array, sites: Index) -> Array:
        """See :class:`~pymc_augconj.quadrature.tilted.SiteDensity`."""
        params = select_params(self.params, sites, self.size)
        return self.likelihood.log_density(self.y[sites], eta[None], params)


def site_moments(
    density: SiteDensity,
    cavity_mean: Array,
    cavity_var: Array,
    *,
    power: float = 1.0,
    higher: bool = False,
    delta: bool = False,
) -> Tilted:
    """Return the tilted moments by the likelihood's closed form, if it has one, or by quadrature.

    Parameters and errors are those of :func:`~pymc_augconj.quadrature.tilted.tilted_moments`.
    """
    if isinstance(density, LikelihoodDensity) and not higher:
        check_cavities(cavity_mean, cavity_var)
        moments = density.likelihood.tilted_moments(
            density.y, cavity_mean, cavity_var, density.params, power=power, delta=delta
        )
        if moments is not None:
            return moments
    return tilted_moments(density, cavity_mean, cavity_var, power=power, higher=higher, delta=delta)


def select_params(params: Params, sites: Index, size: int) -> dict[str, Array]:
    """Return the parameters of the chosen sites; one shared by all sites is unchanged."""
    chosen = {}
    for name, value in params.items():
        value = np.asarray(value)
        varies = value.ndim > 0 and value.shape[-1] == size and size > 1
        chosen[name] = value[..., sites] if varies else value
    return chosen
