"""Values of functions of the point that are kept from one point to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from pymc_augconj.point import Key, Point, PointMap


class KeptParts:
    """Values of functions of the point, each kept until an entry that it depends on changes."""

    def __init__(self) -> None:
        self._known: dict[object, tuple[tuple[bytes, ...], Any]] = {}

    def get[T, V](
        self, name: object, function: PointMap[T], point: Point, make: Callable[[T], V]
    ) -> V:
        """Return ``make(function(point))``."""
        return self.keep(name, function.names, point, lambda: make(function(point)))

    def keep[V](
        self,
        name: object,
        entries: Iterable[Key],
        point: Point,
        make: Callable[[], V],
        *further: bytes,
    ) -> V:
        """Return ``make()``, which depends on some entries of the point and on ``further``."""
        key = (*further, *(np.asarray(point[entry]).tobytes() for entry in entries))
        known = self._known.get(name)
        if known is None or known[0] != key:
            known = self._known[name] = (key, make())
        return known[1]
