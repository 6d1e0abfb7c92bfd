"""Parameters of likelihoods that move together with the location of a predictor.

Of a rate r σ(η) the data determine hardly more than the product where σ is small, and of r exp(η)
nothing else. So, besides r given the whitened latents v, a step updates r given w = v + b log r.
For any b that depends on neither, (θ, v) → (θ, w) has the Jacobian one: the density of θ given w is
proportional to p(θ) N(v; 0, I) p(y | η(θ, v), r) at v = w − b log r, ω integrated out. Here b is
the mean of v given the sites h = λ = ½ for the rows of that predictor: the latents that raise the
predictor by one, as far as their prior allows.

References
----------
Yu & Meng (2011), To center or not to center: that is not the question — an
ancillarity-sufficiency interweaving strategy. Journal of Computational and Graphical Statistics 20.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np

from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.point import Point
from pymc_augconj.typing import Array, Index

from .observed import SiteData
from .parts import Part

__all__ = ["Level", "find_levels"]

# λ of a row: the Fisher information of log r in a normal observation of the precision r.
_INFORMATION = 0.5


@dataclass(frozen=True)
class Level:
    """A parameter r of an observed variable, and the predictor whose location it moves against.

    ``part`` has the latents of that predictor, and ``rows`` are those of it among the part's.
    """

    data: SiteData
    parameter: str
    part: Part
    rows: Index

    def log_parameter(self, point: Point) -> float:
        """Return log r, its mean where observations have parameters of their own."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return float(np.log(self.data.site.params(point)[self.parameter]).mean())

    def direction(self, prior: LatentPrior) -> tuple[list[Array], list[Array], Array]:
        """Return b by blocks: as v, as u, and what it adds to the part's predictors."""
        groups = self.part.priors.groups
        lam = np.zeros(groups.coupling.size)
        lam[self.rows] = _INFORMATION
        h = lam[: groups.coupling.n_rows]
        sites = groups.sites(h, lam, np.zeros(h.size))
        posterior = self.part.solver.posterior(prior, sites)
        x = posterior.latent_mean
        innovations = posterior.innovations(x)
        raised = prior.predictor(innovations) - prior.offset
        return prior.split(posterior.whitened(x)), innovations, raised


def find_levels(parts: Sequence[Part], names: Set[str]) -> tuple[Level, ...]:
    """Return the parameters that a level moves against, of what depends on ``names``."""
    found = []
    for part in parts:
        for data, group in part.members:
            if names.isdisjoint(data.site.params.names):
                continue
            for name, predictor in data.site.likelihood.levels.items():
                if predictor in data.how.groups[group]:
                    own = data.site.row_numbers[predictor]
                    rows = np.flatnonzero(np.isin(part.rows, own))
                    found.append(Level(data, name, part, rows))
    return tuple(found)
