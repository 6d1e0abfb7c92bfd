"""PyTensor's mode for executing graphs without compiling them.

The graphs that the package extracts from models are small (a kernel matrix, an offset, a log φ),
and PyTensor's Numba backend takes 10–25 s to compile even these on a cold cache, its C backend
seconds. They are therefore executed by one NumPy call per operation, which needs no compilation
(tens of milliseconds for the rewriting) and costs about 2 ms instead of 1 ms for a 506 × 506
squared-exponential kernel matrix. The rewrites here are for operations that NumPy would execute an
n × n array at a time, or PyTensor an element at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, cached_property
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, dfs_rewriter, node_rewriter
from pytensor.scalar.basic import Add, Clip, Composite, Mul
from pytensor.tensor.basic import Eye
from pytensor.tensor.elemwise import DimShuffle, Elemwise

from pymc_augconj.parallel.settings import ProcessSetting

from .linker import NumpyLinker

__all__ = [
    "EXCLUDED",
    "WRONG",
    "complex_mode",
    "python_mode",
    "untraced",
    "without_compilation",
]

# Rewrites that introduce ops for compiled code alone. Some of them look for a BLAS library to
# link, which warns on a machine that has none, although nothing here is ever linked.
_COMPILED_ONLY = ("cxx_only", "c_blas", "use_c_blas", "BlasOpt")
# The first makes the solution of a system of two equations one of a tridiagonal system, which
# SciPy's gttrf refuses; the second asserts that a length that is still to be computed is the one
# it is broadcast to, although it may be one.
_FAILING = ("generic_solve_to_structured_form", "local_merge_alloc")
# Slow to try, and hardly ever of use: whether a matrix of a product is diagonal or a selection is
# asked of its numbers, and products are multiplied out where that might cancel a factor.
_SLOW = ("dot_diag_to_elemwise", "selection_dot_to_indexing", "local_greedy_distributor")
#: It takes the first entry of x where (x + 1)[:-2:-1] is one entry, the last.
WRONG = ("local_dimshuffle_subtensor",)
EXCLUDED = (*_COMPILED_ONLY, *_FAILING, *_SLOW, *WRONG)

# Positions in PyTensor's sequence of rewrites: before anything else, where Eye is not folded into
# a constant yet; and after specialisation, which would put the ops replaced back in their place.
_FIRST = 0.05
_AFTER_SPECIALIZE = 48.0


@node_rewriter([Elemwise])
def _vectorize(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    # Folding of constants calls a Python function for every element of these. Every stationary
    # kernel clips its squared distances at zero.
    make = {Clip: _clip, Composite: _expanded}.get(type(node.op.scalar_op))
    return None if make is None else [make(node).astype(node.outputs[0].dtype)]


def _expanded(composite: Apply) -> Variable:
    """Return an elementwise operation, small integer powers say, as those it consists of."""
    fgraph = composite.op.scalar_op.fgraph
    values = dict(zip(fgraph.inputs, composite.inputs, strict=True))
    for node in fgraph.toposort():
        given = [pt.constant(v.data) if isinstance(v, Constant) else values[v] for v in node.inputs]
        values[node.outputs[0]] = Elemwise(node.op)(*given)
    return values[fgraph.outputs[0]]


def _clip(node: Apply) -> Variable:
    x, lower, upper = node.inputs
    # The lower bound last: PyMC writes censoring from below as clip(x, lower, x).
    if not (isinstance(upper, Constant) and np.all(np.isposinf(upper.data))):
        x = pt.minimum(x, upper)
    if not (isinstance(lower, Constant) and np.all(np.isneginf(lower.data))):
        x = pt.maximum(x, lower)
    return x


@node_rewriter([Elemwise])
def _add_to_diagonal(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    # PyMC stabilises K as K + jitter · I: n² additions, and n² numbers of I kept as a constant.
    if not isinstance(node.op.scalar_op, Add) or len(node.inputs) != 2:
        return None
    for K, addend in (node.inputs, node.inputs[::-1]):
        multiple = _multiple_of_identity(addend)
        if multiple is None or K.ndim != 2 or _multiple_of_identity(K) is not None:
            continue
        if True in K.type.broadcastable or K.dtype != node.outputs[0].dtype:
            continue
        at = pt.arange(K.shape[0])
        return [K[at, at].set(pt.diagonal(K) + multiple.astype(K.dtype))]
    return None


def _multiple_of_identity(graph: Variable) -> Variable | None:
    """Return c where ``graph`` is c · I for a number c."""
    if graph.owner is None:
        return None
    if isinstance(graph.owner.op, Eye):
        k = graph.owner.inputs[2]
        return pt.constant(1.0) if isinstance(k, Constant) and k.data == 0 else None
    if not (isinstance(graph.owner.op, Elemwise) and isinstance(graph.owner.op.scalar_op, Mul)):
        return None
    first, *rest = sorted(graph.owner.inputs, key=lambda part: all(part.type.broadcastable))
    if len(rest) != 1 or not all(rest[0].type.broadcastable):
        return None
    inner = _multiple_of_identity(first)
    return None if inner is None else inner * _number(rest[0])


def _number(graph: Variable) -> Variable:
    while graph.owner is not None and isinstance(graph.owner.op, DimShuffle):
        graph = graph.owner.inputs[0]
    return graph.reshape(()) if graph.ndim else graph


class _KnownRewrites(Mode):
    """A mode that looks its rewrites up once, a tenth of the time of rewriting a small graph."""

    @cached_property
    def optimizer(self) -> GraphRewriter:
        """The rewrites, which keep what they find out about operations."""
        return super().optimizer


@cache
def python_mode(*, with_wrong: bool = False) -> Mode:
    """Return the mode that executes a rewritten graph without compiling any code.

    ``with_wrong`` keeps the rewrites that PyTensor applies although they change values.
    """
    mode: Mode = _KnownRewrites(NumpyLinker(), "fast_run")
    # Fused elementwise kernels exist only as compiled code. Results of SciPy's solve that reuse
    # the memory of its argument are read-only, so that the next operation in place would fail.
    excluded = set(EXCLUDED) - set(WRONG if with_wrong else ())
    mode = mode.excluding("fusion", "scan_make_inplace", "blockwise_inplace", *excluded)
    # At first as well, for where the kernel is fixed constant folding executes all of it.
    return mode.register(
        (dfs_rewriter(_add_to_diagonal), _FIRST),
        (dfs_rewriter(_vectorize), _FIRST),
        (dfs_rewriter(_vectorize), _AFTER_SPECIALIZE),
    )


def _change_flags(flags: dict[str, Any]) -> Callable[[], None]:
    change = pytensor.config.change_flags(**flags)
    change.__enter__()
    return change.__exit__


# PyTensor's configuration is the process's, and its own change_flags is not for several threads.
_compilation = ProcessSetting(_change_flags)
_traces = ProcessSetting(_change_flags)


@contextmanager
def without_compilation() -> Iterator[None]:
    """Let what PyTensor compiles run in its Python virtual machine, inner functions included.

    Within ``with pac.without_compilation():`` a ``pm.sample(step=pac.AugmentedGibbs())`` starts as
    fast as :func:`pac.sample <pymc_augconj.sample>`, and draws the same. It is for models of which
    the step samples every variable: PyMC's other step methods need compiled code. Several threads
    may use it at once; PyTensor's configuration is as before when the last of them has left.
    """
    # An op with an inner graph (Scan) is linked with compiled code wherever there is a compiler,
    # whatever the mode of the function that contains it.
    with _compilation({"mode": python_mode(), "cxx": ""}), untraced():
        yield


def untraced() -> AbstractContextManager[None]:
    """Let no node of a graph record where it was made: a third of the time of making it."""
    return _traces({"traceback__limit": 0})


def complex_mode() -> Mode:
    """Return the mode for graphs of complex arguments.

    PyTensor's algebraic rewrites are for real numbers (√x² becomes |x|): none of them is applied,
    only what merges equal parts, folds constants and works in place.
    """
    mode = Mode(NumpyLinker(), None)
    return mode.including("merge", "constant_folding", "inplace_elemwise")
