"""Options of the fitting engines: a class for each engine, with a field for each option.

A new option is one field. ``pac.fit`` checks options by name before any computation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, Literal, Self

from pymc_augconj.errors import AugmentationError
from pymc_augconj.typing import Array

SMALLEST_DAMPING = 0.01

#: The number of inducing points of a process, or their inputs.
Inducing = int | Array


@dataclass(frozen=True)
class Values:
    """Description of an option's valid values, and the condition on them."""

    expected: str
    accepts: Callable[[object], bool]

    def check(self, name: str, value: object) -> None:
        """Raise AugmentationError if the value of the option ``name`` is invalid."""
        if not self.accepts(value):
            raise AugmentationError(f"{name}: expected {self.expected}, got {value!r}")


def _number(accepts: Callable[[float], bool]) -> Callable[[object], bool]:
    return lambda value: (
        isinstance(value, Real) and not isinstance(value, bool) and accepts(float(value))
    )


def _one_of(*values: str) -> dict[str, Values]:
    return {"values": Values(f"one of {list(values)}", values.__contains__)}


def _rate(value: object) -> bool:
    if isinstance(value, tuple):
        in_range = len(value) == 2 and all(map(_POSITIVE.accepts, value))
        return in_range and 0.5 < value[1] <= 1.0
    return _FRACTION.accepts(value)


_FRACTION = Values("a number in (0, 1]", _number(lambda value: 0.0 < value <= 1.0))
_POSITIVE = Values("a finite number above 0", _number(lambda value: 0.0 < value < float("inf")))
_COUNT = Values(
    "a positive integer",
    lambda value: isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1,
)
_DAMPING = Values(
    f"a number in [{SMALLEST_DAMPING}, 1]", _number(lambda value: SMALLEST_DAMPING <= value <= 1.0)
)
_RATE = Values(
    "a number in (0, 1], or (delay, forgetting) with delay > 0 and forgetting in (0.5, 1]", _rate
)
_FLAG = Values("True or False", lambda value: isinstance(value, bool))

#: Values of the options that every engine takes.
COMMON = {"max_iter": _COUNT, "tol": _POSITIVE}


@dataclass(frozen=True)
class Options:
    """Options of an engine without further options, such as ``"qp"``."""

    @classmethod
    def of(cls, options: Options) -> Self:
        """Return ``options`` if they are of this class, else its defaults."""
        return options if isinstance(options, cls) else cls()

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the options."""
        return [each.name for each in fields(cls)]

    @classmethod
    def checked(cls, given: Mapping[str, Any]) -> Self:
        """Return options with the given values; AugmentationError if one is out of its range."""
        for each in fields(cls):
            if each.name in given and "values" in each.metadata:
                each.metadata["values"].check(each.name, given[each.name])
        return cls(**given)


@dataclass(frozen=True)
class InducingOptions(Options):
    """Options of an engine that can use inducing points, such as ``"cavi"``.

    Attributes
    ----------
    inducing : int, array_like of shape (M, d), or mapping, optional
        The number of inducing points, placed by k-means++, or their inputs, or a mapping from
        names of processes to either. 100 by default for ``"svi"``; by default the other engines
        fit without inducing points.
    """

    # The engine's caller checks it, by the process.
    inducing: Inducing | Mapping[str, Inducing] | None = None


@dataclass(frozen=True)
class VGPOptions(InducingOptions):
    """Options of ``"vgp"``.

    Attributes
    ----------
    inducing
        See :class:`InducingOptions`.
    structure : {"full", "factorised"}, optional
        For observed variables of several predictors: ``"full"``, the default without inducing
        points, has posterior correlations between the predictors of an observation.
        ``"factorised"`` is mean-field across predictors; it is the only form through inducing
        points, and for likelihoods whose E log p is known only for independent predictors. Its
        bound is lower, and each latent must enter one predictor. For K classes it takes K sets of
        M weights in place of one set of KM: with ``inducing=X``, O(K n³).
    """

    structure: Literal["full", "factorised"] | None = field(
        default=None, metadata=_one_of("full", "factorised")
    )


@dataclass(frozen=True)
class EPOptions(Options):
    """Options of ``"ep"``.

    Attributes
    ----------
    power : float
        The fraction η of power EP, in (0, 1]. Small fractions approach the VGP.
    schedule : {"parallel", "sequential"}
        Whether to update all sites at once, or one after the other.
    damping : float
        Largest step of a site towards its new value in one sweep, as a fraction in [0.01, 1]. The
        engine decreases it if necessary.
    """

    power: float = field(default=1.0, metadata={"values": _FRACTION})
    schedule: Literal["parallel", "sequential"] = field(
        default="parallel", metadata=_one_of("parallel", "sequential")
    )
    damping: float = field(default=1.0, metadata={"values": _DAMPING})


@dataclass(frozen=True)
class NestedOptions(Options):
    """Options of ``"nested"``.

    Attributes
    ----------
    sites : {"ep", "vgp"}, optional
        The Gaussian approximation of the latents at each value of the hyperparameters; by default
        ``"ep"``, but ``"vgp"`` for several predictors of an observation, or if expectation
        propagation fails at the start.
    """

    sites: Literal["ep", "vgp"] | None = field(default=None, metadata=_one_of("ep", "vgp"))


@dataclass(frozen=True)
class SVIOptions(InducingOptions):
    """Options of ``"svi"``.

    Attributes
    ----------
    inducing
        See :class:`InducingOptions`.
    batch_size : int, optional
        Number of observations per iteration, 256 by default, or the size of the model's
        ``pm.Minibatch``.
    rate : float or (float, float), optional
        Step size of the natural-gradient steps, a constant in (0, 1] or the pair (delay,
        forgetting) of Robbins and Monro's ρ_t = (1 + t/delay)^(−forgetting). By default (10, 0.75)
        if the fit optimises hyperparameters or inducing inputs and the minibatches cover the data
        five times or more, so that it forgets steps at earlier hyperparameters sooner; (1, 0.9)
        otherwise.
    hyper_rate : float
        Step size of Adam on the hyperparameters' unconstrained scale; it decreases to a tenth over
        ``max_iter``. Hyperparameters are updated at every fourth iteration.
    optimize_inducing : bool
        Whether to optimise inducing inputs with the hyperparameters.
    """

    batch_size: int | None = field(default=None, metadata={"values": _COUNT})
    rate: float | tuple[float, float] | None = field(default=None, metadata={"values": _RATE})
    hyper_rate: float = field(default=0.05, metadata={"values": _POSITIVE})
    optimize_inducing: bool = field(default=False, metadata={"values": _FLAG})
