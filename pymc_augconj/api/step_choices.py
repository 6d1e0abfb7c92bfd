"""Choices of the step method: its variables, the updates of its moves, and its sweeps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from pymc.model import Model
from pymc.stats.convergence import SamplerWarning, WarningType

from pymc_augconj.block import LatentBlock
from pymc_augconj.engines.gibbs.elliptical import FEW
from pymc_augconj.engines.gibbs.moves.ridges import (
    MOST,
    Ridge,
    find_ridges,
    log_prior,
    move_along,
)
from pymc_augconj.engines.gibbs.sampler import GibbsSampler
from pymc_augconj.engines.gibbs.state import GibbsInfo
from pymc_augconj.errors import AugmentationError, RecognitionError, UncertainEvidenceError
from pymc_augconj.latents.posterior import Solver
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.plan import ALONG, BY_ENTRY, Plan, can_use_gradient, has_many
from pymc_augconj.point import Point
from pymc_augconj.recognition.recognizer import Recognition

from .updates import (
    EllipticalUpdate,
    EntrywiseSliceUpdate,
    GradientUpdate,
    MixedUpdate,
    SliceUpdate,
)

# Rows from which drawing ω takes longer than the factorisations of independent latents; and draws
# of (ω, latents) in a step where latents are independent, as their evidence takes no longer than a
# draw: two gave 1.0 to 2.0 times the effective samples a second of four.
_MANY_ROWS, _FEW_SWEEPS = 500, 2
# Parameters of likelihoods up to which ellipses move before tuning has learned their covariance,
# and hyperparameters without latents. Of two processes with 23 ellipses had 6 effective draws of
# 2 000, and slices along axes 114.
_MOST_BY_ELLIPSES = 10

# Updates after which further draws of the latents reuse their factorised prior.
_REUSED = ("joint", "collapsed")

_HYPER_SAMPLERS = ("auto", "slice", "elliptical", "nuts")


def uses_gradient(
    model: LatentGaussianModel, plan: Plan, held: Collection[str], solver: type[Solver]
) -> bool:
    """Return whether NUTS updates the hyperparameters of the prior by default."""
    possible = has_many(plan) and can_use_gradient(model, plan)
    return possible and not held and solver.has_cheap_gradient


def choose_updates(
    hyper_sampler: str,
    model: LatentGaussianModel,
    plan: Plan,
    held: Collection[str],
    solver: type[Solver],
) -> dict[str, type]:
    """Return the update of each move: slices along axes by default."""
    if hyper_sampler not in _HYPER_SAMPLERS:
        raise ValueError(
            f"hyper_sampler: expected one of {', '.join(map(repr, _HYPER_SAMPLERS))}, got "
            f"{hyper_sampler!r}"
        )
    if hyper_sampler == "nuts" and not can_use_gradient(model, plan):
        raise ValueError(
            "hyper_sampler='nuts': expected hyperparameters that enter covariances and offsets "
            "only; use hyper_sampler='slice' for this model"
        )
    of_factors = [f"collapsed {name}" for name in plan.of_blocks if plan.factors]
    mixed: list[str] = []
    if hyper_sampler == "auto":
        mixed = ["level", *of_factors]
        # Without latents each evaluation is one of the whole model.
        for move in ("likelihood", *(() if model.blocks else ("prior_only",))):
            if sum(h.size for h in plan.moves[move]) <= _MOST_BY_ELLIPSES:
                mixed.append(move)
        # Scales of a map and of its areas' own effects are near zero in turn, lengthscales of short
        # series large: tails that ellipses alone are long in leaving; and structured evidence is
        # cheap.
        maps = any(b.entries is not None or b.grid for b in model.blocks)
        structured = maps or any(b.inputs is not None for b in model.blocks)
        size = sum(h.size for h in plan.collapsed)
        # Ellipses of more than a few do not reverse, and hardly move along ridges that bend.
        by_axes = size > (1 if structured else FEW) or model.is_independent
        hyper_sampler = "elliptical" if held and not by_axes else "mixed"
        if uses_gradient(model, plan, held, solver):
            hyper_sampler = "nuts"
    updates: dict[str, type] = dict.fromkeys(plan.moves, SliceUpdate)
    updates |= {m: EntrywiseSliceUpdate for m in plan.moves if m.startswith(BY_ENTRY)}
    updates |= dict.fromkeys(mixed, MixedUpdate)
    updates["collapsed"] = {
        "slice": SliceUpdate,
        "elliptical": EllipticalUpdate,
        "mixed": MixedUpdate,
        "nuts": GradientUpdate,
    }[hyper_sampler]
    if hyper_sampler == "elliptical" or (hyper_sampler == "mixed" and held):
        updates["joint"] = EllipticalUpdate
    return updates


def choose_sweeps(
    sweeps: int | None,
    model: LatentGaussianModel,
    plan: Plan,
    held: Collection[str],
    *,
    of_solver: int,
) -> int | None:
    """Return draws in a step, of many rows ``of_solver``; None to choose them during tuning."""
    if sweeps is None and held:
        return None
    if sweeps is None:
        # Without ω a second draw of the latents replaces the first.
        augmented = any(s.likelihood.has_auxiliary for s in model.sites)
        updated = any(own for move, own in plan.moves.items() if move.startswith(_REUSED))
        many = of_solver if model.n_rows > _MANY_ROWS else Solver.sweeps
        if model.is_independent:
            many = min(many, _FEW_SWEEPS)
        return many if augmented and (updated or plan.by_entry) else 1
    if not isinstance(sweeps, int | np.integer) or sweeps < 1:
        raise ValueError(f"sweeps: expected a positive integer, got {sweeps!r}")
    return int(sweeps)


def prepare(recognition: Recognition, held: Collection[str]) -> None:
    """Compile the functions of a chain once, rather than in every worker process."""
    model = recognition.model
    functions = [model.log_prior, model.offset]
    functions += [f for b in model.blocks for f in (b.scale, b.mean) if f is not None]
    for function in functions:
        if hasattr(function, "compile"):
            function.compile()
    rng = np.random.default_rng(0)
    for site in model.sites:
        # As many as in a step: some draws of few take another way.
        params, y = site.params(recognition.start), np.array(site.y(recognition.start))
        eta = np.zeros(site.shape)
        if site.name in held:
            site.likelihood.log_density(y, eta, params)
            continue
        for group in range(len(site.likelihood.groups)):
            site.likelihood.draw_auxiliary(rng, y, eta, params, group)


def restrict(plan: Plan, vars: Sequence[Any] | None) -> Plan:
    """Return the plan for some variables; RecognitionError if no move updates one of them."""
    if vars is None:
        return plan
    chosen = {var.name for var in vars}
    left = {h.name for h in plan.left_to_pymc if chosen.intersection((h.name, h.value_name))}
    if left:
        raise RecognitionError(
            f"AugmentedGibbs cannot sample {sorted(left)}: expected continuous variables of few "
            "components; leave them out of vars, so that PyMC assigns a step method"
        )

    return plan.restricted(lambda h: bool(chosen.intersection((h.name, h.value_name))))


def value_variables(
    model: Model, lgm: LatentGaussianModel, plan: Plan, vars: Sequence[Any] | None
) -> list[Any]:
    """Return the value variables that the step samples; RecognitionError if it cannot."""
    names = [block.value_name for block in lgm.blocks]
    names += [h.value_name for h in plan.updated]
    names += [variable.value_name for variable in lgm.forward]
    if vars is not None:
        known = {n: n for n in names}
        known |= {b.name: b.value_name for b in lgm.blocks}
        known |= {model.values_to_rvs[v].name: v.name for v in model.value_vars if v.name in names}
        unknown = [var.name for var in vars if var.name not in known]
        if unknown:
            raise RecognitionError(
                f"AugmentedGibbs cannot sample {unknown}: expected variables among "
                f"{sorted(set(known))}"
            )
    by_name = {var.name: var for var in model.value_vars}
    # In the model's order, so that traces and seeds do not depend on the order of vars.
    return [var for name, var in by_name.items() if name in set(names)]


# Coefficients from which they are drawn given the latents, not by slices without these.
_FEWEST = 4


def alternating(found: Recognition, plan: Plan) -> tuple[str, ...]:
    """Return the Gaussian variables that may be drawn in turn with the latents."""
    model = found.model
    read = {name for A in model.maps for name in A.names}
    # A normal scale of observations, or of latents, multiplies none.
    scales = [*(site.params for site in model.sites), *(block.scale for block in model.blocks)]
    taken = {name for one in scales for name in one.names} - read
    rest = [h for h in model.hyperparameters if h.name in found.alternates]
    rest = [h for h in rest if h.value_name not in taken]
    factors = [h for h in rest if h.value_name in read and h not in plan.by_entry]
    if sum(h.size for h in factors) < _FEWEST:
        return ()
    return tuple(h.name for h in rest if h not in plan.by_entry)


class Alternation:
    """Moves along ridges and the draws of another step, after the moves of a step.

    ``step`` is complete otherwise; ``companion``, or None, is the step of the variables that
    multiply the latents.
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
        return bool(self.ridges) or self.companion is not None

    def save(self, point: Point) -> dict[str, Any] | None:
        """Return the state on which the next steps of the companion depend."""
        return None if self.companion is None else self.companion.save(point)

    def restore(self, saved: Any) -> None:
        if self.companion is not None:
            self.companion.restore(saved)

    def begin(self, rng: np.random.Generator, tune: int, draws: int) -> None:
        if self.companion is not None:
            (own,) = rng.spawn(1)
            self.companion.setup_chain(own, tune, draws)
            # The other step has limited BLAS.
            self.companion._release_blas()

    def after(
        self, step: Any, sampler: GibbsSampler, point: dict[str, np.ndarray], info: Any
    ) -> dict[str, np.ndarray]:
        """Return the next point, and write down its log density."""
        if not self.follows:
            return point
        new, rng = dict(point), step.rng
        moves = np.arange(len(self.ridges))
        if moves.size > MOST:
            moves = np.roll(moves, -int(moves.size * rng.random()))[:MOST]
        known = sampler.priors.at(new).factorized().blocks if moves.size else ()
        for i in moves:
            update: Callable[..., Any] = partial(step._updates[self.names[i]], tune=step.tune)
            density = partial(log_prior, sampler.chain, known)
            new, count = move_along(rng, density, new, self.ridges[i], update)
            info.evaluations += count
        if self.companion is None:
            info.log_density = sampler.chain.log_density(new)
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


