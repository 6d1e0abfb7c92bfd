"""Assignment of variables to the moves and methods of the Gibbs step, in their order.

0. vectors whose *entries* are independent given all other variables, all entries at once; and
   scalars while such a vector moves with or against them: with the scale of its prior, say;
   vectors whose entries each scale one latent in the same way, given the scaled latents, and once
   more before move 3 with the latents integrated out;
1. *likelihood* hyperparameters given the latents, ω integrated out: O(n) per evaluation;
   *level* ones once more, while the location of a predictor moves against them;
   *joint* ones, which enter a covariance too, in the same way but with a new factorisation;
2. ω given everything, exactly;
3. *collapsed* hyperparameters given ω, the latents integrated out;
4. the latents given everything, exactly; then the variables drawn forward.

For several groups of predictors, or where latents are divided into factors, moves 3 and 4 update
one part of the latents after another. Hyperparameters of the covariance of one block (of one factor
also of its design) then have an update of their own; others belong to *joint*. Those of exact
likelihoods are updated with the last factor, which is the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from .model import EntryDensities, EntryRidge, Hyperparameter, LatentGaussianModel
from .point import PointMap

# From this many collapsed scalars on, NUTS replaces slice sampling if possible.
_FEWEST_FOR_GRADIENT = 6

#: Prefix of the names of updates of all entries of a vector at once.
BY_ENTRY = "entries of "
#: Prefix of the names of updates along a ridge.
ALONG = "along ridge "
# Parameters of likelihoods and of the prior that move together where sites are held.
_MOST_TOGETHER = 10
# Larger vectors are left to PyMC.
LARGEST_SLICED = 60
# Order of the largest inverse by which scales of latents are drawn with these integrated out.
_LARGEST_INVERSE = 1_000


@dataclass(frozen=True)
class Factors:
    """Blocks that are drawn together given the others, where all at once cost too much."""

    blocks: tuple[tuple[int, ...], ...]
    # Of a joint draw beside that of a step factor by factor.
    cost: float


@dataclass(frozen=True)
class Plan:
    """Hyperparameters by the move that updates them, and hyperparameters left to PyMC.

    With groups of predictors, ``of_blocks`` has the hyperparameters of move 3 by latent block.
    ``level`` is a part of ``likelihood``, and ``by_column`` the part of ``by_entry`` that scales
    latents: what these scales depend on is in ``joint`` too. ``factors`` are there where latents
    are not drawn all at once. ``followed`` is a part of ``collapsed``: parameters of likelihoods of
    which held sites are functions.
    """

    likelihood: tuple[Hyperparameter, ...]
    level: tuple[Hyperparameter, ...]
    joint: tuple[Hyperparameter, ...]
    collapsed: tuple[Hyperparameter, ...]
    prior_only: tuple[Hyperparameter, ...]
    left_to_pymc: tuple[Hyperparameter, ...]
    by_entry: tuple[Hyperparameter, ...] = ()
    by_column: tuple[Hyperparameter, ...] = ()
    of_blocks: Mapping[str, tuple[Hyperparameter, ...]] = field(default_factory=dict)
    factors: Factors | None = None
    followed: tuple[Hyperparameter, ...] = ()

    @cached_property
    def moves(self) -> dict[str, tuple[Hyperparameter, ...]]:
        """The hyperparameters of every update, by name of the update."""
        names = ("prior_only", "joint", "likelihood", "level", "collapsed")
        found = {name: getattr(self, name) for name in names}
        found |= {f"{BY_ENTRY}{h.name}": (h,) for h in self.by_entry}
        return found | {f"collapsed {name}": own for name, own in self.of_blocks.items()}

    @cached_property
    def ridges(self) -> dict[str, EntryRidge]:
        """Ridges of vectors that are updated by entry, by name of the update."""
        own = {h.value_name for h in self.updated if not h.factor_order}
        found = [r for v in self.by_entry for r in self.densities_of(v).ridges if r.h[0] in own]
        return {f"{ALONG}{i}, of {r.vector}": r for i, r in enumerate(found)}

    def densities_of(self, vector: Hyperparameter) -> EntryDensities:
        """Return the densities of a vector's entries; of one in ``by_column`` their log priors."""
        columns = vector.columns if vector in self.by_column else None
        found = vector.entries if columns is None else columns.densities
        assert found is not None  # see make_plan
        return found

    @cached_property
    def updated(self) -> tuple[Hyperparameter, ...]:
        """The hyperparameters updated by moves, each once."""
        return tuple({h.name: h for own in self.moves.values() for h in own}.values())

    def restricted(self, keep: Callable[[Hyperparameter], bool]) -> Plan:
        """Return the plan restricted to some hyperparameters."""
        names = (
            *("likelihood", "level", "followed", "joint", "collapsed", "prior_only"),
            *("by_entry", "by_column"),
        )
        some: dict[str, Any] = {name: tuple(filter(keep, getattr(self, name))) for name in names}
        of_blocks = {name: tuple(filter(keep, own)) for name, own in self.of_blocks.items()}
        some["of_blocks"] = {name: own for name, own in of_blocks.items() if own}
        return replace(self, **some)


