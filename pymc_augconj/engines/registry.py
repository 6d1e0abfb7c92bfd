"""The fitting engines by the name that ``pac.fit(method=…)`` knows; a new one is one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pymc_augconj.errors import AugmentationError

from .base import FitOutcome, FitProblem
from .ep.fit import ExpectationPropagation
from .nested.fit import NestedApproximations
from .options import EPOptions, InducingOptions, NestedOptions, Options, SVIOptions, VGPOptions
from .sparse.fit import SparseFit
from .sparse.svi import StochasticVariational
from .variational.ascent import SiteFit
from .variational.cavi import CoordinateAscent
from .variational.vgp import VariationalGaussian

FittingEngine = Callable[[FitProblem], FitOutcome]


@dataclass(frozen=True)
class Engine:
    """The record of a fitting engine, by its ``name``, the value of ``method`` in ``pac.fit``.

    ``dense`` is the engine with one site for each observation, and ``sparse`` the one through
    inducing points; None where there is none. ``augmented`` says whether every likelihood needs an
    auxiliary variable; otherwise its density is enough. ``evidence`` describes the evidence in
    printed summaries. ``options`` is the class of options besides those that all engines take.
    """

    name: str
    dense: FittingEngine | None
    sparse: FittingEngine | None = None
    augmented: bool = False
    evidence: str = "lower bound"
    options: type[Options] = Options

    @property
    def bound(self) -> bool:
        """Whether the evidence is a lower bound."""
        return self.evidence == "lower bound"

    @property
    def minibatches(self) -> bool:
        """Whether the engine works on minibatches, for which it needs inducing points."""
        return self.dense is None

    def takes(self, option: str) -> bool:
        """Return whether ``option`` is one of this engine's own."""
        return option in self.options.names()


_ALL = (
    Engine(
        "cavi",
        SiteFit(CoordinateAscent),
        SparseFit(CoordinateAscent),
        augmented=True,
        options=InducingOptions,
    ),
    Engine("vgp", SiteFit(VariationalGaussian), SparseFit(VariationalGaussian), options=VGPOptions),
    Engine("ep", ExpectationPropagation(), evidence="approximate", options=EPOptions),
    Engine("qp", ExpectationPropagation(quantile=True), evidence="EP's, approximate"),
    Engine(
        "nested",
        NestedApproximations(),
        evidence="approximate, integrated over hyperparameters",
        options=NestedOptions,
    ),
    Engine("svi", None, StochasticVariational(), options=SVIOptions),
)
ENGINES: dict[str, Engine] = {engine.name: engine for engine in _ALL}


def minibatch_engines() -> tuple[str, ...]:
    """Return the names of the engines that work on minibatches."""
    return tuple(name for name, engine in ENGINES.items() if engine.minibatches)


def given_options(method: str, options: Mapping[str, Any]) -> Options:
    """Return an engine's options, those that are None by default.

    Raises AugmentationError if one is another engine's or out of range, and TypeError if no engine
    has an option of that name.
    """
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