# A chain ends where more than this part of its updates met refused values, once there are some.
_MANY, _FEWEST_UPDATES = 0.05, 100

_ADVICE = (
    "give them priors that exclude such values (under a flat prior the posterior may be improper), "
    "bring priors and data to similar scales, or start elsewhere (initvals=…)"
)


class Refusals:
    """Refused values of one chain after tuning; ``names`` are the user's, by entry of the point."""

    def __init__(self, names: Mapping[str, str], blocks: Sequence[LatentBlock]) -> None:
        self._names = names
        self._latents = " and ".join(repr(block.name) for block in blocks)
        self.total = GibbsInfo()

    def check_start(self, info: GibbsInfo) -> None:
        """Raise UncertainEvidenceError if the first step could not be made."""
        if info.stays:
            raise UncertainEvidenceError(self._sentence(info, "at the start of the chain"))

    def count(self, info: GibbsInfo, *, last: bool, steps: int = 1) -> SamplerWarning | None:
        """Add those of some equal steps; raise if they are too many, warn of any at the last."""
        total = self.total
        if info.refusals or info.stays:
            total.refusals += info.refusals
            total.stays += info.stays
            for name, (least, largest) in info.refused.items():
                known = total.refused.get(name, (np.inf, -np.inf))
                total.refused[name] = min(least, known[0]), max(largest, known[1])
        total.updates += steps * max(info.updates, 1)
        met = max(total.refusals, total.stays)
        if not met:
            return None
        share = f"in {met} of {total.updates} updates"
        if total.updates >= _FEWEST_UPDATES and met > _MANY * total.updates:
            raise UncertainEvidenceError(self._sentence(total, share))
        if not last:
            return None
        found = self._sentence(total, share)
        message = (
            f"Refused values: {found}. Draws are right if the posterior hardly has such values"
        )
        return SamplerWarning(WarningType.BAD_ACCEPTANCE, message, "warn")

    def _sentence(self, info: GibbsInfo, when: str) -> str:
        ranges = [
            (f"{name!r}, PyMC's transformed {self._names[name]!r}," if name != self._names[name]
             else repr(name)) + f" from {least:.3g} to {largest:.3g}"
            for name, (least, largest) in info.refused.items()
        ]  # fmt: skip
        where = f" at {', '.join(ranges)}" if ranges else ""
        return (
            f"latent variables {self._latents}: expected a log evidence with a rounding error of "
            f"at most one nat, found a larger one {when}{where}, in whichever way it is computed, "
            f"so that such values were not accepted; {_ADVICE}"
        )