def make_plan(
    model: LatentGaussianModel, held: Collection[str] = (), factors: Factors | None = None
) -> Plan:
    """Assign every hyperparameter of ``model`` to a move."""
    # With several groups of predictors a move integrates out some of the latents only.
    grouped = factors is not None or any(
        len(s.likelihood.groups) > 1 for s in model.sites if s.name not in held
    )
    by_column: tuple[Hyperparameter, ...] = ()
    coupled = any(s.likelihood.traits.coupled for s in model.sites)
    if not (grouped or held or coupled) and _inverse(model) <= _LARGEST_INVERSE:
        by_column = tuple(h for h in model.hyperparameters if h.columns is not None)
    vectors = [h for h in model.hyperparameters if h.entries is not None or h in by_column]
    by_entry = tuple(vectors)
    few = [h for h in model.hyperparameters if h.continuous and h.size <= LARGEST_SLICED]
    ours = [h for h in few if h not in by_entry]
    moves = {"likelihood": "likelihood", "both": "joint", "none": "prior_only"}
    moves["prior"] = "joint" if grouped else "collapsed"
    followed = tuple(h for h in ours if not grouped and _is_followed(model, held, h))
    if sum(h.size for h in ours if h in followed or h.role == "prior") > _MOST_TOGETHER:
        followed = ()
    chosen = {
        move: tuple(h for h in ours if ("collapsed" if h in followed else moves[h.role]) == move)
        for move in ("likelihood", "joint", "collapsed", "prior_only")
    }
    of_blocks: dict[str, tuple[Hyperparameter, ...]] = {}
    for h in chosen["joint"] if grouped else ():
        only = partial(_block_of_factor, factors=factors) if factors else _only_block
        name = only(model, h) if h.role == "prior" else None
        if name is not None:
            of_blocks[name] = (*of_blocks.get(name, ()), h)
    scaling = {name for h in by_column if h.columns is not None for name in h.columns.names}
    chosen["joint"] += tuple(h for h in chosen["collapsed"] if h.value_name in scaling)
    of_own = {h.name for own in of_blocks.values() for h in own}
    chosen["joint"] = tuple(h for h in chosen["joint"] if h.name not in of_own)
    if factors:
        of_prior = [*_reads(model), *(block.scale for block in model.blocks)]
        of_sites = tuple(h for h in chosen["joint"] if not _is_read(h, of_prior))
        chosen["likelihood"] += of_sites
        chosen["joint"] = tuple(h for h in chosen["joint"] if h not in of_sites)
    return Plan(
        **chosen,
        factors=factors,
        level=tuple(h for h in chosen["likelihood"] if _moves_level(model, h, factors)),
        by_entry=by_entry,
        by_column=by_column,
        of_blocks=of_blocks,
        left_to_pymc=tuple(h for h in model.hyperparameters if h not in (*ours, *by_entry)),
        followed=followed,
    )


def _is_followed(
    model: LatentGaussianModel, held: Collection[str], hyperparameter: Hyperparameter
) -> bool:
    """Return whether it is a parameter of held sites alone, which may be functions of it.

    Not where it also shifts predictors that an augmentation asks for, as the dispersion of counts
    does: their sites would stay where they were.
    """
    own = [site for site in model.sites if _is_read(hyperparameter, [site.params])]
    kinds = [site.likelihood for site in own]
    alone = all(k.n_predictors == 1 and not k.cutpoints for k in kinds)
    is_held = bool(own) and {site.name for site in own} <= set(held)
    shifts = _is_read(hyperparameter, _reads(model)) and any(k.can_augment for k in kinds)
    return is_held and alone and not shifts and model.is_independent


def _inverse(model: LatentGaussianModel) -> int:
    """Return the order of the matrix that is inverted for the latents' conditional precision."""
    return min(model.n_rows, model.latent_size)


def _is_read(hyperparameter: Hyperparameter, reads: Iterable[PointMap[Any]]) -> bool:
    """Return whether some functions of the point depend on a hyperparameter."""
    return any(hyperparameter.value_name in read.names for read in reads)


