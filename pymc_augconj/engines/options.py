"""Options that belong to some fitting methods only, and what each of them may be.

They are checked by name before anything is computed; a new option is one entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

from ..errors import AugmentationError
from .ep_parallel import SMALLEST_DAMPING

__all__ = ["OPTIONS", "Option", "given_options"]


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
        The same, as a condition.
    """

    methods: tuple[str, ...]
    expected: str
    accepts: Callable[[Any], bool]


def _number(accepts: Callable[[float], bool]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, Real) and not isinstance(value, bool) and accepts(float(value))
    )


_SCHEDULES = ("parallel", "sequential")

OPTIONS = {
    "power": Option(("ep",), "a number in (0, 1]", _number(lambda power: 0.0 < power <= 1.0)),
    "schedule": Option(("ep",), f"one of {list(_SCHEDULES)}", lambda value: value in _SCHEDULES),
    "damping": Option(
        ("ep",),
        f"a number in [{SMALLEST_DAMPING}, 1]",
        _number(lambda damping: SMALLEST_DAMPING <= damping <= 1.0),
    ),
}


def given_options(method: str, **options: Any) -> dict[str, Any]:
    """Return those options that are not None.

    Raises
    ------
    AugmentationError
        If one of them is not an option of the method, or out of its range.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        option = OPTIONS[name]
        if method not in option.methods:
            methods = " or ".join(f"method={m!r}" for m in option.methods)
            raise AugmentationError(
                f"{name}: expected it with {methods} only, got {name}={value!r} with "
                f"method={method!r}; leave it out"
            )
        if not option.accepts(value):
            raise AugmentationError(f"{name}: expected {option.expected}, got {value!r}")
    return given
