"""Options of the fitting methods and the values that each may take.

They are checked by name before any computation. A new option is one entry here, and its name in the
record of each engine that takes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from pymc_augconj.errors import AugmentationError

from .ep.sweeps import SMALLEST_DAMPING
from .registry import ENGINES

__all__ = ["OPTIONS", "Option", "check_option", "given_options"]

# Options that every method takes.
_COMMON = ("max_iter", "tol")


@dataclass(frozen=True)
class Option:
    """The values that an option may take.

    Attributes
    ----------
    expected : str
        Description of the accepted values.
    accepts : callable
        Condition on the value; by default any value, which the engine checks itself.
    """

    expected: str = ""
    accepts: Callable[[Any], bool] = lambda value: True


def _number(accepts: Callable[[float], bool]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, Real) and not isinstance(value, bool) and accepts(float(value))
    )


def _count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _rate(value: Any) -> bool:
    if isinstance(value, tuple):
        in_range = len(value) == 2 and all(map(_positive, value))
        return in_range and 0.5 < value[1] <= 1.0
    return _fraction(value)


_fraction = _number(lambda value: 0.0 < value <= 1.0)
_positive = _number(lambda value: 0.0 < value < float("inf"))

_SCHEDULES = ("parallel", "sequential")
_STRUCTURES = ("full", "factorised")

OPTIONS = {
    "max_iter": Option("a positive integer", _count),
    "tol": Option("a finite number above 0", _positive),
    "power": Option("a number in (0, 1]", _fraction),
    "schedule": Option(f"one of {list(_SCHEDULES)}", lambda value: value in _SCHEDULES),
    "structure": Option(f"one of {list(_STRUCTURES)}", lambda value: value in _STRUCTURES),
    "damping": Option(
        f"a number in [{SMALLEST_DAMPING}, 1]",
        _number(lambda damping: SMALLEST_DAMPING <= damping <= 1.0),
    ),
    "inducing": Option(),
    "batch_size": Option("a positive integer", _count),
    "rate": Option(
        "a number in (0, 1], or (delay, forgetting) with delay > 0 and forgetting in (0.5, 1]",
        _rate,
    ),
    "hyper_rate": Option("a finite number above 0", _positive),
    "optimize_inducing": Option("True or False", lambda value: isinstance(value, bool)),
}


def check_option(method: str, name: str, value: Any) -> None:
    """Refuse an unknown option of the method, or a value out of range.

    Raises
    ------
    AugmentationError
    """
    option = OPTIONS[name]
    if name not in _COMMON and not ENGINES[method].takes(name):
        methods = " or ".join(f"method={m!r}" for m, e in ENGINES.items() if e.takes(name))
        raise AugmentationError(
            f"{name}: expected it with {methods} only, got it with method={method!r}; leave it "
            "out, or use another method"
        )
    if not option.accepts(value):
        raise AugmentationError(f"{name}: expected {option.expected}, got {value!r}")


def given_options(method: str, **options: Any) -> dict[str, Any]:
    """Return the options that are not None.

    Raises
    ------
    AugmentationError
        If one of them is unknown to the method, or out of range.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        check_option(method, name, value)
    return given
