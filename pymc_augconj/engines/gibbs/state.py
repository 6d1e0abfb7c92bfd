"""The state that the moves of one step hand on, and what the step tells about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pymc_augconj.model import Hyperparameter, Point
from pymc_augconj.typing import Array

from .targets import Gradient, PointTarget, Update

__all__ = ["GibbsInfo", "State"]


@dataclass
class GibbsInfo:
    """What one step tells about itself.

    Attributes
    ----------
    log_evidence : float
        Log normaliser of the Gaussian move: log ∫ exp(Σ h η − ½ λ η²) p(η | θ) dη.
    evaluations : int
        Evaluations of a log density by the hyperparameter updates.
    jitter : float
        Largest jitter that a covariance needed.
    updates, refusals : int
        Updates that take a log evidence; and how many of them met values of hyperparameters at
        which rounding leaves it no digits, so that these were refused.
    stays : int
        Updates, and draws of latents, that were left out because that is so at the present state.
    refused : dict
        By the names of hyperparameters, the least and the largest of the refused values.
    log_density : float
        The model's log density at the new point, as PyMC defines it.
    slices, trials : int
        Elliptical slices, where sites are held, and the evaluations of densities they took.
    trajectories, acceptance : float
        Hamiltonian trajectories, and the mean acceptance of their points.
    residual_std : float
        The standard deviation over the last steps of r, the log ratio of densities to held sites.
    """

    log_evidence: float = 0.0
    evaluations: int = 0
    jitter: float = 0.0
    updates: int = 0
    refusals: int = 0
    stays: int = 0
    refused: dict[str, tuple[float, float]] = field(default_factory=dict)
    log_density: float = 0.0
    slices: int = 0
    trials: int = 0
    trajectories: int = 0
    acceptance: float = 0.0
    residual_std: float = 0.0

    def note(
        self, refused: Sequence[Array], members: Sequence[Hyperparameter], *, stays: bool
    ) -> None:
        """Count an update that takes a log evidence, and the values that it refused."""
        self.updates += 1
        if not refused:
            return
        self.refusals += 1
        self.stays += stays
        starts = np.cumsum([0, *(h.size for h in members)])
        for h, start in zip(members, starts, strict=False):
            for values in (x[start : start + h.size] for x in refused):
                least, largest = self.refused.get(h.value_name, (np.inf, -np.inf))
                self.refused[h.value_name] = (
                    min(least, float(values.min())), max(largest, float(values.max())),
                )  # fmt: skip


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
            self.info.note(target.refused, members, stays=value is start)
        target.write(self.point, value)
