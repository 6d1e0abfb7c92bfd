"""The fitting engines by the name that ``pac.fit(method=…)`` knows; a new one is one record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .base import FitOutcome, FitProblem
from .ep.fit import ExpectationPropagation
from .sparse.fit import SparseFit
from .sparse.svi import StochasticVariational
from .variational.ascent import SiteFit
from .variational.cavi import CoordinateAscent
from .variational.vgp import VariationalGaussian

__all__ = ["ENGINES", "Engine", "minibatch_engines"]

FittingEngine = Callable[[FitProblem], FitOutcome]

_EP = ("power", "schedule", "damping")
_SVI = ("batch_size", "rate", "hyper_rate", "optimize_inducing")


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
    options : tuple of str
        Options besides those that all engines take.
    """

    name: str
    dense: FittingEngine | None
    sparse: FittingEngine | None
    augmented: bool
    bound: bool
    evidence: str
    options: tuple[str, ...] = ()

    @property
    def minibatches(self) -> bool:
        """Whether the engine works on minibatches, for which it needs inducing points."""
        return self.dense is None

    def takes(self, option: str) -> bool:
        """Return whether ``option`` is one of this engine's own."""
        return option in self.options or (option == "inducing" and self.sparse is not None)


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
        ),
        Engine(
            "vgp",
            SiteFit(VariationalGaussian),
            SparseFit(VariationalGaussian),
            augmented=False,
            bound=True,
            evidence="lower bound",
            options=("structure",),
        ),
        Engine(
            "ep",
            ExpectationPropagation(),
            None,
            augmented=False,
            bound=False,
            evidence="approximate",
            options=_EP,
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
            "svi",
            None,
            StochasticVariational(),
            augmented=False,
            bound=True,
            evidence="lower bound",
            options=_SVI,
        ),
    )
}


def minibatch_engines() -> tuple[str, ...]:
    """Return the names of the engines that work on minibatches."""
    return tuple(name for name, engine in ENGINES.items() if engine.minibatches)
