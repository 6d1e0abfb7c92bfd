"""Options of the fitting methods: which of them each belongs to, and what it may be.

They are checked by name before anything is computed; a new option is one entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from pymc_augconj.errors import AugmentationError

from .ep.parallel import SMALLEST_DAMPING
from .registry import FITTING_ENGINES, SPARSE_ENGINES

__all__ = ["METHODS", "OPTIONS", "Option", "check_option", "given_options"]

#: Every method, those through inducing points, and those of these that have no dense form.
METHODS = tuple(dict.fromkeys([*FITTING_ENGINES, *SPARSE_ENGINES]))
_SPARSE = tuple(method for method in METHODS if method in SPARSE_ENGINES)
_STOCHASTIC = tuple(method for method in _SPARSE if method not in FITTING_ENGINES)


@dataclass(frozen=True)
class Option:
    """An option of some methods.

    Attributes
    ----------
    methods : tuple of str
        Those that read it.
    expected : str
        What it may be, in words.
    accepts : callable
        The same, as a condition; by default whatever is given, for those who read it to check.
    """

    methods: tuple[str, ...]
    expected: str = ""
    accepts: Callable[[Any], bool] = lambda value: True


def _number(accepts: Callable[[float], bool]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, Real) and not isinstance(value, bool) and accepts(float(value))
    )


def _count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and value >= 1


def _rate(value: Any) -> bool:
    if isinstance(value, tuple):
        in_range = len(value) == 2 and all(map(_positive, value))
        return in_range and 0.5 < value[1] <= 1.0
    return _fraction(value)


_fraction = _number(lambda value: 0.0 < value <= 1.0)
_positive = _number(lambda value: 0.0 < value < float("inf"))

_SCHEDULES = ("parallel", "sequential")

OPTIONS = {
    "max_iter": Option(METHODS, "a positive integer", _count),
    "tol": Option(METHODS, "a finite number above 0", _positive),
    "power": Option(("ep",), "a number in (0, 1]", _fraction),
    "schedule": Option(("ep",), f"one of {list(_SCHEDULES)}", lambda value: value in _SCHEDULES),
    "damping": Option(
        ("ep",),
        f"a number in [{SMALLEST_DAMPING}, 1]",
        _number(lambda damping: SMALLEST_DAMPING <= damping <= 1.0),
    ),
    "inducing": Option(_SPARSE),
    "batch_size": Option(_STOCHASTIC, "a positive integer", _count),
    "rate": Option(
        _STOCHASTIC,
        "a number in (0, 1], or (delay, forgetting) with delay > 0 and forgetting in (0.5, 1]",
        _rate,
    ),
    "hyper_rate": Option(_STOCHASTIC, "a finite number above 0", _positive),
    "optimize_inducing": Option(
        _STOCHASTIC, "True or False", lambda value: isinstance(value, bool)
    ),
}


def check_option(method: str, name: str, value: Any) -> None:
    """Refuse an option that is none of the method's, or out of its range.

    Raises
    ------
    AugmentationError
    """
    option = OPTIONS[name]
    if method not in option.methods:
        methods = " or ".join(f"method={m!r}" for m in option.methods)
        raise AugmentationError(
            f"{name}: expected it with {methods} only, got it with method={method!r}; leave it "
            "out, or use another method"
        )
    if not option.accepts(value):
        raise AugmentationError(f"{name}: expected {option.expected}, got {value!r}")


def given_options(method: str, **options: Any) -> dict[str, Any]:
    """Return those options that are not None.

    Raises
    ------
    AugmentationError
        If one of them is not an option of the method, or out of its range.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        check_option(method, name, value)
    return given
