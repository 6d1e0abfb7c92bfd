"""A likelihood with its observations, for engines that integrate over one observation."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from pymc_augconj.quadrature.tilted import SiteDensity, Tilted, check_cavities, tilted_moments
from pymc_augconj.typing import Array, Index

from .base import Density, Params
from .contract import lift

# Number of observations from which equal ones are looked for; how many there have to be of each on
# average; and the difference of cavities that are the same, in standard deviations.
_MANY, _FEW, _SAME = 250, 4, 1e-11


@dataclass(frozen=True)
class LikelihoodDensity:
    """The :class:`.SiteDensity` of a likelihood of one predictor, with its observations."""

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
    """Return the tilted moments by the likelihood's closed form, if it exists, or by quadrature.

    Arguments and errors are those of :func:`~pymc_augconj.quadrature.tilted.tilted_moments`. Equal
    observations with equal cavities are integrated once.
    """
    if isinstance(density, LikelihoodDensity) and density.size >= _MANY:
        first, inverse = _distinct(density, cavity_mean, cavity_var)
        if first.size * _FEW <= density.size:
            params = select_params(density.params, first, density.size)
            found = site_moments(
                LikelihoodDensity(density.likelihood, density.y[first], params),
                cavity_mean[first], cavity_var[first], power=power, higher=higher, delta=delta,
            )  # fmt: skip
            values = {each.name: getattr(found, each.name) for each in fields(found)}
            arrays: dict[str, Any] = {
                name: value[inverse]
                for name, value in values.items()
                if isinstance(value, np.ndarray)
            }
            return Tilted(**arrays)
    if isinstance(density, LikelihoodDensity) and not higher:
        check_cavities(cavity_mean, cavity_var)
        moments = density.likelihood.tilted_moments(
            density.y, cavity_mean, cavity_var, density.params, power=power, delta=delta
        )
        if moments is not None:
            return moments
    return tilted_moments(density, cavity_mean, cavity_var, power=power, higher=higher, delta=delta)


def _distinct(
    density: LikelihoodDensity, cavity_mean: Array, cavity_var: Array
) -> tuple[Index, Index]:
    """Return one of each group of equal observations and cavities, and the group of each."""
    varying = select_params(density.params, np.arange(density.size), density.size).values()
    # Equal cavities differ by the rounding of how they were computed.
    columns = [
        np.rint(cavity_mean / np.sqrt(cavity_var) / _SAME),
        np.rint(np.log(cavity_var) / _SAME),
        density.y,
        *(row for v in varying if np.ndim(v) for row in np.reshape(v, (-1, np.shape(v)[-1]))),
    ]
    first, inverse = np.zeros(1, dtype=np.intp), np.zeros(density.size, dtype=np.intp)
    for column in columns:
        own, values = np.unique(column, return_inverse=True)
        codes = inverse * own.size + values.ravel()
        _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        if first.size * _FEW > density.size:
            break
    return first, inverse


def select_params(params: Params, sites: Index, size: int) -> dict[str, Array]:
    """Return the parameters of the chosen sites; one shared by all sites is unchanged."""
    chosen = {}
    for name, value in params.items():
        value = np.asarray(value)
        varies = value.ndim > 0 and value.shape[-1] == size and size > 1
        chosen[name] = value[..., sites] if varies else value
    return chosen
