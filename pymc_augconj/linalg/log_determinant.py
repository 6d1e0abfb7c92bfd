"""log|Q| of a family of sparse matrices by interpolation.

Many precisions are Q = c R(t) for a number c and one entry t of the point, as those of maps are.
log|R| is analytic in t: that of D − αW with α the logistic function of t within π of the real axis,
as eigenvalues of D⁻¹W are real and at most one. In cells of t it is interpolated at Chebyshev
points. In a cell of length 2 the error falls with each of these by π + √(π² + 1) = 6.4, and the
last coefficients show it. Cells depend on the family alone, not on what was asked for before.

References
----------
Trefethen (2013), Approximation Theory and Approximation Practice, theorem 8.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import floor, isfinite, log
from typing import Any

import numpy as np
from numpy.polynomial.chebyshev import chebfit, chebpts1, chebval

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.typing import Array, Index

Point = Mapping[Any, Array]

# The length of a cell and its Chebyshev points; the largest of the last two coefficients, and the
# largest rounding error of a determinant.
_LENGTH, _NODES, _TAIL, _LARGEST_ERROR = 2.0, 14, 1e-8, 1e-6
# Of a move of t by which entries that depend on it are told from others; and relative rounding.
_STEP, _ROUNDING = 0.1, 1e-10


class LogDeterminant:
    """log|Q| as a function of the point, of the entries ``rows, cols`` of Q.

    ``scale`` gives the entries, ``names`` are those of the point that they depend on, and
    ``compute`` returns log|Q| and its rounding error for entries.
    """

    def __init__(
        self, scale: Callable[[Any], Array], names: tuple[Any, ...], entries: Index,
        compute: Callable[[Array], tuple[float, float]],
    ) -> None:  # fmt: skip
        self._scale, self._names, self._compute = scale, names, compute
        rows, cols = entries
        self._own, self._size = int(np.argmax(rows == cols)), int(rows.max()) + 1
        # Entries that are not those of R(t) have another weighted sum.
        self._weights = np.random.default_rng(5).uniform(1.0, 2.0, rows.size)
        self._cells: dict[int, tuple[Array, float] | None] = {}
        self._base: dict[Any, Array] | None = None
        self._name: Any = None

    def at(self, point: Point, array: Array) -> tuple[float, float] | None:
        """Return log|Q| and its error, given the entries at ``point``; None if it is not known."""
        if self._base is None:
            self._base = {name: np.array(point[name]) for name in self._names}
            moving = [name for name in self._names if not self._only_scales(name)]
            if len(moving) == 1 and self._base[moving[0]].size == 1:
                self._name = moving[0]
        c = float(array[self._own])
        if self._name is None or not (0.0 < c < np.inf):
            return None
        t = float(np.ravel(point[self._name])[0]) / _LENGTH
        if not isfinite(t):
            return None
        number = floor(t)
        if number not in self._cells:
            self._cells[number] = self._cell(number)
        if (cell := self._cells[number]) is None:
            return None
        coefficients, error = cell
        log_det, total = np.asarray(chebval(2.0 * (t - number) - 1.0, coefficients)).tolist()
        found, size = self._sums(array / c)
        if not abs(found - total) <= _ROUNDING * size:
            return None
        return float(log_det) + self._size * log(c), error

    def _sums(self, array: Array) -> tuple[float, float]:
        return float(self._weights @ array), float(self._weights @ np.abs(array))

    def _moved(self, name: Any, value: Any) -> Array:
        """Return the entries of R where one entry of the point has a value."""
        assert self._base is not None
        value = np.broadcast_to(np.asarray(value, dtype=float), self._base[name].shape)
        array = self._scale({**self._base, name: np.array(value)})
        return array / array[self._own]

    def _only_scales(self, name: Any) -> bool:
        assert self._base is not None
        here, there = (self._moved(name, self._base[name] + step) for step in (0.0, _STEP))
        return bool(np.allclose(here, there, rtol=_ROUNDING, atol=0.0))

    def _cell(self, number: int) -> tuple[Array, float] | None:
        """Return the coefficients of log|R| and of the weighted sum, and an error."""
        x, values, errors = chebpts1(_NODES), [], []
        try:
            for t in _LENGTH * (number + 0.5 * (x + 1.0)):
                array = self._moved(self._name, t)
                log_det, error = self._compute(array)
                values.append((log_det, self._sums(array)[0]))
                errors.append(error)
        except NotPositiveDefiniteError:
            return None
        coefficients = chebfit(x, np.array(values), _NODES - 1)
        tail = float(np.abs(coefficients[-2:, 0]).max())
        is_known = tail <= _TAIL and max(errors) <= _LARGEST_ERROR
        return (coefficients, max(errors) + tail) if is_known else None
