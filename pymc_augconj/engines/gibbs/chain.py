"""One chain's model, observed variables and parts, and its latents in several coordinates.

A block's value is mean(θ) + u, or v for a whitened block, and u = S v with v ~ N(0, I).
"""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import TopologicalSorter

import numpy as np

from pymc_augconj.latents.base import BlockPrior
from pymc_augconj.latents.joint import LatentPriors
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.plan import Plan
from pymc_augconj.point import Argument, Point
from pymc_augconj.typing import Array

from .held_sites import HeldSites
from .observed import SiteData, observe
from .parts import Part, make_parts


class Chain:
    """A model, its observed variables and the parts of its latents.

    ``points`` are the chain's start and other values of θ at which predictors must agree to be
    merged; the other parameters are as for :class:`.GibbsSampler` and :class:`.Tilted`.
    """

    def __init__(
        self,
        model: LatentGaussianModel,
        plan: Plan,
        points: Sequence[Point],
        sites: HeldSites | None,
        slices: int | None,
        sweeps: int,
    ) -> None:
        self.model, self.plan, self.verifies = model, plan, False
        #: Whether latents are a draw, so that those of factors may be over-relaxed: the effects of
        #: a start that is far away would go too far by as much, and other factors after them.
        self.relaxes = False
        # Observations first: reading them refuses data whose shapes have changed.
        self.data = [observe(site, sites, points[0]) for site in model.sites]
        self.parts = make_parts(model, plan, self.data, points, slices, sweeps)
        # Of some predictors, which no latent enters, there may be no part.
        self.is_whole = len(self.parts) == 1 and self.parts[0].rows.size == model.n_rows
        #: Whether nothing else depends on the latents: no ω, no move given them and no step of
        #: others. Their innovations ν are then independent of θ, and of any dependence among them.
        ours = {h.value_name for h in (*plan.collapsed, *plan.prior_only)}
        ours |= {b.value_name for b in model.blocks} | {v.value_name for v in model.forward}
        kinds = [site.likelihood for site in model.sites]
        exact = all(kind.can_augment and not kind.has_auxiliary for kind in kinds)
        self.alternates = (
            exact and set(points[0]) <= ours and len(self.parts) == 1 and self.parts[0].is_plain
        )
        self.priors = self.parts[0].priors if self.is_whole else LatentPriors(model, points)
        index = {block.name: i for i, block in enumerate(model.blocks)}
        names = {b.name: b.mean.names if b.mean is not None else () for b in model.blocks}
        needs = {b: [n.of for n in own if isinstance(n, Argument)] for b, own in names.items()}
        self.order = [index[name] for name in TopologicalSorter(needs).static_order()]

    def innovations(self, point: Point, priors: Sequence[BlockPrior] = ()) -> list[Array]:
        """Return every block's u, flat; ``priors`` are those at the point, where they are known."""
        values = self.latent_values(point, priors or self.priors.at(point).blocks)
        found = []
        for block in self.model.blocks:
            value = values[Argument("value", block.name)]
            if not block.whitened and block.mean is not None:
                value = value - block.mean({**point, **values})
            found.append(value)
        return found

    def whitened(self, point: Point, priors: Sequence[BlockPrior] = ()) -> list[Array]:
        """Return every block's v, flat; factorised ``priors`` as for :meth:`innovations`."""
        if all(b.whitened for b in self.model.blocks):
            return self.entries(point)
        priors = priors or self.priors.at(point).factorized().blocks
        every = zip(priors, self.entries(point), self.innovations(point, priors), strict=True)
        return [entry if b.block.whitened else b.unscale(u) for b, entry, u in every]

    def entries(self, point: Point) -> list[Array]:
        """Return every block's value, or v of a whitened block, flat."""
        return [b.value_of(point[b.value_name]) for b in self.model.blocks]

    def latent_values(self, point: Point, priors: Sequence[BlockPrior]) -> dict[Argument, Array]:
        """Return what prior means are functions of: the value, or u for a whitened block."""
        return {
            Argument("value", b.block.name): b.scale(entry) if b.block.whitened else entry
            for b, entry in zip(priors, self.entries(point), strict=True)
        }

    def predictor(self, point: Point) -> Array:
        """Return η of every row."""
        prior = self.priors.at(point)
        return prior.predictor(self.innovations(point, prior.blocks))

    def point_of(
        self, point: Point, innovations: Sequence[Array], whitened: Sequence[Array]
    ) -> dict[str, Array]:
        """Return ``point`` with the latents replaced, in its own order of keys."""
        new = dict(point)
        values: dict[Argument, Array] = {}
        for i in self.order:
            block = self.model.blocks[i]
            value = innovations[i]
            if not block.whitened and block.mean is not None:
                value = value + block.mean({**point, **values})
            values[Argument("value", block.name)] = value
            new[block.value_name] = block.entry_of(whitened[i] if block.whitened else value)
        return new

    def replaced(
        self, point: Point, part: Part, innovations: list[Array], whitened: list[Array]
    ) -> dict[str, Array]:
        """Return ``point`` with the part's latents replaced; the others keep their innovations."""
        if self.is_whole and part is self.parts[0]:
            return self.point_of(point, innovations, whitened)
        every = [u.copy() for u in self.innovations(point)]
        entries = [entry.copy() for entry in self.entries(point)]
        pairs = zip(part.blocks, part.latents, strict=True)
        for (i, own), u, v in zip(pairs, innovations, whitened, strict=True):
            every[i][own], entries[i][own] = u, v
        return self.point_of(point, every, entries)

    def log_density(self, point: Point) -> float:
        """Return the model's log density, without variables that are drawn forward."""
        total = float(self.model.log_prior(point))
        if not np.isfinite(total):
            return total  # nothing else may have a value there
        prior = self.priors.at(point).factorized()
        blocks = zip(prior.blocks, self.whitened(point), strict=True)
        total += sum(b.log_density(v) for b, v in blocks) + self.log_jacobian(point)
        return total + self.log_likelihood(self.predictor(point), point)

    def log_jacobian(self, point: Point) -> float:
        """Return the log Jacobian of the latents' values by their entries in the point."""
        return sum(
            block.transform.log_jacobian(block.value_of(point[block.value_name]))
            for block in self.model.blocks
            if block.transform is not None
        )

    def log_likelihood(
        self, eta: Array, point: Point, data: Sequence[SiteData] | None = None
    ) -> float:
        """Return log p(y | η) of all observed variables, or of some."""
        every = self.data if data is None else data
        return sum(float(one.log_densities(eta, point).sum()) for one in every)
