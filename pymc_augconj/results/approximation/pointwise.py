"""Log likelihoods of single observations at draws of an approximation's latents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pymc_augconj.model import LatentGaussianModel, Point
from pymc_augconj.typing import Array

__all__ = ["PointwiseLogLikelihood"]


@dataclass(frozen=True)
class PointwiseLogLikelihood:
    """log p(yᵢ | η) of every observation at the θ of a fit.

    Attributes
    ----------
    lgm : LatentGaussianModel
    point : mapping
        θ on PyMC's unconstrained scale.
    shapes : dict of str to tuple of int
        Shapes of the observed variables; potentials are not among them.
    """

    lgm: LatentGaussianModel
    point: Point
    shapes: dict[str, tuple[int, ...]]

    def __call__(self, eta: Array) -> dict[str, Array]:
        """Return the log densities by observed variable or potential, shape (S, …).

        Parameters
        ----------
        eta : ndarray, shape (S, N)
            Draws of the stacked predictors.
        """
        densities = {}
        for site in self.lgm.sites:
            y, params = site.y(self.point), site.params(self.point)
            rows = [site.likelihood.log_density(y, site.select(draw), params) for draw in eta]
            shape = self.shapes.get(site.name, (site.size,))
            densities[site.name] = np.reshape(rows, (len(eta), *shape))
        return densities
