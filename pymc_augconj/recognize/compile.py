"""Turning PyTensor graphs into plain functions of a PyMC point.

The graphs that recognition extracts are small (a kernel matrix, an offset, a log prior), and they
are wanted at once: PyTensor's Numba backend takes 10–25 s to compile even these on a cold cache,
its C backend seconds. They are therefore executed by PyTensor's Python virtual machine, one NumPy
call an operation, which needs no compilation (tens of milliseconds for the rewriting) and costs
about 2 ms instead of 1 ms for a 506 × 506 squared-exponential kernel matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.graph.traversal import explicit_graph_inputs
from pytensor.link.vm import VMLinker
from pytensor.scalar.basic import Clip
from pytensor.tensor.elemwise import Elemwise

__all__ = ["PointFunction", "python_mode"]


@node_rewriter([Elemwise])
def _clip_to_minimum_maximum(fgraph, node):
    # Without compiled code, Elemwise Clip calls a Python function for every element; minimum and
    # maximum are ufuncs. Every stationary kernel clips its squared distances at zero.
    if not isinstance(node.op.scalar_op, Clip):
        return None
    x, lower, upper = node.inputs
    result = x
    if not (isinstance(lower, Constant) and np.all(np.isneginf(lower.data))):
        result = pt.maximum(result, lower)
    if not (isinstance(upper, Constant) and np.all(np.isposinf(upper.data))):
        result = pt.minimum(result, upper)
    return [result.astype(node.outputs[0].dtype)]


def python_mode() -> Mode:
    """Return the mode that executes a rewritten graph without compiling any code."""
    mode = Mode(VMLinker(use_cloop=False, c_thunks=False), "fast_run")
    # Fused elementwise kernels and C BLAS exist only as compiled code.
    mode = mode.excluding("fusion", "c_blas", "use_c_blas", "scan_make_inplace")
    return mode.register((dfs_rewriter(_clip_to_minimum_maximum), 1.6))


class PointFunction:
    """A function of named values, compiled at its first call.

    Parameters
    ----------
    outputs : sequence of Variable, or Variable
        The graph. Its explicit inputs must be among ``inputs`` or shared variables.
    inputs : mapping from str to Variable
        The values the graph may depend on, by their key in the point.
    mode : optional
        A PyTensor mode; by default :func:`python_mode`.

    Attributes
    ----------
    names : tuple of str
        The keys that the graph does depend on.
    reads_shared : bool
        Whether it depends on a shared variable (``pm.Data``), whose value may change.
    """

    def __init__(
        self,
        outputs: Variable | Sequence[Variable],
        inputs: Mapping[str, Variable],
        mode: Any = None,
    ):
        self._single = isinstance(outputs, Variable)
        self._outputs = [outputs] if self._single else list(outputs)
        leaves = set(explicit_graph_inputs(self._outputs))
        self._inputs = {name: var for name, var in inputs.items() if var in leaves}
        self.names = tuple(self._inputs)
        self.reads_shared = any(isinstance(leaf, SharedVariable) for leaf in leaves)
        unknown = [
            leaf
            for leaf in leaves
            if not isinstance(leaf, Constant | SharedVariable)
            and leaf not in set(self._inputs.values())
        ]
        if unknown:
            raise KeyError(f"the graph depends on {unknown}, which no input provides")
        self._mode = mode
        self._function = None

    def compile(self) -> PointFunction:
        """Compile now rather than at the first call; returns itself."""
        if self._function is None:
            self._function = pytensor.function(
                list(self._inputs.values()),
                [pytensor.Out(output, borrow=True) for output in self._outputs],
                mode=python_mode() if self._mode is None else self._mode,
                trust_input=True,
                on_unused_input="ignore",
            )
        return self

    def __call__(self, point: Mapping[str, np.ndarray]) -> Any:
        """Evaluate at ``point``; returns an array, or a list of arrays for a list of outputs."""
        if self._function is None:
            self.compile()
        values = self._function(*(point[name] for name in self._inputs))
        return values[0] if self._single else values
