"""The state that the moves of one step hand on, and what the step tells about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pymc_augconj.model import EntryDensities, Hyperparameter
from pymc_augconj.point import Point
from pymc_augconj.typing import Array

from .targets import EntryTarget, Gradient, PointTarget, Update

__all__ = ["GibbsInfo", "State"]


@dataclass
class GibbsInfo:
    """Statistics of one step."""

    #: log ∫ exp(Σ h η − ½ λ η²) p(η | θ) dη, the normaliser of the Gaussian moves.
    log_evidence: float = 0.0
    #: Evaluations of a log density by the hyperparameter updates.
    evaluations: int = 0
    #: Largest jitter that a covariance needed.
    jitter: float = 0.0
    #: Updates that take a log evidence; and how many of them met values of hyperparameters at which
    #: rounding leaves it no digits, so that these were refused.
    updates: int = 0
    refusals: int = 0
    #: Updates, and draws of latents, that were left out because that is so at the present state.
    stays: int = 0
    #: By the names of hyperparameters, the least and the largest of the refused values.
    refused: dict[str, tuple[float, float]] = field(default_factory=dict)
    #: The model's log density at the new point, as PyMC defines it.
    log_density: float = 0.0
    #: Elliptical slices, where sites are held, and the evaluations of densities they took.
    slices: int = 0
    trials: float = 0.0
    #: Hamiltonian trajectories, and the sum of the mean acceptances of their points.
    trajectories: int = 0
    acceptance: float = 0.0
    #: The standard deviation over the last steps of r, the log ratio of densities to held sites.
    residual_std: float = 0.0

    def note(self, target: PointTarget, *, stays: bool) -> None:
        """Count an update that takes a log evidence, and the values that it refused."""
        self.updates += 1
        self.refusals += bool(target.refused)
        self.stays += stays
        for x in target.refused:
            values: dict[str, Array] = {}
            target.write(values, x)
            for name, value in values.items():
                seen = [*self.refused.get(name, ()), *value.ravel().tolist()]
                self.refused[name] = min(seen), max(seen)


@dataclass
class State:
    """The point, which moves replace or write into, the caller's updates, and the info."""

    point: dict[str, Array]
    updates: Mapping[str, Update]
    info: GibbsInfo = field(default_factory=GibbsInfo)

    def update(
        self,
        rng: np.random.Generator,
        move: str,
        members: tuple[Hyperparameter, ...],
        log_density: Callable[[Point], Any],
        gradient: Gradient | None = None,
    ) -> None:
        """Run the update of one move, writing the new values into the point."""
        target = PointTarget(self.point, members, log_density, gradient)
        start = np.concatenate([np.ravel(self.point[h.value_name]) for h in members])
        with np.errstate(all="ignore"):
            # To stay where the density has no digits leaves it as it is, as ω alone decides that.
            target(start)
            value = start if target.refused else self.updates[move](target, start, rng)
        self.info.evaluations += target.evaluations
        if gradient is not None:
            self.info.note(target, stays=bool(target.refused) and value is start)
        target.write(self.point, value)

    def update_entries(
        self, rng: np.random.Generator, move: str, member: Hyperparameter, densities: EntryDensities
    ) -> None:
        """Run the update of a vector whose entries are independent given everything else."""
        target: Any = EntryTarget(self.point, member, densities)
        start = np.ravel(self.point[member.value_name])
        with np.errstate(all="ignore"):
            value = self.updates[move](target, start, rng)
        self.info.evaluations += target.evaluations
        target.write(self.point, value)
