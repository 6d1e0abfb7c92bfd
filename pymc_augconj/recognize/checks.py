"""Recognition checks itself against PyMC: a wrong reading must be impossible to miss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from ..errors import RecognitionError
from ..model import LatentGaussianModel, Point, Site
from .latents import GaussianVariable, in_innovations
from .predictors import Predictors, innovation_key
from .sites import ObservedGraph
from .space import ValueSpace

__all__ = ["check_reading"]

# Root mean square of every latent's part of the predictor, at which log densities are compared.
_SCALES = (0.0, 0.03, 0.3, 1.0)

_TOLERANCE = 1e-6

# PyMC computes some log probabilities as log(1 − p): below this value its own rounding, not the
# reading of the model, decides the digits.
_LOWEST_EXACT = -13.0
_TOLERANCE_BELOW = 1e-2


def check_reading(
    model: LatentGaussianModel,
    matched: Sequence[ObservedGraph],
    latents: Sequence[GaussianVariable],
    predictors: Predictors,
    space: ValueSpace,
    points: Sequence[Point],
) -> None:
    """Compare predictors and log densities with PyMC's, at several hyperparameters and latents.

    Raises
    ------
    RecognitionError
        If they differ: the model was misread, and nothing may be sampled from the reading.
    """
    densities = space.function(
        _log_densities(matched, latents, space),
        predictors.innovations,
    )
    compared = dict.fromkeys((site.name for site in model.sites), 0)
    rng = np.random.default_rng(1)
    for point in points:
        offset = np.array(model.offset(point))
        maps = [read(point) for read in model.maps]
        directions = {}
        for latent, A in zip(latents, maps, strict=True):
            u = rng.standard_normal(latent.total_size)
            size = np.sqrt(np.mean(A.apply(u) ** 2))
            directions[latent.name] = u / size if np.isfinite(size) and size > 0.0 else u
        for scale in _SCALES:
            innovations = {name: scale * u for name, u in directions.items()}
            eta = model.predictor(point, innovations)
            affine = offset.copy()
            for latent, A in zip(latents, maps, strict=True):
                affine += A.apply(innovations[latent.name])
            _compare_predictors(model.sites, eta, affine)
            keyed = {innovation_key(name): u for name, u in innovations.items()}
            expected = densities({**point, **keyed})
            for site, theirs in zip(model.sites, expected, strict=True):
                with np.errstate(all="ignore"):
                    ours = site.likelihood.log_density(
                        site.y(point), site.select(eta), site.params(point)
                    )
                compared[site.name] += _compare_densities(site, ours, theirs)
    for name, count in compared.items():
        if count == 0:
            raise RecognitionError(
                f"observed variable {name!r}: PyMC's log density is not finite for any "
                "observation at any point tried, so that the reading could not be checked; "
                "expected a model that can have produced the data; rescale the data or the priors"
            )


def _log_densities(
    matched: Sequence[ObservedGraph], latents: Sequence[GaussianVariable], space: ValueSpace
) -> list[pt.TensorVariable]:
    """PyMC's own log densities of the observed variables, elementwise and flat."""
    rvs = in_innovations([observed.rv for observed in matched], list(latents))
    graphs = space.in_values(
        [pm.logp(rv, observed.value) for rv, observed in zip(rvs, matched, strict=True)]
    )
    return [
        pt.broadcast_to(graph, observed.shape).ravel()
        for graph, observed in zip(graphs, matched, strict=True)
    ]


def _compare_predictors(sites: Sequence[Site], eta: np.ndarray, affine: np.ndarray) -> None:
    for site in sites:
        for rows in site.rows:
            theirs, ours = eta[rows], affine[rows]
            use = np.isfinite(theirs)
            scale = 1.0 + np.abs(theirs[use]).max(initial=0.0)
            if np.any(~(np.abs(ours - theirs)[use] <= _TOLERANCE * scale)):
                raise RecognitionError(
                    f"observed variable {site.name!r}: the predictor read from the model differs "
                    "from the model's own; expected one that is affine in the Gaussian latent "
                    "variables; nothing can be sampled from this reading; please report this model"
                )


def _compare_densities(site: Site, ours: np.ndarray, theirs: np.ndarray) -> int:
    """Return the number of observations at which the log densities could be compared."""
    exact = theirs > _LOWEST_EXACT
    tolerance = np.where(exact, _TOLERANCE, _TOLERANCE_BELOW) * (1.0 + np.abs(theirs))
    finite = np.isfinite(theirs)
    with np.errstate(invalid="ignore"):
        difference = np.abs(ours - theirs)
        wrong = finite & ~(difference <= tolerance)
        # PyMC's probability may underflow; it may not be zero where ours is not small.
        wrong |= np.isneginf(theirs) & ~(ours < 2.0 * _LOWEST_EXACT)
    if np.any(wrong):
        raise RecognitionError(
            f"observed variable {site.name!r}: read as {site.likelihood.name} with "
            f"{site.likelihood.link} link, but its log density differs from PyMC's by "
            f"{difference[wrong].max():.3g}; nothing can be sampled from this reading; please "
            "report this model"
        )
    return int(finite.sum())
