"""Recognition checks itself against PyMC: a wrong reading must be impossible to miss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np

from pymc_augconj.errors import NotAffineError, RecognitionError
from pymc_augconj.likelihoods.density import select_params
from pymc_augconj.model import LatentGaussianModel, Point, PointMap, Site
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.predictors.predictors import innovation_key

__all__ = ["check_reading"]

# Root mean square of every latent's part of the predictor, at which log densities are compared.
_SCALES = (0.0, 0.03, 0.3, 1.0)

_TOLERANCE = 1e-6

# PyMC computes some log probabilities as log(1 − p): below this value its own rounding, not the
# reading of the model, decides the digits.
_LOWEST_EXACT = -13.0
_TOLERANCE_BELOW = 1e-2


def check_reading(
    model: LatentGaussianModel, densities: Sequence[PointFunction], points: Sequence[Point]
) -> None:
    """Compare predictors and log densities with PyMC's, at several hyperparameters and latents.

    Parameters
    ----------
    model : LatentGaussianModel
        The reading.
    densities : sequence of PointFunction
        PyMC's log density of each site, as a function of the point and of the innovations.
    points : sequence of mapping

    Raises
    ------
    RecognitionError
        If they differ: the model was misread, and nothing may be sampled from the reading.
    """
    points = [point for point in points if np.isfinite(_as_it_stands(model.log_prior, point))]
    for site, density in zip(model.sites, densities, strict=True):
        rng = np.random.default_rng(1)
        compared = 0
        for point in points:
            for innovations, affine in _latents_to_compare(model, site, point, rng):
                eta = model.predictor(point, innovations)
                _compare_predictors(model.sites, eta, affine)
                keyed = {innovation_key(name): u for name, u in innovations.items()}
                with np.errstate(all="ignore"):
                    ours = site.terms.log_density(
                        site.y(point), site.select(eta), site.params(point)
                    )
                if not site.likelihood.can_augment:
                    _check_rows(site, site.select(eta), point, ours)
                compared += _compare_with(density, {**point, **keyed}, site, ours)
        if compared == 0:
            raise RecognitionError(
                f"observed variable {site.name!r}: PyMC's log density is not finite for any "
                "observation at any point tried, so that the reading could not be checked; "
                "expected a model that can have produced the data; rescale the data or the priors"
            )


def _latents_to_compare(
    model: LatentGaussianModel, site: Site, point: Point, rng: np.random.Generator
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Yield innovations by block, and the stacked η that the maps give there."""
    offset = np.array(model.offset(point))
    maps = [read(point) for read in model.maps]
    directions = {}
    for block, A in zip(model.blocks, maps, strict=True):
        u = rng.standard_normal(block.total_size)
        # A scale at which this site's predictor moves, however small the design's entries.
        size = np.sqrt(np.mean(np.square(site.select(A.apply(u)))))
        directions[block.name] = u / size if np.isfinite(size) and size > 0.0 else u
    for scale in _SCALES:
        innovations = {name: scale * u for name, u in directions.items()}
        affine = offset.copy()
        for A, u in zip(maps, innovations.values(), strict=True):
            affine += A.apply(u)
        yield innovations, affine


def _check_rows(site: Site, eta: np.ndarray, point: Point, together: np.ndarray) -> None:
    """Evaluate a density that was rebuilt row by row at some of its rows alone."""
    some = np.arange(site.size)[::-2]
    params = select_params(site.params(point), some, site.size)
    alone = site.terms.log_density(site.y(point)[some], eta[:, some], params)
    if not np.allclose(alone, together[some], rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
        cause = None if site.refusal is None else site.refusal.__cause__
        if isinstance(cause, NotAffineError):
            raise NotAffineError(str(cause))
        raise RecognitionError(
            f"observed variable {site.name!r}: expected a density that is a product over "
            "observations, found that one observation's depends on the others; sample this model "
            "with pm.sample's NUTS"
        )


def _compare_predictors(sites: Sequence[Site], eta: np.ndarray, affine: np.ndarray) -> None:
    for site in sites:
        for theirs, ours in zip(site.select(eta), site.select(affine), strict=True):
            use = np.isfinite(theirs)
            scale = 1.0 + np.abs(theirs[use]).max(initial=0.0)
            if np.any(~(np.abs(ours - theirs)[use] <= _TOLERANCE * scale)):
                raise RecognitionError(
                    f"observed variable {site.name!r}: the predictor read from the model differs "
                    "from the model's own; expected one that is affine in the Gaussian latent "
                    "variables; nothing can be sampled from this reading; please report this model"
                )


def _as_it_stands(function: PointMap[float], point: Point) -> float:
    return getattr(function, "as_it_stands", function)(point)


def _compare_with(density: PointFunction, point: Point, site: Site, ours: np.ndarray) -> int:
    """Compare with PyMC's log densities, in their stable form where the written one will not do."""
    written = density.as_it_stands(point)
    if np.isfinite(written).all():
        with suppress(RecognitionError):
            return _compare_densities(site, ours, written)
    return _compare_densities(site, ours, density(point))


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
