"""The spaces in which latents are conditioned on their sites; a new one is its file and a line.

All give the same numbers; the one with the fewest multiplications is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from pymc_augconj.errors import AugmentationError, NotPositiveDefiniteError
from pymc_augconj.linalg.linear_map import LinearMap
from pymc_augconj.linalg.rounding import LARGEST_ERROR, SMALL_ERROR
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.typing import Array

from .affine import Conditioner
from .by_copies import CopiesPosterior
from .by_gram import GramSpace, can_sum_out, whitened_parts
from .by_observations import ObservationPosterior
from .by_precision import PrecisionPosterior
from .by_weights import WeightPosterior
from .certified import CertifiedConditioner
from .gram_pattern import GramPattern
from .joint import LatentPrior
from .posterior import SitePosterior
from .rows import RowGroups

__all__ = ["SPACES", "cheapest_space", "choose_conditioner", "choose_space", "condition"]


#: Spaces by name; the first wins a tie in cost.
SPACES: dict[str, type[SitePosterior]] = {
    kind.space: kind
    for kind in (ObservationPosterior, WeightPosterior, CopiesPosterior, PrecisionPosterior)
}

#: Rows of the largest matrix that is allowed: 7 GB, of which a fit holds three.
LARGEST_MATRIX = 30_000
#: The same for spaces that are only tried for accuracy.
LARGEST_ALTERNATIVE = 5_000

# Below this number of multiplications call overhead dominates.
_FEW = 64.0**3 / 3.0


def cheapest_space(model: LatentGaussianModel, groups: RowGroups) -> type[SitePosterior]:
    """Return the space with the fewest multiplications."""
    return min(SPACES.values(), key=lambda space: space.multiplications(model, groups))


def choose_space(model: LatentGaussianModel, groups: RowGroups) -> type[SitePosterior]:
    """Return the cheapest space.

    Raises
    ------
    AugmentationError
        If its matrices are too large to hold.
    """
    space = cheapest_space(model, groups)
    size = space.largest_order(model, groups)
    if size > LARGEST_MATRIX:
        raise AugmentationError(
            f"{groups.size} distinct predictors of {model.latent_size} latent values take matrices "
            f"of {size} × {size} numbers, {8e-9 * size**2:,.0f} GB each; expected at most "
            f"{LARGEST_MATRIX} × {LARGEST_MATRIX}; use pac.fit(method='svi', gp=gp, inducing=…), "
            "which needs none of that size"
        )
    return space


def choose_conditioner(
    model: LatentGaussianModel, groups: RowGroups, maps: Sequence[LinearMap]
) -> CertifiedConditioner:
    """Return the conditioner of the Gibbs sampler; raises like :func:`choose_space`.

    Other spaces are used where rounding leaves the cheapest one no digits.

    Parameters
    ----------
    model : LatentGaussianModel
    groups : RowGroups
    maps : sequence of LinearMap
        A_b on the merged rows at the chain's start.
    """
    ways: list[Callable[[], Conditioner]] = []
    cheapest = cheapest_space(model, groups)
    if not groups.coupling.rows and can_sum_out(model.blocks, maps):
        pattern = GramPattern(whitened_parts(model.blocks, maps))
        least = max(_FEW, cheapest.multiplications(model, groups))
        if pattern.multiplications <= least and pattern.pattern.corner <= LARGEST_MATRIX:
            ways.append(partial(GramSpace, pattern))
    if not ways or cheapest.largest_order(model, groups) <= LARGEST_ALTERNATIVE:
        spaces = [choose_space(model, groups), *_others(model, groups, cheapest)]
        ways += [partial(space.make_conditioner, model, groups) for space in spaces]
    return CertifiedConditioner(ways)


def _others(
    model: LatentGaussianModel, groups: RowGroups, cheapest: type[SitePosterior]
) -> list[type[SitePosterior]]:
    """Return the other spaces with matrices of a possible size, the precision's own first."""
    cost = {space: space.multiplications(model, groups) for space in SPACES.values()}
    possible = [
        space
        for space in cost
        if space is not cheapest
        and np.isfinite(cost[space])
        and space.largest_order(model, groups) <= LARGEST_ALTERNATIVE
    ]
    # A structured prior is often accurate in its own precision where covariances are not.
    return sorted(possible, key=lambda space: (space is not PrecisionPosterior, cost[space]))


def condition(
    prior: LatentPrior,
    groups: RowGroups,
    h: Array,
    lam: Array,
    *,
    space: str,
    **work: Array | None,
) -> SitePosterior:
    """Return the posterior of ``prior`` given the sites (h, λ) of every row.

    Parameters
    ----------
    space : str
        The cheapest space; another one is used where rounding leaves it no digits.

    Raises
    ------
    NotPositiveDefiniteError
        If there is no posterior.
    """
    own: SitePosterior | None = None
    failure: NotPositiveDefiniteError | None = None
    try:
        own = SPACES[space](prior, groups, h, lam, **work)
        if own.error <= SMALL_ERROR:
            return own
    except NotPositiveDefiniteError as error:
        failure = error
    if max(sum(b.block.total_size for b in prior.blocks), groups.size) <= LARGEST_ALTERNATIVE:
        least = LARGEST_ERROR if own is None else min(own.error, LARGEST_ERROR)
        structured = any(b.block.entries is not None for b in prior.blocks)
        for name in ["precision"] * structured + ["weight", "observation"]:
            if name != space:
                with suppress(NotPositiveDefiniteError):
                    other = SPACES[name](prior, groups, h, lam)
                    if other.error < least:
                        own, least = other, other.error
    if own is None:
        assert failure is not None
        raise failure
    return own
