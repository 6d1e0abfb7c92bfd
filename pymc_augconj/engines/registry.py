"""The fitting engines by the name that ``pac.fit(method=…)`` knows; a new one is one line."""

from __future__ import annotations

from collections.abc import Callable

from .cavi import CoordinateAscent
from .ep_fit import ExpectationPropagation
from .fitting import FitOutcome, FitProblem, SiteFit
from .vgp import VariationalGaussian

__all__ = ["FITTING_ENGINES"]

FITTING_ENGINES: dict[str, Callable[[FitProblem], FitOutcome]] = {
    "cavi": SiteFit(CoordinateAscent),
    "vgp": SiteFit(VariationalGaussian),
    "ep": ExpectationPropagation(),
    "qp": ExpectationPropagation(quantile=True),
}
