"""Reading graphs of N observations as functions of any number of rows."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph

from .one_predictor import Offsets, is_zero
from .row_parameters import RowParameters
from .rows import RowFunction, rebuild

__all__ = ["RowReader"]


class RowReader:
    """Rebuilds graphs of N observations as functions of rows, with common parameters.

    Parameters
    ----------
    value : Variable, optional
        The symbol of the observations, if the graphs have one.
    offsets : Offsets
        The variables through which they depend on the latents.
    parameters : RowParameters
        What else they depend on is added to these.
    """

    def __init__(self, value: Variable | None, offsets: Offsets, parameters: RowParameters) -> None:
        self._values = [] if value is None else [value]
        self._offsets, self.parameters = offsets, parameters
        self._y = pt.vector("y", dtype="float64" if value is None else value.dtype)
        self._eta = pt.vector("eta", dtype="float64")
        added = [offset for offset in offsets.values() if not is_zero(offset)]
        parameters.collect(added, [])

    def read(self, graph: Variable) -> RowFunction | None:
        """Return the function, or None if rows cannot be separated."""
        parameters = self.parameters
        parameters.collect([graph], [*self._values, *self._offsets, *parameters.symbols])
        if not parameters.possible:
            return None
        try:
            rebuilt = self._rebuilt(graph)
            function = RowFunction(rebuilt, self._y, self._eta, parameters.scalars, parameters.rows)
            # Try other numbers of rows; the values do not matter.
            params = dict.fromkeys((*parameters.scalars, *parameters.rows), np.array(0.5))
            for size in (1, 3):
                function(np.zeros(size), np.full(size, 0.1), params)
        except Exception:
            # Rebuilding an op can fail in any way.
            return None
        return function

    def _rebuilt(self, graph: Variable) -> Variable:
        parameters = self.parameters
        # A graph of one number is vectorised at the end: within it may be vectors of its own.
        single = pt.scalar("eta", dtype="float64")
        standing = parameters.standing(self._eta) if parameters.ndim else single
        symbols = {value: parameters.standing(self._y) for value in self._values}
        symbols |= parameters.symbols
        for var, offset in self._offsets.items():
            eta = standing
            if not is_zero(offset):
                eta = eta + rebuild(offset, parameters.symbols)
            symbols[var] = eta.astype(var.dtype)
        rebuilt = rebuild(graph, symbols)
        return rebuilt if parameters.ndim else vectorize_graph(rebuilt, {single: self._eta})
