"""A potential: a factor of the density that is written by hand, in terms of one predictor a row.

It is a sum of terms, each with a density of its own, of which every entry is a function of one
predictor. There are no observations: y is the number of the term that an entry belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pymc_augconj.typing import Array

from .base import Params
from .contract import MultiDensity

__all__ = ["PotentialLikelihood", "PotentialTerm"]

# Predictors at one of which every entry has a density.
_ETA = np.array([0.0, -0.5, 0.5, -2.0, 2.0, -6.0, 6.0])


@dataclass(frozen=True)
class PotentialTerm:
    """One term of a potential.

    Attributes
    ----------
    log_density : callable
        ``(y, eta, params)``, eta of shape (1, …), where y is not used; arguments broadcast.
    names : mapping
        From its own names of parameters to those in ``params``.
    """

    log_density: Callable[[Array, Array, Params], Array]
    names: Mapping[str, str]


class PotentialLikelihood(MultiDensity):
    """See the module's docstring.

    Parameters
    ----------
    terms : sequence of PotentialTerm
    """

    name, link = "potential", "its own"
    patterns = ()
    is_normalized, has_observations = False, False
    unpredictable = (
        "expected an observed variable, found a potential, which has no observations to "
        "predict; use kind='f'"
    )

    def __init__(self, terms: Sequence[PotentialTerm]) -> None:
        self._terms = tuple(terms)

    def check(self, y: Array, params: Params) -> str | None:
        possible = np.zeros(y.shape, dtype=bool)
        for eta in _ETA:
            possible |= self.log_density(y, np.full((1, y.size), eta), params) > -np.inf
        bad = np.flatnonzero(~possible)
        # Parameters out of range leave nothing possible at all, and are PyMC's to refuse.
        if bad.size == 0 or not possible.any():
            return None
        return f"expected a finite log density of each entry, found none at position {bad[0]}"

    def caution(self, y: Array, prior_mean: Array, params: Params) -> str | None:
        zero, away = (
            self.log_density(y, np.full(prior_mean.shape, eta), params) for eta in (0.0, 0.5)
        )
        # A constraint is symmetric, but has one mode.
        return None if np.all(zero >= away) else super().caution(y, prior_mean, params)

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        if len(self._terms) == 1:
            (term,) = self._terms
            return term.log_density(y, eta, _named(term, params))
        shape = np.broadcast_shapes(np.shape(y), np.shape(eta)[1:])
        y, eta = np.broadcast_to(y, shape), np.broadcast_to(eta, (1, *shape))
        found = np.empty(shape)
        for number, term in enumerate(self._terms):
            at = y == number
            own = {
                name: value if np.size(value) == 1 else np.broadcast_to(value, shape)[at]
                for name, value in _named(term, params).items()
            }
            found[at] = term.log_density(y[at], eta[:, at], own)
        return found


def _named(term: PotentialTerm, params: Params) -> dict[str, Array]:
    return {name: params[given] for name, given in term.names.items()}
