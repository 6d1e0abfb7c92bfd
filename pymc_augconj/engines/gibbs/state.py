"""The state that the moves of one step hand on, its statistics, and densities for the updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pymc_augconj.errors import AugmentationError, NotPositiveDefiniteError, UncertainEvidenceError
from pymc_augconj.model import Hyperparameter
from pymc_augconj.point import Point
from pymc_augconj.typing import Array, Generator

from .coordinates import flatten, gradient_of, values_of

#: The log density and its derivatives, by entry of the point.
Gradient = Callable[[Point], tuple[float, Mapping[str, Array]]]
#: Log densities of the entries of a vector, by the point.
Densities = Callable[[Point], Array]


class PointTarget:
    """A log density of some hyperparameters' coordinates, see :mod:`.coordinates`.

    It is up to a constant, −∞ outside the support, and may have a gradient. A density that is no
    number, or infinite where a value over- or underflows, is taken as zero. Raises
    AugmentationError if it is zero at the first value, above which everything would be accepted.
    """

    def __init__(
        self,
        point: Point,
        members: tuple[Hyperparameter, ...],
        log_density: Callable[[Point], Any],
        gradient: Gradient | None = None,
    ) -> None:
        self._candidate = dict(point)
        self._members, self._log_density, self._gradient = members, log_density, gradient
        self._known: dict[bytes, float] = {}
        #: Values at which rounding leaves the density no digits.
        self.refused: list[Array] = []
        self.evaluations = 0

    def write(self, point: dict[str, Any], x: Array) -> float:
        """Write the values at ``x`` into ``point``; return the log Jacobian."""
        values, log_jacobian = values_of(self._members, x)
        point.update(values)
        return log_jacobian

    def __call__(self, x: Array) -> float:
        # Coordinate-wise updates come back to the value they started from.
        key = x.tobytes()
        if key not in self._known:
            self._known[key] = self._evaluate(x, lambda at: (float(self._log_density(at)), {}))[0]
        return self._known[key]

    def value_and_gradient(self, x: Array) -> tuple[float, Array]:
        assert self._gradient is not None
        value, slopes = self._evaluate(x, self._gradient)
        return value, gradient_of(self._members, x, slopes)

    def _evaluate(self, x: Array, function: Gradient) -> tuple[float, Mapping[str, Array]]:
        log_jacobian = self.write(self._candidate, x)
        self.evaluations += 1
        cause: NotPositiveDefiniteError | None = None
        value = -math.inf
        # Where a covariance has no Cholesky factor in floating point the density is taken as
        # zero, which is what PyMC's own log density does there.
        try:
            value, slopes = function(self._candidate)
            value += log_jacobian
            if math.isfinite(value):
                return value, slopes
        except UncertainEvidenceError:
            self.refused.append(x.copy())
            return -math.inf, {}
        except NotPositiveDefiniteError as error:
            cause = error
        if self.evaluations == 1:
            names = ", ".join(h.name for h in self._members)
            raise _refusal(names, cause or value) from cause
        return -math.inf, {}

    def entries(self, x: Array) -> Array:
        """Return the log densities at ``x``, up to a constant, of entries that are independent.

        Raises AugmentationError if one of them is not finite at the first value asked for.
        """
        self.write(self._candidate, x)
        self.evaluations += 1
        found = self._log_density(self._candidate)
        found[np.isnan(found)] = -np.inf
        if self.evaluations == 1 and not np.isfinite(found).all():
            bad = np.flatnonzero(~np.isfinite(found))[0]
            raise _refusal(self._members[0].name, f"{found[bad]} of entry {bad}")
        return found


#: ``(target, flat value, generator) -> new value``, which evaluates the flat value first.
Update = Callable[[PointTarget, Array, Generator], Array]


def _refusal(names: str, found: object) -> AugmentationError:
    return AugmentationError(
        f"{names}: expected a finite log density where an update begins, found {found}; start "
        "elsewhere, initvals={…}, or give a prior that keeps values from over- and underflow"
    )


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
        rng: Generator,
        move: str,
        members: tuple[Hyperparameter, ...],
        log_density: Callable[[Point], Any],
        gradient: Gradient | None = None,
    ) -> None:
        """Run the update of one move, writing the new values into the point."""
        target = PointTarget(self.point, members, log_density, gradient)
        with np.errstate(all="ignore"):
            start = flatten(members, self.point)
            # To stay where the density has no digits leaves it as it is, as ω alone decides that.
            target(start)
            value = start if target.refused else self.updates[move](target, start, rng)
        self.info.evaluations += target.evaluations
        if gradient is not None:
            self.info.note(target, stays=bool(target.refused) and value is start)
        target.write(self.point, value)

    def update_entries(
        self, rng: Generator, move: str, member: Hyperparameter, densities: Densities
    ) -> None:
        """Run the update of a vector whose entries are independent given everything else."""
        target = PointTarget(self.point, (member,), densities)
        densities_at: Any = target.entries
        start = np.ravel(self.point[member.value_name])
        with np.errstate(all="ignore"):
            value = self.updates[move](densities_at, start, rng)
        self.info.evaluations += target.evaluations
        target.write(self.point, value)
