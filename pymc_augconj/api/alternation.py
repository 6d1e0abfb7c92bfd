"""Gaussian variables that multiply the latents: drawn in turn with these, and along ridges."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from pymc.model import Model

from pymc_augconj.engines.gibbs.moves.ridges import Ridge, find_ridges, move_along
from pymc_augconj.engines.gibbs.sampler import GibbsSampler
from pymc_augconj.errors import AugmentationError
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.plan import Plan
from pymc_augconj.point import Point
from pymc_augconj.recognition.recognition import Recognition

from .step_choices import restrict, value_variables

# Moves along ridges in a step, of all that there are.
_MOST_MOVES = 12
# Coefficients from which they are drawn given the latents, not by slices without these.
_FEWEST = 4
#: Prefix of the names of moves along ridges.
ALONG = "along ridge "


def alternating(found: Recognition, plan: Plan) -> tuple[str, ...]:
    """Return the Gaussian variables that may be drawn in turn with the latents."""
    read = {name for A in found.model.maps for name in A.names}
    rest = [h for h in found.model.hyperparameters if h.name in found.alternates]
    factors = [h for h in rest if h.value_name in read and h not in plan.by_entry]
    if sum(h.size for h in factors) < _FEWEST:
        return ()
    return tuple(h.name for h in rest if h not in plan.by_entry)


class Alternation:
    """Moves along ridges and the draws of another step, after the moves of a step.

    Parameters
    ----------
    step : AugmentedGibbs
        The step, which is complete otherwise, and its start.
    companion : AugmentedGibbs, optional
        The step of the variables that multiply the latents.
    """

    def __init__(self, step: Any, point: Point, companion: Any) -> None:
        self.companion = companion
        model = step.recognition.model
        ours = {var.name for var in step.vars}.intersection(n for A in model.maps for n in A.names)
        movable = [h for h in model.hyperparameters if h.value_name in ours]
        self.ridges: tuple[Ridge, ...] = ()
        # Scales of single latents move against these by themselves.
        slopes = (h.value_name for h in step.plan.by_entry if h not in step.plan.by_column)
        if companion is not None or ours.intersection(slopes):
            # Of the model itself: derivatives are by observation.
            chain = step.make_sampler(point, by_observation=True).chain
            self.ridges = find_ridges(chain, point, movable)
        self.names = [f"{ALONG}{i}" for i in range(len(self.ridges))]

    @property
    def follows(self) -> bool:
        """Whether moves follow the step."""
        return bool(self.ridges) or self.companion is not None

    def save(self, point: Point) -> dict[str, Any] | None:
        """Return the state on which the next steps of the companion depend."""
        return None if self.companion is None else self.companion.save(point)

    def restore(self, saved: Any) -> None:
        """Restore a saved state."""
        if self.companion is not None:
            self.companion.restore(saved)

    def begin(self, rng: np.random.Generator, tune: int, draws: int) -> None:
        """Prepare for one chain."""
        if self.companion is not None:
            (own,) = rng.spawn(1)
            self.companion.setup_chain(own, tune, draws)

    def after(
        self, step: Any, sampler: GibbsSampler, point: dict[str, np.ndarray], info: Any
    ) -> dict[str, np.ndarray]:
        """Return the next point, and write down its log density."""
        if not self.follows:
            return point
        new, rng = dict(point), step.rng
        moves = np.arange(len(self.ridges))
        if moves.size > _MOST_MOVES:
            moves = rng.choice(moves, _MOST_MOVES, replace=False)
        known = sampler.priors.at(new).factorized().blocks if moves.size else ()
        for i in moves:
            update: Callable[..., Any] = partial(step._updates[self.names[i]], tune=step.tune)
            new, count = move_along(rng, sampler.chain, known, new, self.ridges[i], update)
            info.evaluations += count
        if self.companion is None:
            info.log_density = sampler.log_density(new)
            return new
        self.companion.tune = step.tune
        drawn, (stats,) = self.companion.step(new)
        info.evaluations += stats["evaluations"]
        info.log_density = stats["model_logp"]
        return dict(drawn)


def companion_of(
    make: Callable[[list[Any]], Any], found: Recognition, plan: Plan, model: Model
) -> tuple[Any, list[Any]]:
    """Return the step of Gaussian variables that multiply the latents, and its variables.

    If that step is impossible, a warning says so: then they are updated like hyperparameters.
    """
    names = alternating(found, plan)
    if not names:
        return None, []
    try:
        companion = make([model[name] for name in names])
    except AugmentationError as error:
        warnings.warn(not_in_turn(names, error), UserWarning, stacklevel=4)
        return None, []
    return companion, list(companion.vars)


def not_in_turn(names: Sequence[str], why: object) -> str:
    """Say that variables are not drawn in turn with the latents that they multiply."""
    listed = ", ".join(map(repr, names))
    return (
        f"{listed}: expected to be drawn jointly, in turn with the latents that they multiply, but "
        f"are updated like other hyperparameters, which mixes slowly: {why}"
    )


def choose_variables(
    plan: Plan,
    vars: Sequence[Any] | None,
    others: Sequence[Any],
    model: Model,
    found: LatentGaussianModel,
) -> tuple[Plan, list[Any]]:
    """Return the plan for ``vars`` without those of another step, and all that both sample."""
    names = {var.name for var in others}
    if vars is not None:
        vars = [var for var in vars if model.rvs_to_values.get(var, var) not in others]
    plan = restrict(plan, vars).restricted(lambda h: h.value_name not in names)
    mine = value_variables(model, found, plan, vars)
    return plan, [var for var in model.value_vars if var in (*mine, *others)]
