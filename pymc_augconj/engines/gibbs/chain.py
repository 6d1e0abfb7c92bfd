"""What the moves of a chain know, and its latents in their several coordinates.

A block's value is mean(θ) + u, or v for a whitened block, and u = S v with v ~ N(0, I).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pymc_augconj.latents.joint import LatentPrior, LatentPriors
from pymc_augconj.model import Argument, LatentGaussianModel, Point
from pymc_augconj.plan import Plan
from pymc_augconj.typing import Array

from .observed import SiteData
from .parts import Part

__all__ = ["Chain"]


class Chain:
    """A model, its observed variables and the parts of its latents.

    Parameters
    ----------
    model : LatentGaussianModel
    plan : Plan
    data : sequence of SiteData
    parts : sequence of Part
    points : sequence of mapping
        Values of θ at which predictors must agree to be merged.

    Attributes
    ----------
    priors : LatentPriors
        Of all latents and predictors.
    """

    def __init__(
        self,
        model: LatentGaussianModel,
        plan: Plan,
        data: Sequence[SiteData],
        parts: Sequence[Part],
        points: Sequence[Point],
    ) -> None:
        self.model, self.plan, self.data, self.parts = model, plan, data, parts
        #: Whether log evidences are compared with those of another factorisation.
        self.verifies = False
        # Of some predictors, which no latent enters, there may be no part.
        self._is_whole = len(parts) == 1 and parts[0].rows.size == model.n_rows
        self.priors = parts[0].priors if self._is_whole else LatentPriors(model, points)
        self._order = _topological(model)

    def innovations(self, point: Point, prior: LatentPrior | None = None) -> list[Array]:
        """Return every block's u, flat; ``prior`` is that at the point, where it is known."""
        values = self.latent_values(point, prior or self.priors.at(point))
        found = []
        for block in self.model.blocks:
            value = values[Argument("value", block.name)]
            if not block.whitened and block.mean is not None:
                value = value - block.mean({**point, **values})
            found.append(value)
        return found

    def whitened(self, point: Point) -> list[Array]:
        """Return every block's v, flat."""
        if all(b.whitened for b in self.model.blocks):
            return self.entries(point)
        prior = self.priors.at(point).factorized()
        every = zip(prior.blocks, self.entries(point), self.innovations(point, prior), strict=True)
        return [entry if b.block.whitened else b.unscale(u) for b, entry, u in every]

    def entries(self, point: Point) -> list[Array]:
        """Return every block's entry of the point, flat."""
        return [np.ravel(point[b.value_name]) for b in self.model.blocks]

    def latent_values(self, point: Point, prior: LatentPrior) -> dict[Argument, Array]:
        """Return what prior means are functions of: the value, or u for a whitened block."""
        return {
            Argument("value", b.block.name): b.scale(entry) if b.block.whitened else entry
            for b, entry in zip(prior.blocks, self.entries(point), strict=True)
        }

    def predictor(self, point: Point) -> Array:
        """Return η of every row."""
        prior = self.priors.at(point)
        return prior.predictor(self.innovations(point, prior))

    def point_of(
        self, point: Point, innovations: Sequence[Array], whitened: Sequence[Array]
    ) -> dict[str, Array]:
        """Return ``point`` with the latents replaced, in its own order of keys."""
        new = dict(point)
        values: dict[Argument, Array] = {}
        for i in self._order:
            block = self.model.blocks[i]
            value = innovations[i]
            if not block.whitened and block.mean is not None:
                value = value + block.mean({**point, **values})
            values[Argument("value", block.name)] = value
            entry = whitened[i] if block.whitened else value
            new[block.value_name] = entry.reshape(block.shape)
        return new

    def replaced(
        self, point: Point, part: Part, innovations: list[Array], whitened: list[Array]
    ) -> dict[str, Array]:
        """Return ``point`` with the part's latents replaced; the others keep their innovations."""
        if self._is_whole:
            return self.point_of(point, innovations, whitened)
        every = [u.copy() for u in self.innovations(point)]
        entries = [entry.copy() for entry in self.entries(point)]
        pairs = zip(part.blocks, part.latents, strict=True)
        for (i, own), u, v in zip(pairs, innovations, whitened, strict=True):
            every[i][own], entries[i][own] = u, v
        return self.point_of(point, every, entries)

    def drawn_predictor(self, point: Point) -> Array:
        """Return η as the parts' latents were drawn last."""
        if self._is_whole:
            return self.parts[0].eta
        eta = self.priors.at(point).offset.copy()
        for part in self.parts:
            eta[part.rows] = part.eta
        return eta

    def log_likelihood(
        self, eta: Array, point: Point, data: Sequence[SiteData] | None = None
    ) -> float:
        """Return log p(y | η) of all observed variables, or of some."""
        every = self.data if data is None else data
        return sum(float(one.log_densities(eta, point).sum()) for one in every)


def _topological(model: LatentGaussianModel) -> list[int]:
    """Return the blocks in an order in which every mean comes after what it depends on."""
    order: list[int] = []
    placed: set[Argument] = set()
    waiting = list(range(len(model.blocks)))
    while waiting:
        for i in waiting:
            block = model.blocks[i]
            needs = () if block.mean is None else block.mean.names
            if all(name in placed for name in needs if isinstance(name, Argument)):
                order.append(i)
                placed.add(Argument("value", block.name))
                waiting.remove(i)
                break
    return order
