"""PyTensor graphs executed without compiling any code.

The graphs that the package extracts from models are small (a kernel matrix, an offset, a log φ),
and they are wanted at once: PyTensor's Numba backend takes 10–25 s to compile even these on a cold
cache, its C backend seconds. They are therefore executed by PyTensor's Python virtual machine, one
NumPy call an operation, which needs no compilation (tens of milliseconds for the rewriting) and
costs about 2 ms instead of 1 ms for a 506 × 506 squared-exponential kernel matrix.
"""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Constant
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.link.vm import VMLinker
from pytensor.scalar.basic import Clip
from pytensor.tensor.elemwise import Elemwise

__all__ = ["COMPILED_ONLY", "complex_mode", "python_mode"]

# Rewrites that introduce ops for compiled code alone. Some of them look for a BLAS library to
# link, which warns on a machine that has none, although nothing here is ever linked.
COMPILED_ONLY = ("cxx_only", "c_blas", "use_c_blas", "BlasOpt")


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
    # Fused elementwise kernels exist only as compiled code.
    mode = mode.excluding("fusion", "scan_make_inplace", *COMPILED_ONLY)
    return mode.register((dfs_rewriter(_clip_to_minimum_maximum), 1.6))


def complex_mode() -> Mode:
    """Return the mode for graphs of complex arguments.

    PyTensor's algebraic rewrites are for real numbers (√x² becomes |x|): none of them is applied,
    only what merges equal parts, folds constants and works in place.
    """
    query = ("merge", "constant_folding", "inplace_elemwise")
    mode = Mode(VMLinker(use_cloop=False, c_thunks=False), None)
    return mode.including(*query)
