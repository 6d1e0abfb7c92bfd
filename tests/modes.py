"""PyTensor modes for PyMC's own functions in tests."""

from __future__ import annotations

from pytensor.compile.mode import Mode

#: Executes a graph as it is written: what PyMC computes, without a rewriting in between. To rewrite
#: a log density takes several times as long as to build and to evaluate it.
AS_WRITTEN = Mode(linker="py", optimizer=None)
