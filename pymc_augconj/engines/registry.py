"""The fitting engines by the name that ``pac.fit(method=…)`` knows; a new one is one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pymc_augconj.errors import AugmentationError

from .base import FitOutcome, FitProblem
from .ep.fit import ExpectationPropagation
from .nested.fit import NestedApproximations
from .options import (
    EPOptions,
    InducingOptions,
    NestedOptions,
    Options,
    SVIOptions,
    VGPOptions,
)
from .sparse.fit import SparseFit
from .sparse.svi import StochasticVariational
from .variational.ascent import SiteFit
from .variational.cavi import CoordinateAscent
from .variational.vgp import VariationalGaussian

__all__ = ["ENGINES", "Engine", "given_options", "minibatch_engines"]

FittingEngine = Callable[[FitProblem], FitOutcome]


@dataclass(frozen=True)
class Engine:
    """The record of a fitting engine.

    Attributes
    ----------
    name : str
        The value of ``method`` in :func:`pymc_augconj.fit`.
    dense : callable, optional
        The engine with one site for each observation; None where there is none.
    sparse : callable, optional
        The engine through inducing points; None where there is none.
    augmented : bool
        Whether every likelihood needs an auxiliary variable. Otherwise its density is enough.
    bound : bool
        Whether the evidence is a lower bound.
    evidence : str
        The evidence in a few words, for printed summaries.
    options : type of Options
        Class of the options besides those that all engines take.
    """

    name: str
    dense: FittingEngine | None
    sparse: FittingEngine | None
    augmented: bool
    bound: bool
    evidence: str
    options: type[Options] = Options

    @property
    def minibatches(self) -> bool:
        """Whether the engine works on minibatches, for which it needs inducing points."""
        return self.dense is None

    def takes(self, option: str) -> bool:
        """Return whether ``option`` is one of this engine's own."""
        return option in self.options.names()


ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(
            "cavi",
            SiteFit(CoordinateAscent),
            SparseFit(CoordinateAscent),
            augmented=True,
            bound=True,
            evidence="lower bound",
            options=InducingOptions,
        ),
        Engine(
            "vgp",
            SiteFit(VariationalGaussian),
            SparseFit(VariationalGaussian),
            augmented=False,
            bound=True,
            evidence="lower bound",
            options=VGPOptions,
        ),
        Engine(
            "ep",
            ExpectationPropagation(),
            None,
            augmented=False,
            bound=False,
            evidence="approximate",
            options=EPOptions,
        ),
        Engine(
            "qp",
            ExpectationPropagation(quantile=True),
            None,
            augmented=False,
            bound=False,
            evidence="EP's, approximate",
        ),
        Engine(
            "nested",
            NestedApproximations(),
            None,
            augmented=False,
            bound=False,
            evidence="approximate, integrated over hyperparameters",
            options=NestedOptions,
        ),
        Engine(
            "svi",
            None,
            StochasticVariational(),
            augmented=False,
            bound=True,
            evidence="lower bound",
            options=SVIOptions,
        ),
    )
}


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
