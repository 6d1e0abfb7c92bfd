"""The spaces in which latents are conditioned on their sites; a new one is its file and a line.

All give the same numbers; the one that takes the fewest multiplications is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence

from pymc_augconj.errors import AugmentationError
from pymc_augconj.linalg.linear_map import LinearMap
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.typing import Array

from .affine import Conditioner
from .by_copies import CopiesPosterior
from .by_gram import GramSpace
from .by_observations import ObservationPosterior
from .by_precision import PrecisionPosterior
from .by_weights import WeightPosterior
from .diagonal import DiagonalPrior
from .gram_pattern import GramPattern
from .joint import LatentPrior
from .posterior import SitePosterior
from .rows import RowGroups

__all__ = ["SPACES", "cheapest_space", "choose_conditioner", "choose_space", "condition"]


#: By name. Of several that cost the same the first is taken.
SPACES: dict[str, type[SitePosterior]] = {
    kind.space: kind
    for kind in (ObservationPosterior, WeightPosterior, CopiesPosterior, PrecisionPosterior)
}

#: Rows of the largest matrix that is not refused: 7 GB, of which a fit holds three.
LARGEST_MATRIX = 30_000

# Multiplications that take less time than calling what makes them.
_FEW = 64.0**3 / 3.0


def cheapest_space(model: LatentGaussianModel, groups: RowGroups) -> type[SitePosterior]:
    """Return the space that takes the fewest multiplications."""
    return min(SPACES.values(), key=lambda space: space.multiplications(model, groups))


def choose_space(model: LatentGaussianModel, groups: RowGroups) -> type[SitePosterior]:
    """Return the cheapest space.

    Raises
    ------
    AugmentationError
        If it takes matrices too large to hold.
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
) -> Conditioner:
    """Return what the Gibbs sampler conditions with; raises as :func:`choose_space` does.

    Parameters
    ----------
    model : LatentGaussianModel
    groups : RowGroups
    maps : sequence of LinearMap
        A_b on the merged rows at the chain's start.
    """
    space = choose_space(model, groups)
    if not groups.coupling.rows and all(b.kind == DiagonalPrior.kind for b in model.blocks):
        pattern = GramPattern(maps)
        if pattern.multiplications <= max(_FEW, space.multiplications(model, groups)):
            return GramSpace(pattern)
    return space.make_conditioner(model, groups)


def condition(
    prior: LatentPrior, groups: RowGroups, h: Array, lam: Array, *, space: str, **work: Array | None
) -> SitePosterior:
    """Return the posterior of ``prior`` given the sites (h, λ) of every row, in a space by name."""
    return SPACES[space](prior, groups, h, lam, **work)
