"""PyMC's recorder of draws, its values computed by a straight-line function."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from pymc.backends.ndarray import NDArray as PyMCTrace
from pymc.model import Model

from pymc_augconj.engines.gibbs.native.loop import Drawn
from pymc_augconj.model import Point
from pymc_augconj.python_mode.tape import TapeBuilder
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.typing import Index

__all__ = ["Recorder"]


class Recorder(PyMCTrace):
    """An array for every variable, as PyMC's own, which :meth:`of` makes.

    PyMC's own rewrites the graph of the recorded values once for each chain, and executes it in
    PyTensor's virtual machine, which takes as long as a step of a small model.
    """

    @classmethod
    def of(cls, model: Model, var_names: Collection[str] | None, start: Point) -> Recorder:
        """Return one for ``pm.sample(trace=…)`` of some variables, by default all.

        ``start`` is any point of the model.
        """
        if var_names is None:
            variables = model.unobserved_value_vars
        else:
            chosen = [var for var in model.unobserved_RVs if var.name in var_names]
            variables = model.replace_rvs_by_values(chosen)
        values = _Values(variables, model)
        found = {
            var.name: value
            for var, value in zip(
                variables, values(*(start[name] for name in values.names)), strict=True
            )
        }
        return cls(
            model=model,
            vars=variables,
            fn=values,
            var_shapes={name: value.shape for name, value in found.items()},
            var_dtypes={name: value.dtype for name, value in found.items()},
        )

    def setup(self, draws: int, chain: int, sampler_vars: Any = None) -> None:
        """Make the arrays of one chain."""
        # PyMC makes a shallow copy for each chain.
        self.samples: dict[str, np.ndarray] = {}
        self._stats: list[Mapping[str, np.ndarray]] | None = None
        super().setup(draws, chain, sampler_vars)

    def record(self, point: Point, sampler_stats: Any = None, *, in_warmup: bool) -> None:
        """Record a step; of a block what was recorded by it, with the first of its points."""
        recorded = point.block.recorded() if isinstance(point, Drawn) and not point.row else None
        if not isinstance(point, Drawn) or point.block.layout.recorded is None:
            super().record(point, sampler_stats, in_warmup=in_warmup)
            return
        for name, values in zip(self.varnames, recorded or (), strict=False):
            self.samples[name][self.draw_idx : self.draw_idx + len(values)] = values
        for arrays, stats in zip(self._stats or (), sampler_stats, strict=True):
            for key, value in stats.items():
                arrays[key][self.draw_idx] = value
        self.draw_idx += 1


class _Values:
    """The recorded values as a function of a point's entries, in PyMC's order."""

    def __init__(self, variables: Sequence[Any], model: Model) -> None:
        inputs = {var.name: var for var in model.value_vars}
        self.names = tuple(inputs)
        self._function = PointFunction(variables, inputs).compile()

    def on_tape(self, tape: TapeBuilder, entries: Mapping[Any, Index]) -> list[Index]:
        """Return the registers of the recorded values; see :class:`.OnTape`."""
        found: list[Index] = self._function.on_tape(tape, entries)
        return found

    def __call__(self, *entries: np.ndarray) -> Sequence[np.ndarray]:
        return self._function(dict(zip(self.names, entries, strict=True)))
