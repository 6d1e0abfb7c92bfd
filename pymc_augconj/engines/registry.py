"""The fitting engines by the name that ``pac.fit(method=…)`` knows; a new one is one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pymc_augconj.engines.variational.bound import CoordinateAscent, VariationalGaussian
from pymc_augconj.errors import AugmentationError

from .base import FitOutcome, FitProblem
from .ep.fit import ExpectationPropagation
from .nested.fit import fit_nested
from .options import EPOptions, InducingOptions, NestedOptions, Options, SVIOptions, VGPOptions
from .sparse.fit import fit_sparse
from .sparse.svi import fit_stochastic
from .variational.ascent import SiteFit

FittingEngine = Callable[[FitProblem], FitOutcome]


@dataclass(frozen=True)
class Engine:
    """The record of a fitting engine."""

    #: The value of ``method`` in :func:`pymc_augconj.fit`.
    name: str
    #: With one site for each observation, and through inducing points; None where there is none.
    dense: FittingEngine | None
    sparse: FittingEngine | None
    #: The evidence in a few words, for printed summaries.
    evidence: str
    #: Class of the options besides those that all engines take.
    options: type[Options] = Options

    @property
    def bound(self) -> bool:
        """Whether the evidence is a lower bound."""
        return self.evidence == _BOUND

    @property
    def minibatches(self) -> bool:
        """Whether the engine works on minibatches, for which it needs inducing points."""
        return self.dense is None

    def takes(self, option: str) -> bool:
        """Return whether ``option`` is one of this engine's own."""
        return option in self.options.names()


_BOUND = "lower bound"
_RECORDS = (
    Engine(
        "cavi", SiteFit(CoordinateAscent), partial(fit_sparse, CoordinateAscent), _BOUND,
        InducingOptions,
    ),
    Engine(
        "vgp", SiteFit(VariationalGaussian), partial(fit_sparse, VariationalGaussian), _BOUND,
        VGPOptions,
    ),
    Engine("ep", ExpectationPropagation(), None, "approximate", EPOptions),
    Engine("qp", ExpectationPropagation(quantile=True), None, "EP's, approximate"),
    Engine(
        "nested", fit_nested, None, "approximate, integrated over hyperparameters", NestedOptions
    ),
    Engine("svi", None, fit_stochastic, _BOUND, SVIOptions),
)  # fmt: skip
ENGINES = {engine.name: engine for engine in _RECORDS}


def given_options(method: str, options: Mapping[str, Any]) -> Options:
    """Return an engine's options, those that are None by default."""
    given = {}
    for name, value in options.items():
        engines = [engine for engine, record in ENGINES.items() if record.takes(name)]
        if not engines:
            raise TypeError(f"fit() got an unexpected keyword argument {name!r}")
        # False is the default, which every method accepts.
        if value is None or (name == "optimize_inducing" and value is False):
            continue
        if method not in engines:
            raise AugmentationError(
                f"{name}: expected it with {' or '.join(f'method={m!r}' for m in engines)} only, "
                f"got it with method={method!r}; leave it out, or use another method"
            )
        given[name] = value
    return ENGINES[method].options.checked(given)
