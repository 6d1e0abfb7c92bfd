"""The fitting engines by the name that ``pac.fit(method=…)`` knows; a new one is one line."""

from __future__ import annotations

from collections.abc import Callable

from .base import FitOutcome, FitProblem
from .ep.fit import ExpectationPropagation
from .sparse.fit import SparseFit
from .sparse.svi import StochasticVariational
from .variational.cavi import CoordinateAscent
from .variational.fit import SiteFit
from .variational.vgp import VariationalGaussian

__all__ = ["FITTING_ENGINES", "SPARSE_ENGINES"]

FittingEngine = Callable[[FitProblem], FitOutcome]

FITTING_ENGINES: dict[str, FittingEngine] = {
    "cavi": SiteFit(CoordinateAscent),
    "vgp": SiteFit(VariationalGaussian),
    "ep": ExpectationPropagation(),
    "qp": ExpectationPropagation(quantile=True),
}

#: Those that work through inducing points.
SPARSE_ENGINES: dict[str, FittingEngine] = {
    "cavi": SparseFit(CoordinateAscent),
    "vgp": SparseFit(VariationalGaussian),
    "svi": StochasticVariational(),
}
