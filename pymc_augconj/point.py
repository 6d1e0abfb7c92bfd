"""Points: values of a model's variables by name, and functions of these.

θ is passed as a *point*: a mapping from the names of PyMC's value variables (``"ls_log__"``) to
arrays on PyMC's unconstrained scale. A point may hold more than a function needs. Arguments beyond
PyMC's point have an :class:`Argument` as their key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from pymc_augconj.typing import Index


class Argument(NamedTuple):
    """The key of an argument that is not an entry of PyMC's point.

    It is no string, because a variable of PyMC may have any string as its name.
    ``Argument("value", name)`` is the flat value of the latent block ``name`` (the innovation of a
    whitened block), on which prior means and variables that only predictions need depend.
    """

    role: str
    of: str = ""


Key = str | Argument


# Keys are of type Key. A Mapping is invariant in its keys, so for mypy a mapping from str is not a
# mapping from Key, nor the other way round.
Point = Mapping[Any, np.ndarray]


class PointMap[T](Protocol):
    """A function of a point with the names of the entries that it reads."""

    @property
    def names(self) -> tuple[Key, ...]:
        """The keys of the point that the value depends on; empty for a constant."""

    def __call__(self, point: Point) -> T:
        """Evaluate at ``point``."""


@dataclass(frozen=True)
class FixedValue[T]:
    """The :class:`PointMap` of a value that does not depend on the point."""

    value: T
    names: tuple[Key, ...] = ()

    def __call__(self, point: Point) -> T:
        return self.value

    def on_tape(self, tape: Any, entries: Mapping[Any, Index]) -> Any:
        """Return the registers of the value, or of each; see :class:`.OnTape`."""
        if isinstance(self.value, dict):
            return {key: tape.constants(value) for key, value in self.value.items()}
        return tape.constants(self.value)
