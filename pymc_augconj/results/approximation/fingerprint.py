"""Numbers by which a model tells whether it is the one that was fitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pymc_augconj.model import LatentGaussianModel, Point
from pymc_augconj.recognition.processes.input_data import sums_of_arrays

__all__ = ["Fingerprint", "densities"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Fingerprint:
    """What a fit keeps of its model besides numbers that it is made of.

    Attributes
    ----------
    densities : dict of str to float
        Log density of each observed variable at fixed innovations and the fit's θ: changes with
        the likelihood, its parameters, offsets and designs.
    inputs : dict of str to list of float
        Sums, with fixed weights, over each array that a latent's covariance is computed from: many
        kernels have the same covariance at other inputs.
    """

    densities: dict[str, float] = field(default_factory=dict)
    inputs: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, lgm: LatentGaussianModel, point: Point, observed: Mapping[str, Array]
    ) -> Fingerprint:
        """Return that of a model at θ with these observations."""
        dense = [block for block in lgm.blocks if block.kind != "diagonal"]
        return cls(
            densities(lgm, point, observed),
            {block.name: sums_of_arrays(block.scale.graph) for block in dense},
        )


def densities(
    lgm: LatentGaussianModel, point: Point, observed: Mapping[str, Array]
) -> dict[str, float]:
    """Return the log density of each observed variable, see :class:`Fingerprint`.

    ``observed`` are the observations, by variable; others are left out.
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
