"""Reading graphs of N observations as functions of any number of rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor.variable import TensorVariable

from .affine_parts import AffinePart, is_zero
from .row_parameters import RowParameters
from .rows import RowFunction, rebuild

__all__ = ["RowReader"]


class RowReader:
    """Rebuilds graphs of N observations as functions of rows, with common parameters.

    Parameters
    ----------
    value : Variable, optional
        The symbol of the observations, if the graphs have one.
    parts : sequence of AffinePart
        The variables through which they depend on the latents.
    parameters : RowParameters
        What else they depend on is added to these.
    """

    def __init__(
        self, value: Variable | None, parts: Sequence[AffinePart], parameters: RowParameters
    ) -> None:
        self._values = [] if value is None else [value]
        self._parts, self.parameters = parts, parameters
        self._y = pt.vector("y", dtype="float64" if value is None else value.dtype)
        count = sum(sum(part.moving) for part in parts)
        self._etas = [pt.vector(f"eta_{i}", dtype="float64") for i in range(count)]
        offsets = [offset for part in parts for offset in part.offsets.values()]
        parameters.collect([offset for offset in offsets if not is_zero(offset)], [])
        parameters.collect(_constants(parts), [])

    def read(self, graph: Variable) -> RowFunction | None:
        """Return the function, or None if rows cannot be separated."""
        parameters = self.parameters
        moving = [var for part in self._parts for var in part.offsets]
        parameters.collect([graph], [*self._values, *moving, *parameters.symbols])
        if not parameters.possible:
            return None
        try:
            rebuilt = self._rebuilt(graph)
            function = RowFunction(
                rebuilt, self._y, self._etas, parameters.scalars, parameters.rows
            )
            # Try other numbers of rows, which another axis may have one of; values do not matter.
            params = dict.fromkeys((*parameters.scalars, *parameters.rows), np.array(0.5))
            for size in (1, 3, 7):
                eta = np.full((len(self._etas), size), 0.1)
                function(np.zeros(size), eta, params)
        except Exception:
            # Rebuilding an op can fail in any way.
            return None
        return function

    def _rebuilt(self, graph: Variable) -> Variable:
        parameters = self.parameters
        # A graph of one number is vectorised at the end: within it may be vectors of its own.
        single = [eta.type.clone(shape=())() for eta in self._etas]
        standing = [parameters.standing(eta) for eta in self._etas] if parameters.ndim else single
        symbols = {value: parameters.standing(self._y) for value in self._values}
        symbols |= parameters.symbols
        etas = iter(standing)
        for part in self._parts:
            constants = [
                None if moves else self._constant(column, standing[0])
                for column, moves in zip(part.columns, part.moving, strict=True)
            ]
            first = part.assembled(etas, constants)
            for var, offset in part.offsets.items():
                eta = first
                if not is_zero(offset):
                    eta = eta + rebuild(offset, parameters.symbols)
                symbols[var] = eta.astype(var.dtype)
        rebuilt = rebuild(graph, symbols)
        if parameters.ndim:
            return rebuilt
        return vectorize_graph(rebuilt, dict(zip(single, self._etas, strict=True)))

    def _constant(self, column: TensorVariable, like: TensorVariable) -> TensorVariable:
        """Return a column without a predictor, with the axes of one that has."""
        zeros = pt.zeros_like(like)
        return zeros if is_zero(column) else zeros + rebuild(column, self.parameters.symbols)


def _constants(parts: Sequence[AffinePart]) -> list[TensorVariable]:
    return [
        column
        for part in parts
        for column, moves in zip(part.columns, part.moving, strict=True)
        if not moves and not is_zero(column)
    ]
