"""Which move of the Gibbs step updates which variable, and by which method.

The moves, in their order within a step:

1. *likelihood* hyperparameters given the latents, ω integrated out: O(n) per evaluation;
   *joint* ones, which enter a covariance too, likewise but with a new factorisation;
2. ω given everything, exactly;
3. *collapsed* hyperparameters given ω, the latents integrated out;
4. the latents given everything, exactly; then the variables drawn forward.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from .model import Hyperparameter, LatentGaussianModel

__all__ = ["Plan", "can_use_gradient", "describe", "has_many", "held_names", "make_plan"]

# From this many collapsed scalars on, NUTS replaces slice sampling where it can.
_FEWEST_FOR_GRADIENT = 6

# Vectors of more scalars than this are left to PyMC.
LARGEST_SLICED = 60


@dataclass(frozen=True)
class Plan:
    """Hyperparameters by the move that updates them, and those that are left to PyMC."""

    likelihood: tuple[Hyperparameter, ...]
    joint: tuple[Hyperparameter, ...]
    collapsed: tuple[Hyperparameter, ...]
    prior_only: tuple[Hyperparameter, ...]
    left_to_pymc: tuple[Hyperparameter, ...]


def make_plan(model: LatentGaussianModel, held: Collection[str] = ()) -> Plan:
    """Assign every hyperparameter of ``model`` to a move.

    Parameters
    ----------
    model
    held : collection of str
        Observed variables whose sites are held.
    """
    ours = [h for h in model.hyperparameters if h.continuous and h.size <= LARGEST_SLICED]
    # The moves of several groups of predictors integrate out some of the latents only.
    grouped = any(len(s.terms.groups) > 1 for s in model.sites if s.name not in held)
    moves = {"likelihood": "likelihood", "both": "joint", "none": "prior_only"}
    moves["prior"] = "joint" if grouped else "collapsed"
    chosen = {
        move: tuple(h for h in ours if moves[h.role] == move)
        for move in ("likelihood", "joint", "collapsed", "prior_only")
    }
    return Plan(
        **chosen,
        left_to_pymc=tuple(h for h in model.hyperparameters if h not in ours),
    )


def held_names(model: LatentGaussianModel, sites: str = "auto") -> tuple[str, ...]:
    """Return the observed variables whose sites are held.

    Parameters
    ----------
    model
    sites : {"auto", "augmented", "held"}
        ``"auto"``: auxiliary variables for every likelihood that has them; ``"augmented"``: for
        all, or an error; ``"held"``: for none. A normal likelihood needs neither.

    Raises
    ------
    AugmentationError
        If ``sites`` is "augmented" and an observed variable has no augmentation.
    """
    if sites not in ("auto", "augmented", "held"):
        raise ValueError(f"sites: expected 'auto', 'augmented' or 'held', got {sites!r}")
    if sites == "augmented":
        model.require_augmentation()
    return tuple(
        site.name
        for site in model.sites
        if not site.likelihood.can_augment or (sites == "held" and site.likelihood.has_auxiliary)
    )


def _has_gradient(model: LatentGaussianModel, names: set[str]) -> bool:
    """Return whether the evidence's gradient with respect to entries ``names`` is available.

    It is not where a design matrix depends on them: the evidence's derivative with respect to a
    map is not a vector–Jacobian product that recognition extracts. Nor is it where the sites
    themselves do, as with the standard deviation of a normal likelihood.
    """
    reads = [*model.maps, *(site.params for site in model.sites)]
    return not any(names.intersection(read.names) for read in reads)


def can_use_gradient(model: LatentGaussianModel, plan: Plan) -> bool:
    """Return whether the collapsed move can follow the gradient of the log evidence."""
    names = {h.value_name for h in plan.collapsed}
    return bool(names) and _has_gradient(model, names)


def has_many(plan: Plan) -> bool:
    """Return whether the collapsed move has so many scalars that NUTS is the better update."""
    return sum(h.size for h in plan.collapsed) >= _FEWEST_FOR_GRADIENT


def describe(
    plan: Plan, hyperparameter: Hyperparameter, *, by_gradient: bool = False, held: bool = False
) -> str:
    """Return how ``hyperparameter`` will be sampled, in a few words.

    Parameters
    ----------
    plan, hyperparameter
    by_gradient : bool
        Whether the collapsed move is made by NUTS.
    held : bool
        Whether there are held sites.
    """
    if hyperparameter in plan.likelihood:
        without = "" if held else ", ω integrated out"
        return f"slice sampling given the latents{without}"
    if hyperparameter in plan.joint:
        how = "elliptical slices" if held else "slice sampling"
        return f"{how} given the whitened latents" + ("" if held else ", ω integrated out")
    if hyperparameter in plan.collapsed:
        if held:
            return "elliptical slices given the standardised latents"
        how = "NUTS" if by_gradient else "slice sampling"
        return f"{how} given ω, latents integrated out"
    if hyperparameter in plan.prior_only:
        return "slice sampling of its prior given the other hyperparameters"
    return "left to PyMC's own step methods"
