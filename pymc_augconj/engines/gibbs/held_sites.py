"""Held sites: Gaussian sites (h, λ ≥ 0) that stand in for a density without an auxiliary variable.

Whatever they are, the sampler is exact; how fast it mixes depends on how closely they resemble the
densities. They are those of the variational Gaussian approximation at a typical θ,

    λ = −E ∂² log p(y | η),        h = E ∂ log p(y | η) + λ E η,

chosen when a chain starts, again at the end of windows that double during tuning, and never after.
Where log p is not concave, negative eigenvalues of λ are set to zero, and h is such that the mean
of the approximation stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from pymc_augconj.engines.variational.ascent import climb
from pymc_augconj.engines.variational.bound import BoundFamily
from pymc_augconj.engines.variational.vgp import VariationalGaussian
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.gaussian.sites import SiteLayout
from pymc_augconj.model import LatentGaussianModel, Point
from pymc_augconj.typing import Array

__all__ = ["HeldSites"]


# Steps of tuning until the sites are chosen again; further windows double.
_FIRST_WINDOW = 10
# The sites need not be at the fixed point, only close.
_MAX_ITER, _TOL = 50, 1e-2


class HeldSites:
    """Held sites of one chain, with what it takes to choose them.

    Parameters
    ----------
    model : LatentGaussianModel
    names : collection of str
        Entries of the point whose typical value is found: the continuous hyperparameters.
    probes : sequence of mapping
        Other values of θ, at which predictors must agree to be merged.

    Attributes
    ----------
    h, lam : ndarray, or None
        Sites of all predictors, stacked; None before the first choice.
    """

    def __init__(
        self, model: LatentGaussianModel, names: Collection[str], probes: Sequence[Point] = ()
    ):
        self._model, self._names, self._probes = model, tuple(names), tuple(probes)
        # As the VGP stacks them.
        self._layout = SiteLayout([s.shape for s in model.sites], [True] * len(model.sites))
        self._index = {site.name: i for i, site in enumerate(model.sites)}
        self.h: Array | None = None
        self.lam: Array | None = None
        self._count, self._window = 0, _FIRST_WINDOW
        self._sums: dict[str, Array] = {}

    def of(self, name: str) -> tuple[Array, Array]:
        """Return (h, Λ) of an observed variable, shapes (P, N) and (P, P, N)."""
        return self._layout.moments(self.h, self.lam)[self._index[name]]

    @property
    def state(self) -> dict[str, Any]:
        """What was chosen and learned."""
        return {
            "h": self.h,
            "lam": self.lam,
            "count": self._count,
            "window": self._window,
            "sums": dict(self._sums),
        }

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self.h, self.lam = state["h"], state["lam"]
        self._count, self._window = state["count"], state["window"]
        self._sums = dict(state["sums"])

    def learn(self, point: Point) -> None:
        """Add a point of tuning; at the end of a window choose the sites at the mean θ."""
        self._count += 1
        for name in self._names:
            self._sums[name] = self._sums.get(name, 0.0) + point[name]
        if self._count < self._window:
            return
        typical = {name: np.asarray(total / self._count) for name, total in self._sums.items()}
        self.choose({**point, **typical})
        self._count, self._window, self._sums = 0, 2 * self._window, {}

    def choose(self, point: Point) -> None:
        """Choose the sites at ``point``; keep the present ones where there is no approximation.

        Raises
        ------
        NotPositiveDefiniteError
            If there are no present ones.
        """
        family = BoundFamily(self._model, VariationalGaussian(), [point, *self._probes])
        start = None if self.h is None else (self.h, self.lam)
        try:
            found = climb(family.at(point, factorized=True), start, max_iter=_MAX_ITER, tol=_TOL)
        except NotPositiveDefiniteError:
            if self.h is None:
                raise
            return
        end = found.evaluation
        if np.isfinite(end.target_h).all() and np.isfinite(end.target_lam).all():
            coupling = self._layout.coupling
            self.lam = coupling.nonnegative(end.target_lam)
            self.h = end.target_h + coupling.product(self.lam - end.target_lam, end.mean)
