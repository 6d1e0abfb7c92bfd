"""PyMC's log density of a whole model, for comparison with a running sampler's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pymc.model import Model

from pymc_augconj.errors import RecognitionError
from pymc_augconj.point import Point
from pymc_augconj.python_mode import untraced
from pymc_augconj.recognition.graph.dependence import ModelIndex
from pymc_augconj.recognition.graph.derive import all_log_densities
from pymc_augconj.recognition.graph.functions import PointFunction

Array = NDArray[np.float64]

# Rounding of two formulas of one number, relative to the magnitudes that it is the sum of.
_ROUNDING = 256.0 * np.finfo(float).eps

# A difference of log densities that changes no probability by more than this part of it.
_NEGLIGIBLE = 1e-6

# Tolerance for PyMC's compiled log density, whose rounding is unknown.
_COMPILED = 1e-6

# Entries of the largest array that is worth a few evaluations: a covariance of 4096 latents.
_LARGEST_ARRAY = 2**24


class Sampler(Protocol):
    """A sampler whose log density is compared."""

    def site_log_densities(self, point: Point) -> Mapping[str, float]:
        """Return the log density of every observed variable, by name."""
        ...

    def rounding(self, point: Point) -> float:
        """Return the effect on the log density of rounding in the prior's covariances."""
        ...


class WholeDensity:
    """PyMC's own log density of a model, executed without compiling it."""

    def __init__(self, model: Model) -> None:
        with untraced():
            index = ModelIndex(model)
            terms = all_log_densities(index)
        self._names = [var.name for var in (*index.basic_RVs, *index.potentials)]
        self._potentials = {potential.name for potential in index.potentials}
        self._density = PointFunction(terms, index.inputs, largest_array=_LARGEST_ARRAY)

    def check(self, point: Point, ours: float, sampler: Sampler, where: str) -> None:
        """Raise a RecognitionError if a sampler's log density differs from PyMC's beyond rounding.

        ``where`` describes the step at ``point``, for the message.
        """
        differing = False
        for terms in self._readings(point):
            theirs, tolerance = _total(terms), _NEGLIGIBLE + _ROUNDING * _magnitude(terms)
            if np.isnan(theirs):
                continue  # PyMC's own Cholesky factor fails
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