def _reads(model: LatentGaussianModel, *, maps: bool = True) -> list[PointMap[Any]]:
    """Return the functions behind the predictors: offset, prior means and maps."""
    means = [block.mean for block in model.blocks if block.mean is not None]
    return [model.offset, *means, *(model.maps if maps else ())]


def _moves_level(
    model: LatentGaussianModel, hyperparameter: Hyperparameter, factors: Factors | None
) -> bool:
    """Return whether the location of a predictor without it may move against it."""
    kinds = [site.likelihood for site in model.sites]
    # Beside exact sites the compiled loop, which is worth more, has no density given the latents.
    exact = any(kind.can_augment and not kind.has_auxiliary for kind in kinds)
    moves = [bool(kind.levels or (kind.cutpoints and (factors or not exact))) for kind in kinds]
    params = [site.params for site, own in zip(model.sites, moves, strict=True) if own]
    return _is_read(hyperparameter, params) and not _is_read(hyperparameter, _reads(model))


def _only_block(model: LatentGaussianModel, hyperparameter: Hyperparameter) -> str | None:
    """Return the block whose covariance alone has this parameter; None if there is none.

    It is None also for a block whose latents may belong to different parts.
    """
    own = [block for block in model.blocks if _is_read(hyperparameter, [block.scale])]
    if _is_read(hyperparameter, _reads(model)) or len(own) != 1:
        return None
    return None if own[0].copies > 1 or own[0].is_independent else own[0].name


def _block_of_factor(
    model: LatentGaussianModel, hyperparameter: Hyperparameter, factors: Factors
) -> str | None:
    """Return the first block of the only factor with it, the last one's if none has; else None."""
    blocks, maps, h = model.blocks, model.maps, hyperparameter
    found = [
        own for own in factors.blocks if any(_is_read(h, [blocks[i].scale, maps[i]]) for i in own)
    ]
    others = _reads(model, maps=False) + [site.params for site in model.sites if found]
    own = found[0] if found else factors.blocks[-1]
    return None if _is_read(h, others) else blocks[own[0]].name


def held_names(model: LatentGaussianModel, sites: str = "auto") -> tuple[str, ...]:
    """Return the observed variables whose sites are held."""
    if sites not in ("auto", "augmented", "held"):
        raise ValueError(f"sites: expected 'auto', 'augmented' or 'held', got {sites!r}")
    if sites == "augmented":
        model.require_augmentation()
    return tuple(
        site.name
        for site in model.sites
        if not site.likelihood.can_augment or (sites == "held" and site.likelihood.has_auxiliary)
    )


def can_use_gradient(model: LatentGaussianModel, plan: Plan) -> bool:
    """Return whether the collapsed move can follow the gradient of the log evidence.

    Recognition extracts no vector–Jacobian product of a map, nor of the parameters of sites.
    """
    reads = [*model.maps, *(site.params for site in model.sites)]
    return bool(plan.collapsed) and not any(_is_read(h, reads) for h in plan.collapsed)


def has_many(plan: Plan) -> bool:
    """Return whether the collapsed move has enough scalars for NUTS to be the better update."""
    return sum(h.size for h in plan.collapsed) >= _FEWEST_FOR_GRADIENT


def describe(
    plan: Plan, hyperparameter: Hyperparameter, *, by_gradient: bool = False, held: bool = False
) -> str:
    """Describe in a few words how ``hyperparameter`` will be sampled."""
    if hyperparameter in plan.by_column:
        return (
            "slice sampling of all entries at once given the scaled latents, and entry by entry "
            "given ω, latents integrated out"
        )
    if hyperparameter in plan.by_entry:
        return "slice sampling of all entries at once, given the latents"
    if hyperparameter in plan.likelihood:
        without = "" if held else ", ω integrated out"
        level = ", and with their level" if hyperparameter in plan.level else ""
        return f"slice sampling given the latents{without}{level}"
    if hyperparameter in plan.joint and hyperparameter in plan.collapsed:
        how = "NUTS" if by_gradient else "slice sampling"
        return (
            f"slice sampling given the whitened latents, ω integrated out; {how} given ω, latents "
            "integrated out"
        )
    if hyperparameter in plan.joint:
        how = "elliptical slices" if held else "slice sampling"
        return f"{how} given the whitened latents" + ("" if held else ", ω integrated out")
    if any(hyperparameter in own for own in plan.of_blocks.values()):
        return "slice sampling given ω, its latents integrated out"
    if hyperparameter in plan.collapsed:
        if held:
            return "elliptical slices given the standardised latents"
        how = "NUTS" if by_gradient else "slice sampling"
        return f"{how} given ω, latents integrated out"
    if hyperparameter in plan.prior_only:
        return "slice sampling given the other hyperparameters"
    return "left to PyMC's own step methods"
