"""Checks of a parsed model against PyMC: no misread model may pass.

The checks compare predictors and log densities entry by entry, over the region that a sampler can
reach: with hyperparameters from their prior, and with latents at their own scale, far in its tails,
and where every column of a design takes the predictor to the ends of the link. The tolerance is
rounding alone: some hundred units in the last place of the two numbers; if they differ by more, the
rounding error of PyMC's own graph there, see :meth:`.Interpreter.with_rounding`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymc.model import Model

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import NotAffineError, NotPositiveDefiniteError, RecognitionError
from pymc_augconj.latents.joint import block_prior
from pymc_augconj.likelihoods.contract import select_params
from pymc_augconj.linalg.linear_map import LinearMap
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.point import Point, PointMap
from pymc_augconj.python_mode import untraced
from pymc_augconj.recognition.graph.dependence import ModelIndex
from pymc_augconj.recognition.graph.derive import all_log_densities
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.predictors.predictors import Predictors, innovation_key

# Scales of the latents at successive points: entries at their prior standard deviations, times a
# number; or entries such that all columns contribute equally to the predictor, and each block a
# root mean square of that number.
_PRIOR, _COLUMNS, _MIXED = "prior", "columns", "mixed"
_DRAWS = (
    ((_PRIOR, 0.0), (_PRIOR, 1.0), (_COLUMNS, 40.0)),
    ((_COLUMNS, 0.03), (_COLUMNS, 1.0)),
    ((_PRIOR, 4.0), (_COLUMNS, 0.3)),
    ((_PRIOR, 1.0), (_COLUMNS, 40.0)),
    ((_PRIOR, 1.0), (_COLUMNS, 8.0)),
    ((_PRIOR, 4.0), (_COLUMNS, 1.0)),
)

# Of these numbers one is drawn for each block, where there are several predictors: one of them may
# be far out while another is not.
_SCALES = (0.1, 1.0, 8.0, 40.0)

# Rounding of two formulas of one number, relative to the magnitudes that it is the sum of.
_ROUNDING = 256.0 * np.finfo(float).eps

# Tolerance for PyMC's compiled log density: rounding unknown, maybe parts in single precision.
_COMPILED = 1e-6

# An entry that rounding moves by more is not compared.
_MEANINGLESS = 1e-2

# PyMC computes some log probabilities as log(1 − p), which is −∞ from about twice this value on.
_LOWEST_EXACT = -13.0

# The logarithm of the smallest number above zero.
_LOG_LEAST = -1074.0 * np.log(2.0)

# A covariance of more entries is not evaluated for the standard deviations alone.
_LARGEST_COVARIANCE = 2**18


def check_reading(
    model: LatentGaussianModel,
    densities: Sequence[PointFunction],
    wholes: Mapping[str, PointFunction],
    points: Sequence[Point],
) -> None:
    """Compare predictors and log densities with PyMC's, at several hyperparameters and latents.

    ``densities`` are PyMC's log densities of the sites, as functions of the point and the
    innovations; ``wholes`` their sums, by the names of sites whose entries were found in a sum. If
    they differ it raises a RecognitionError, and the model must not be sampled.
    """
    points = [point for point in points if np.isfinite(_uncompiled(model.log_prior, point))]
    compared = dict.fromkeys((site.name for site in model.sites), 0)
    rng = np.random.default_rng(1)
    _check_scales(model, points)
    stds = [_prior_std(block, points[0]) for block in model.blocks] if points else []
    for i, point in enumerate(points):
        maps, offset = [read(point) for read in model.maps], np.array(model.offset(point))
        for site, density in zip(model.sites, densities, strict=True):
            draws = _DRAWS[i % len(_DRAWS)]
            for innovations in _latents_to_compare(model, site, maps, stds, draws, rng):
                eta = _check_predictors(model, point, innovations, maps, offset)
                compared[site.name] += _check_density(
                    site, density, wholes.get(site.name), point, innovations, eta
                )
    for site in model.sites:
        if compared[site.name] == 0:
            raise RecognitionError(
                f"{site.label}: expected a finite log density of some observation, "
                "found none at any point tried, so that recognition could not be checked against "
                "PyMC; rescale the data or the priors, and see that parameters such as sigma are "
                "in their range, and that prior means and inputs are not NaN"
            )


# -- points ----------------------------------------------------------------------------------------


def _uncompiled[T](function: PointMap[T], point: Point) -> T:
    return getattr(function, "uncompiled", function)(point)


def _check_scales(model: LatentGaussianModel, points: Sequence[Point]) -> None:
    """Raise a RecognitionError if a latent has no variance, or an infinite one, at every point.

    Likewise if a small covariance is not symmetric: PyMC's density reads its lower half alone.
    """
    for block in model.blocks:
        if block.kind == "dense" and block.size <= _SMALL:
            for K in (np.asarray(_uncompiled(block.scale, point)) for point in points):
                if np.isfinite(K).all() and abs(K - K.T).max() > 1e-6 * abs(K).max():
                    raise RecognitionError(
                        f"variable {block.name!r}: expected a symmetric covariance, found "
                        f"{K.tolist()}; pass a Cholesky factor, as pm.LKJCorr's, by chol="
                    )
        if block.kind == "diagonal" and not block.is_flat and points:
            stds = np.array([np.ravel(_uncompiled(block.scale, point)) for point in points])
            wrong = stds[0, ((stds == 0.0) | (stds == np.inf)).all(axis=0)]
            if wrong.size:
                raise RecognitionError(
                    f"variable {block.name!r}: expected standard deviations above zero and finite, "
                    f"found {wrong[0]:g}; write a number for a known value, pm.Flat for no prior"
                )


def _prior_std(block: LatentBlock, point: Point) -> np.ndarray:
    """Return standard deviations of innovations; ones if flat, or if they take long to compute."""
    ones = np.ones(block.total_size)
    if block.is_flat or (not block.is_independent and block.size**2 > _LARGEST_COVARIANCE):
        return ones
    try:
        var = block_prior(block, np.array(_uncompiled(block.scale, point), dtype=float)).var()
    except NotPositiveDefiniteError:
        return ones
    return np.sqrt(np.where(np.isfinite(var) & (var > 0.0), var, 1.0))


def _latents_to_compare(
    model: LatentGaussianModel,
    site: Site,
    maps: Sequence[LinearMap],
    stds: Sequence[np.ndarray],
    draws: Sequence[tuple[str, float]],
    rng: np.random.Generator,
) -> Iterator[dict[str, np.ndarray]]:
    """Yield innovations by block."""
    rows = site.row_numbers.ravel()
    several = site.likelihood.n_predictors > 1
    for kind, given in (*draws, (_MIXED, np.nan)) if several else draws:
        innovations = {}
        for block, A, std in zip(model.blocks, maps, stds, strict=True):
            scale = rng.choice(_SCALES) if kind == _MIXED else given
            z = rng.standard_normal(block.total_size)
            if kind == _PRIOR:
                u = std * z
            else:
                here = A.rows(rows)
                largest = here.largest_entries()
                with np.errstate(all="ignore"):
                    u = z / np.where(largest > 0.0, largest, 1.0)
                    u /= np.sqrt(np.mean(np.square(here.apply(u))))
                # A block that does not enter this site moves others.
                u = u if np.isfinite(u).all() else std * z
            innovations[block.name] = scale * u
        yield innovations


# -- predictors ------------------------------------------------------------------------------------


def _check_predictors(
    model: LatentGaussianModel,
    point: Point,
    innovations: dict[str, np.ndarray],
    maps: Sequence[LinearMap],
    offset: np.ndarray,
) -> np.ndarray:
    """Return PyMC's η, ours where it is not finite; raise RecognitionError if others differ."""
    theirs = model.predictor(point, innovations)
    parts = [A.apply(u) for A, u in zip(maps, innovations.values(), strict=True)]
    ours = np.sum([offset, *parts], axis=0)
    # Logarithms of exponentials underflow, as of odds.
    theirs = np.where(np.isfinite(theirs), theirs, ours)
    magnitude = np.sum(np.abs([theirs, offset, *parts]), axis=0)
    wrong = _differ(ours, theirs, _ROUNDING * magnitude)
    if not wrong.any():
        return theirs
    terms = [A.magnitude(u) for A, u in zip(maps, innovations.values(), strict=True)]
    bound = _ROUNDING * np.sum([magnitude, *terms], axis=0)
    if isinstance(model.predictor, Predictors):
        bound = bound + model.predictor.rounding(point, innovations)
    wrong = _differ(ours, theirs, bound)
    for site in model.sites:
        if wrong[site.rows].any():
            raise RecognitionError(
                f"{site.label}: expected a predictor that is affine in the "
                "Gaussian latent variables, found one that differs from its affine form; the model "
                "was misread, so that it cannot be sampled; please report this model"
            )
    return theirs


