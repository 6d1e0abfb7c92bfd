"""A graph as one straight-line Python function, a statement for each operation.

PyTensor's Python virtual machine takes 20–100 µs an operation. Which operations are executed, and
in which order, is as it has rewritten the graph; what they do is in :mod:`.operations`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.link.basic import JITLinker, PerformLinker
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.type import TensorType

from .arrays import first, formula_of
from .operations import is_number, lower

__all__ = ["NumpyLinker", "StraightLine", "last_uses", "own"]


class StraightLine:
    """The function of a rewritten graph; its results are the caller's to write to.

    Numbers are Python's where that goes well. Where it raises NumPy may return an infinity or NaN,
    and the graph is executed with arrays, which raises real errors again.

    Attributes
    ----------
    graph : tuple
        The graph, and its operations in order.
    """

    def __init__(self, fgraph: FunctionGraph, order: Sequence[Apply]) -> None:
        self.graph = fgraph, order
        self.run, self._is_quiet = _written(fgraph, order, numbers=True)

    @cached_property
    def of_arrays(self) -> Callable[..., list[Any]]:
        """The function without numbers."""
        return _written(*self.graph, numbers=False)[0]

    def __call__(self, *values: Any) -> list[Any]:
        """Return the outputs."""
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
        """Return the function of a rewritten graph."""
        return StraightLine(fgraph, order)

    def jit_compile(self, fn: StraightLine) -> StraightLine:
        """Return ``fn`` itself."""
        return fn

    def create_thunk_inputs(self, storage_map: dict[Variable, list[Any]]) -> list[list[Any]]:
        """Return the storage of the graph's inputs."""
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
