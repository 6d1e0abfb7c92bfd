"""PyTensor's mode for executing graphs without compiling them.

PyTensor's Numba backend takes 10–25 s to compile even the small graphs of a model (a kernel matrix,
an offset) on a cold cache, its C backend seconds. They are therefore executed by one NumPy call per
operation: rewriting takes tens of milliseconds, and a 506 × 506 squared-exponential kernel matrix
2 ms instead of 1 ms. The rewrites here are for operations that NumPy would execute an n × n array
at a time, or PyTensor an element at a time. A rewritten graph becomes one straight-line Python
function, where PyTensor's Python virtual machine takes 20–100 µs an operation; see
:mod:`.operations`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from pytensor.link.basic import JITLinker, PerformLinker
from pytensor.scalar.basic import Add, Clip, Composite, Mul
from pytensor.tensor.basic import Alloc, Eye
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.type import TensorType

from pymc_augconj.parallel.executor import ProcessSetting

from .arrays import first, formula_of
from .operations import is_number, lower


class StraightLine:
    """The function of a rewritten graph; its results are the caller's to write to.

    Numbers are Python's where that goes well. Where it raises NumPy may return an infinity or NaN,
    and the graph is executed with arrays, which raises real errors again. ``graph`` is the graph
    with its operations in order.
    """

    def __init__(self, fgraph: FunctionGraph, order: Sequence[Apply]) -> None:
        self.graph = fgraph, order
        self.run, self._is_quiet = _written(fgraph, order, numbers=True)

    @cached_property
    def of_arrays(self) -> Callable[..., list[Any]]:
        """The function without numbers."""
        return _written(*self.graph, numbers=False)[0]

    def __call__(self, *values: Any) -> list[Any]:
        try:
            if self._is_quiet:
                return self.run(*values)
            with np.errstate(all="ignore"):
                return self.run(*values)
        except Exception:
            with np.errstate(all="ignore"):
                return self.of_arrays(*values)


class NumpyLinker(JITLinker):
    """Links functions of PyTensor's to their straight-line form, without compiling anything."""

    required_rewrites = PerformLinker.required_rewrites
    incompatible_rewrites = PerformLinker.incompatible_rewrites

    def fgraph_convert(self, fgraph: FunctionGraph, order: Any = None, **_: Any) -> StraightLine:
        return StraightLine(fgraph, order)

    def jit_compile(self, fn: StraightLine) -> StraightLine:
        return fn

    def create_thunk_inputs(self, storage_map: dict[Variable, list[Any]]) -> list[list[Any]]:
        return [storage_map[var] for var in self.fgraph.inputs]


def own(results: Iterable[Any], others: Iterable[Any]) -> list[Any]:
    """Return ``results`` with copies of arrays that share memory with ``others`` or one another."""
    roots = {id(_root(value)) for value in others}
    owned = []
    for value in results:
        root = id(_root(value))
        owned.append(value.copy() if root in roots and isinstance(value, np.ndarray) else value)
        roots.add(root)
    return owned


def _root(value: Any) -> Any:
    """Return the array that owns the memory of ``value``."""
    while isinstance(value, np.ndarray) and isinstance(value.base, np.ndarray):
        value = value.base
    return value


def _may_be_shared(var: Variable) -> bool:
    """Return whether an array may have the memory of another."""
    return var.owner is None or bool(getattr(var.owner.op, "view_map", {}))


def last_uses(nodes: Sequence[Apply], kept: Iterable[Variable]) -> list[list[Variable]]:
    """Return, for every node, the results and inputs that no later one needs."""
    seen = set(kept)
    last: list[list[Variable]] = []
    for node in reversed(nodes):
        finished = [var for var in dict.fromkeys([*node.inputs, *node.outputs]) if var not in seen]
        seen.update(finished)
        last.append(finished)
    return last[::-1]


def _written(
    fgraph: FunctionGraph, order: Sequence[Apply], *, numbers: bool
) -> tuple[Callable[..., list[Any]], bool]:
    """Return the function, and whether no operation in it would warn."""
    kept: dict[str, Any] = vars(math) | {"np": np, "own": own}
    lines: list[str] = []
    names = {var: f"x{i}" for i, var in enumerate(fgraph.inputs)}
    is_quiet = True

    def as_number(var: Variable) -> bool:
        return numbers and is_number(var)

    def keep(value: Any) -> str:
        kept[name := f"k{len(kept)}"] = value
        return name

    def name_of(var: Variable) -> str:
        if var not in names:  # a constant
            is_one = as_number(var)
            names[var] = f"({np.asarray(var.data).item()!r})" if is_one else keep(var.data)
        return names[var]

    def result(var: Variable) -> str:
        if not (as_number(var) and isinstance(var.type, TensorType)):
            return name_of(var)
        ndim, dtype = var.type.ndim, keep(np.dtype(var.dtype))
        return f"np.array({'[' * ndim}{name_of(var)}{']' * ndim}, dtype={dtype})"

    for var, name in names.items():
        if fgraph.clients[var] and as_number(var):
            lines.append(f"{name} = {name}.item()")
    for node, last in zip(order, last_uses(order, [*fgraph.outputs, *fgraph.inputs]), strict=True):
        function, is_one = lower(node, numbers=numbers)
        if function is first and is_one:
            names[node.outputs[0]] = name_of(node.inputs[0])
            continue
        is_number_alone = all(map(as_number, [*node.inputs, *node.outputs]))
        is_quiet &= is_number_alone or isinstance(node.op, Alloc | DimShuffle)
        given = [name_of(var) for var in node.inputs]
        names |= {var: f"v{len(names) + i}" for i, var in enumerate(node.outputs)}
        found = ", ".join(names[var] for var in node.outputs)
        source, values = formula_of(function, len(given))
        source = source.format(*given, **{name: keep(value) for name, value in values.items()})
        lines.append(f"{found} = {source}")
        one = [names[var] for var in node.outputs if as_number(var) and not is_one]
        lines += [f"{name} = {name}.item()" for name in one]
        # Release arrays that are no longer needed, as they may be large.
        dropped = [v for v in last if not (isinstance(v, Constant) or as_number(v))]
        if dropped:
            lines.append(f"del {', '.join(names[var] for var in dropped)}")
    results = f"[{', '.join(map(result, fgraph.outputs))}]"
    arrays = [var for var in fgraph.outputs if not as_number(var)]
    if any(map(_may_be_shared, arrays)) or len(set(arrays)) < len(arrays):
        inputs = "".join(f"{names[var]}, " for var in fgraph.inputs if not as_number(var))
        constants = tuple(value for value in kept.values() if isinstance(value, np.ndarray))
        results = f"own({results}, ({inputs}*{keep(constants)},))"
    body = "\n".join(f"    {line}" for line in [*lines, f"return {results}"])
    source = f"def run({', '.join(names[var] for var in fgraph.inputs)}):\n{body}\n"
    exec(compile(source, "<graph>", "exec"), kept)
    return kept["run"], is_quiet


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