def _differ(ours: np.ndarray, theirs: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Return where PyMC's numbers are finite and ours differ by more than ``bound``."""
    with np.errstate(invalid="ignore"):
        return np.isfinite(theirs) & ~(np.abs(ours - theirs) <= bound)


# -- densities -------------------------------------------------------------------------------------


def _check_density(
    site: Site,
    density: PointFunction,
    whole: PointFunction | None,
    point: Point,
    innovations: dict[str, np.ndarray],
    eta: np.ndarray,
) -> int:
    """Return the number of observations at which the log densities could be compared."""
    eta = site.select(eta)
    with np.errstate(all="ignore"):
        ours = site.likelihood.log_density(site.y(point), eta, site.params(point))
    keyed = {innovation_key(name): u for name, u in innovations.items()}
    theirs = _Theirs(density, {**point, **keyed})
    if not site.likelihood.can_augment:
        _check_rows(site, eta, point, ours, theirs)
    if whole is not None:
        _compare_densities(site, np.sum(ours, keepdims=True), _Theirs(whole, theirs.point))
    return _compare_densities(site, ours, theirs)


@dataclass(frozen=True)
class _Theirs:
    """PyMC's log density of one observed variable at one point, with its rounding."""

    density: PointFunction
    point: Point

    @cached_property
    def values(self) -> np.ndarray:
        """Values of the graph as written, or of its stable form if that cannot be evaluated."""
        written = self.density.as_written(self.point)
        return self.stable if written is None else written

    @cached_property
    def stable(self) -> np.ndarray:
        return self.density(self.point)

    @cached_property
    def bound(self) -> np.ndarray:
        """Bound on the effect of rounding on the values."""
        found = self.density.with_rounding(self.point)
        return _COMPILED * (1.0 + np.abs(self.values)) if found is None else found[1]


def _compare_densities(site: Site, ours: np.ndarray, theirs: _Theirs) -> int:
    """Return the number of observations at which the log densities could be compared."""
    values = theirs.values
    bound = _rounding_of(ours, values)
    wrong = _differ(ours, values, bound)
    if wrong.any():
        bound = bound + theirs.bound
        wrong = _differ(ours, values, bound)
    # PyMC's probability may underflow; it may not be zero where ours is not small.
    vanishes = np.isneginf(values) & ~(ours < 2.0 * _LOWEST_EXACT) & ~np.isneginf(values).all()
    if (wrong | vanishes).any():
        # PyMC computes the stable form, not the unstable formula.
        values = theirs.stable
        bound = _rounding_of(ours, values)
        wrong = _differ(ours, values, bound)
        vanishes &= np.isneginf(values)
        if (wrong | vanishes).any():
            # An infinite bound tells of the stable form only where that rounds alike.
            known = np.isfinite(theirs.bound)
            bound = bound + np.where(known | (values == theirs.values), theirs.bound, 0.0)
            wrong = _differ(ours, values, bound) | (vanishes & known)
    if wrong.any():
        with np.errstate(invalid="ignore"):
            largest = np.abs(ours - values)[wrong].max()
        raise RecognitionError(
            f"{site.label}: read as {site.likelihood.name} with "
            f"{site.likelihood.link} link, but its log density differs from PyMC's by "
            f"{largest:.3g}; the model was misread, so that it cannot be sampled; please report "
            "this model"
        )
    return int(np.sum(np.isfinite(values) & (bound <= _MEANINGLESS * (1.0 + np.abs(values)))))


def _rounding_of(ours: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the rounding difference of two formulas that lose no digits."""
    magnitude = np.abs(values) + np.abs(np.where(np.isfinite(ours), ours, 0.0))
    # No less than of a number of order one: log(1 − F) is the logarithm of such a number.
    bound = _ROUNDING * np.maximum(magnitude, 1.0)
    # PyMC takes the logarithm of some probabilities, and of subnormal numbers few digits are left.
    representable = np.where(values > _LOG_LEAST, values, 0.0)
    return bound + np.exp(_LOG_LEAST - np.minimum(representable, 0.0))


def _check_rows(
    site: Site, eta: np.ndarray, point: Point, together: np.ndarray, theirs: _Theirs
) -> None:
    """Raise RecognitionError if a rebuilt density at some rows depends on the other rows."""
    # In no order, which a function of other rows might keep.
    some = np.random.default_rng(3).permutation(site.size)[: max(site.size // 2, 1)]
    params = select_params(site.params(point), some, site.size)
    with np.errstate(all="ignore"):
        alone = site.likelihood.log_density(site.y(point)[some], eta[:, some], params)
    bound = _ROUNDING * np.abs(together[some])
    if _differ(alone, together[some], bound).any() and (
        _differ(alone, together[some], bound + theirs.bound[some]).any()
    ):
        cause = None if site.refusal is None else site.refusal.__cause__
        if isinstance(cause, NotAffineError):
            raise NotAffineError(str(cause))
        raise RecognitionError(
            f"{site.label}: expected a density that is a product over observations, found that one "
            "observation's depends on the others (through pytensor.scan? write cumsum or pm.AR); "
            "sample this model with pm.sample's NUTS"
        )


Array = NDArray[np.float64]

# Largest order of a covariance that a user may have composed of numbers.
_SMALL = 16

# A difference of log densities that changes no probability by more than this part of it.
_NEGLIGIBLE = 1e-6


# Entries of the largest array that is worth a few evaluations: a covariance of 4096 latents.
_LARGEST_ARRAY = 2**24


class WholeDensity:
    """PyMC's own log density of a model, executed without compiling it."""

    def __init__(self, model: Model) -> None:
        with untraced():
            index = ModelIndex(model)
            terms = all_log_densities(index)
        self._names = [var.name for var in (*index.basic_RVs, *index.potentials)]
        self._potentials = {potential.name for potential in index.potentials}
        self._density = PointFunction(terms, index.inputs, largest_array=_LARGEST_ARRAY)

    def check(self, point: Point, ours: float, sampler: Any, where: str) -> None:
        """Raise a RecognitionError if a Gibbs sampler's log density differs from PyMC's.

        Rounding is allowed for; ``where`` describes the step at ``point``, for the message.
        """
        differing = False
        for terms in self._readings(point):
            theirs, tolerance = _total(terms), _NEGLIGIBLE + _ROUNDING * _magnitude(terms)
            if np.isnan(theirs):
                continue  # PyMC's own Cholesky factor fails
            if np.isinf(theirs) and ours == theirs:
                named = zip(self._names, terms, strict=True)
                listed = " and ".join(repr(x) for x, term in named if np.isinf(np.sum(term)))
                raise RecognitionError(
                    f"{listed}: expected a finite log density {where}, found {ours}, by PyMC's "
                    "formula too; start the chain where the data are possible, by initvals=, or "
                    "rescale the data or the priors"
                )
            if abs(ours - theirs) <= tolerance:
                return
            tolerance += self._rounding(point, terms) + sampler.rounding(point)
            if abs(ours - theirs) <= tolerance:
                return
            differing = True
        if not differing:
            return
        parts = dict(zip(self._names, map(np.sum, terms), strict=True))
        wrong = [
            name
            for name, part in sampler.site_log_densities(point).items()
            # Of a vector outcome that is read in parts PyMC has no density of each.
            if name in parts and not abs(part - parts[name]) <= tolerance
        ]
        listed = " and ".join(
            f"{'potential' if name in self._potentials else 'observed variable'} {name!r}"
            for name in wrong
        )
        raise RecognitionError(
            f"{listed or 'the prior'}: expected the log density that PyMC gives {where}, "
            f"{theirs:.10g} in all, found {ours:.10g}; the model was misread and no draw of this "
            "chain can be trusted; sample this model with pm.sample's NUTS, and please report it"
        )

    def _readings(self, point: Point) -> Iterator[list[Array]]:
        """Yield PyMC's terms as written and, if these disagree, as compiled."""
        terms = self._density.as_written(point)
        if terms is not None and all(np.isfinite(term).all() for term in terms):
            yield terms
        # PyMC computes the stable form, not the unstable formula.
        with suppress(np.linalg.LinAlgError):
            yield self._density(point)

    def _rounding(self, point: Point, terms: list[Array]) -> float:
        found = self._density.with_rounding(point)
        if found is None:
            return _COMPILED * _magnitude(terms)
        return sum(float(np.sum(bound)) for bound in found[1])


def _total(terms: list[Array]) -> float:
    return float(sum(np.sum(term) for term in terms))


def _magnitude(terms: list[Array]) -> float:
    return 1.0 + sum(float(np.abs(term).sum()) for term in terms)
