"""Numbers that identify the fitted model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pymc_augconj.model import LatentGaussianModel, Point
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.processes.input_data import sums_of_arrays
from pymc_augconj.typing import Array

__all__ = ["Fingerprint", "densities"]


@dataclass(frozen=True)
class Fingerprint:
    """Numbers by which a fit recognises its model.

    Attributes
    ----------
    densities : dict of str to float
        Log density of each observed variable at fixed innovations and the fit's θ; it depends on
        the likelihood, its parameters, offsets and designs.
    inputs : dict of str to list of float
        Weighted sums over each array that a latent's covariance is computed from, since many
        kernels have the same covariance at different inputs.
    """

    densities: dict[str, float]
    inputs: dict[str, list[float]]

    @classmethod
    def of(
        cls, lgm: LatentGaussianModel, point: Point, observed: Mapping[str, Array]
    ) -> Fingerprint:
        """Return the fingerprint of a model at θ with these observations."""
        inputs = {
            block.name: sums_of_arrays(block.scale.graph)
            for block in lgm.blocks
            if block.has_covariance and isinstance(block.scale, PointFunction)
        }
        return cls(densities(lgm, point, observed), inputs)


def densities(
    lgm: LatentGaussianModel, point: Point, observed: Mapping[str, Array]
) -> dict[str, float]:
    """Return the log density of each observed variable, see :class:`Fingerprint`.

    ``observed`` has the observations by variable; other variables are left out.
    """
    eta = np.array(lgm.offset(point), dtype=float)
    for block, read in zip(lgm.blocks, lgm.maps, strict=True):
        eta += read(point).apply(np.linspace(-1.0, 1.0, block.total_size))
    with np.errstate(all="ignore"):
        return {
            site.name: float(
                site.terms.log_density(
                    np.ravel(observed[site.name]).astype(float),
                    site.select(eta),
                    site.params(point),
                ).sum()
            )
            for site in lgm.sites
            if np.size(observed.get(site.name, ())) == site.size
        }
