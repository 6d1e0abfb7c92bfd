"""PyTensor modes for PyMC's own functions in tests."""

from __future__ import annotations

from pytensor.compile.mode import Mode

from pymc_augconj.python_mode.mode import NumpyLinker

#: Executes a graph as it is written: what PyMC computes, without a rewriting in between. To rewrite
#: a log density takes several times as long as to build and to evaluate it.
AS_WRITTEN = Mode(linker="py", optimizer=None)
#: The same by one straight-line function, for graphs that are evaluated hundreds of times.
STRAIGHT = Mode(linker=NumpyLinker(), optimizer=None)
