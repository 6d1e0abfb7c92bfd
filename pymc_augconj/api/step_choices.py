"""Choices of the step method: its variables, the updates of its moves, and its sweeps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from pymc.model import Model

from pymc_augconj.errors import RecognitionError
from pymc_augconj.latents.posterior import Solver
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.plan import BY_ENTRY, Plan, can_use_gradient, has_many
from pymc_augconj.recognition.recognition import Recognition

from .updates import (
    EllipticalUpdate,
    EntrywiseSliceUpdate,
    GradientUpdate,
    MixedUpdate,
    SliceUpdate,
)

# Draws of (ω, latents) per step if updates of hyperparameters need factorisations; and rows from
# which drawing ω takes longer than the factorisations of independent latents.
_SWEEPS, _MANY_ROWS = 4, 500

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
    # Given the latents, parameters of likelihoods are several at once as fast as one by one.
    given_latents = SliceUpdate
    if hyper_sampler == "auto" and sum(h.size for h in plan.likelihood) > 1:
        given_latents = MixedUpdate
    if hyper_sampler == "auto":
        # Scales of a map and of its areas' own effects are near zero in turn, tails that
        # ellipses alone are long in leaving; and structured evidence costs little.
        structured = any(b.entries is not None or b.grid for b in model.blocks)
        several = structured and sum(h.size for h in plan.collapsed) > 1
        hyper_sampler = "elliptical" if held and not several else "mixed"
        if uses_gradient(model, plan, held, solver):
            hyper_sampler = "nuts"
    updates: dict[str, type] = {
        move: EntrywiseSliceUpdate if move.startswith(BY_ENTRY) else SliceUpdate
        for move in plan.moves
    }
    updates["likelihood"] = updates["level"] = given_latents
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
    is_sparse: bool,
) -> int | None:
    """Return the draws of the latents in a step; None to choose their number during tuning."""
    if sweeps is None and held:
        return None
    if sweeps is None:
        # Without ω a second draw of the latents replaces the first.
        augmented = any(s.likelihood.has_auxiliary for s in model.sites)
        updated = any(own for move, own in plan.moves.items() if move.startswith(_REUSED))
        cheap = is_sparse and model.n_rows > _MANY_ROWS
        # Entries are updated given the latents, and mix as fast as these do.
        repeats = bool(plan.by_entry) or (updated and not cheap)
        return _SWEEPS if augmented and repeats else 1
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
