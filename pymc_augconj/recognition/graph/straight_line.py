"""A compiled graph as one straight-line Python function.

PyTensor's Python virtual machine takes 20–100 µs an operation. Here the graph that it has rewritten
is written out as source, one statement per operation, and compiled by ``exec``: see
:mod:`.expressions`. Which operations are executed, and in which order, stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pytensor.compile.maker import Function
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.link.c.op import COp
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.type import TensorType

from pymc_augconj.model import Key

from .expressions import NAMES, expression, is_diagonal, is_number, view_of
from .numpy_calls import performed

__all__ = ["Executed", "StraightLine"]


class Executed:
    """A compiled function of PyTensor's as a function of a point.

    Parameters
    ----------
    function : pytensor Function
    keys : sequence of Key
        The keys of its explicit inputs in the point, in order.
    """

    def __init__(self, function: Function, keys: Sequence[Key]) -> None:
        self._function, self._keys = function, tuple(keys)

    def __call__(self, point: Mapping[Key, np.ndarray]) -> Sequence[np.ndarray]:
        """Return the outputs at ``point``."""
        # At extreme values results may be infinite or NaN, which the sampler handles.
        with np.errstate(all="ignore"):
            return self._function(*[point[key] for key in self._keys])


class StraightLine(Executed):
    """One of PyTensor's Python virtual machine, written out.

    Attributes
    ----------
    source : str or None
        The executed source; None if some operation has none, and PyTensor executes everything.
    """

    def __init__(self, function: Function, keys: Sequence[Key]) -> None:
        super().__init__(function, keys)
        self._build()

    def _build(self) -> None:
        self._run, self.source, self._is_quiet = None, None, False
        fgraph = self._function.maker.fgraph
        if not all(map(_is_executable, fgraph.apply_nodes)):
            return
        writer = _Writer(self._function, self._keys)
        self.source, self._run = writer.source, writer.compile()
        self._is_quiet = writer.is_quiet

    def __getstate__(self) -> dict[str, Any]:
        return {"_function": self._function, "_keys": self._keys}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._build()

    def __call__(self, point: Mapping[Key, np.ndarray]) -> Sequence[np.ndarray]:
        """Return the outputs at ``point``, which are the caller's to write to."""
        if self._run is not None:
            # Where Python's numbers raise, NumPy may return an infinity or NaN; PyTensor raises
            # real errors again.
            try:
                if self._is_quiet:
                    return self._run(point)
                with np.errstate(all="ignore"):
                    return self._run(point)
            except Exception:
                pass
        # PyTensor may return its own constants.
        return [v.copy() if isinstance(v, np.ndarray) else v for v in super().__call__(point)]


def _is_executable(node: Apply) -> bool:
    """Return whether an operation has no inner graph to compile, and needs all of its inputs."""
    op = node.op
    if is_diagonal(node):
        return True
    if isinstance(op, HasInnerGraph | RNGConsumerOp):
        return False
    return type(op).make_thunk in (Op.make_thunk, COp.make_thunk)


class _Writer:
    """Writes the source of one graph; the :class:`~.expressions.Names` of its operations."""

    def __init__(self, function: Function, keys: Sequence[Key]) -> None:
        self._fgraph = function.maker.fgraph
        self._objects: dict[str, Any] = dict(NAMES)
        self._names: dict[Variable, str] = {}
        # Of arrays: the statement's own result, or else what it is a view of.
        self._roots: dict[Variable, Variable | None] = {}
        self._lines: list[str] = []
        #: Whether no operation would warn of an infinity.
        self.is_quiet = True
        self._read_inputs(function, keys)
        nodes = self._fgraph.toposort()
        finished = self._finished(nodes)
        for node, last in zip(nodes, finished, strict=True):
            self._write(node)
            # Release arrays that are no longer needed, as they may be large.
            if last:
                self._lines.append(f"del {', '.join(self._names[var] for var in last)}")
        results = ", ".join(map(self._result, range(len(self._fgraph.outputs))))
        self._lines.append(f"return [{results}]")
        body = "\n".join(f"    {line}" for line in self._lines)
        self.source = f"def run(point):\n{body}\n"

    def compile(self) -> Callable[[Mapping[Key, np.ndarray]], list[np.ndarray]]:
        namespace = dict(self._objects)
        exec(compile(self.source, "<graph>", "exec"), namespace)
        return namespace["run"]

    # -- Names ------------------------------------------------------------------------------------

    def of(self, var: Variable) -> str:
        """See :class:`~.expressions.Names`."""
        if var not in self._names:
            # Variables are known in the order of their statements; these are constants.
            self._names[var] = self._constant(var)
        return self._names[var]

    def array(self, var: Variable) -> str:
        """See :class:`~.expressions.Names`."""
        if not is_number(var):
            return self.of(var)
        if not isinstance(var.type, TensorType):
            return self.of(var)
        nested = "[" * var.type.ndim + self.of(var) + "]" * var.type.ndim
        return f"np.array({nested}, dtype={self.keep(np.dtype(var.dtype))})"

    def keep(self, value: Any) -> str:
        """See :class:`~.expressions.Names`."""
        name = f"k{len(self._objects)}"
        self._objects[name] = value
        return name

    def require(self, condition: str) -> None:
        """See :class:`~.expressions.Names`."""
        self._lines.append(f"if not {condition}: raise ValueError")

    # -- statements -------------------------------------------------------------------------------

    def _constant(self, var: Variable) -> str:
        if not isinstance(var, Constant):
            raise KeyError(var)
        if not is_number(var):
            self._roots[var] = None
            return self.keep(var.data)
        literal = repr(np.asarray(var.data).item())
        # Powers and attributes bind more tightly than a sign.
        return f"({literal})" if literal.startswith("-") else literal

    def _read_inputs(self, function: Function, keys: Sequence[Key]) -> None:
        for i, (var, container) in enumerate(
            zip(self._fgraph.inputs, function.input_storage, strict=True)
        ):
            if not self._fgraph.clients[var]:
                continue
            if i < len(keys):
                source = f"point[{self.keep(keys[i])}]"
            else:
                # A shared variable: pm.set_data puts another value into its storage.
                source = f"{self.keep(container.storage)}[0]"
                self._lines.append(f"if {source}.__class__ is not np.ndarray: raise TypeError")
            name = self._names[var] = f"x{i}"
            self._lines.append(f"{name} = {source}{'.item()' if is_number(var) else ''}")
            self._roots[var] = None

    def _write(self, node: Apply) -> None:
        names = [f"v{len(self._names) + i}" for i in range(len(node.outputs))]
        source = expression(node, self)
        self.is_quiet &= all(map(is_number, [*node.inputs, *node.outputs]))
        if source is not None:
            self._lines.append(f"{names[0]} = {source}")
        else:
            self.is_quiet = False
            given = ", ".join(map(self.array, node.inputs))
            results = "".join(f"{name}, " for name in names)
            self._lines.append(f"{results}= {self.keep(performed(node))}({given})")
            self._lines += [
                f"{name} = {name}.item()"
                for name, var in zip(names, node.outputs, strict=True)
                if is_number(var)
            ]
        for i, (name, var) in enumerate(zip(names, node.outputs, strict=True)):
            self._names[var] = name
            seen = view_of(node, i)
            self._roots[var] = var if seen is None else self._root(seen)

    def _finished(self, nodes: Sequence[Apply]) -> list[list[Variable]]:
        """Return, for every node, the arrays that none after it needs."""
        needed = {*self._fgraph.outputs, *self._fgraph.inputs}
        finished = []
        for node in reversed(nodes):
            last = [
                var for var in dict.fromkeys([*node.inputs, *node.outputs]) if var not in needed
            ]
            needed.update(last)
            finished.append(
                [v for v in last if not (isinstance(v, Constant) or is_number(v))],
            )
        return finished[::-1]

    def _root(self, var: Variable) -> Variable | None:
        """Return the result whose memory ``var`` may share; None where the caller must not write.

        Numbers share nothing.
        """
        if is_number(var):
            return var
        self.of(var)
        return self._roots[var]

    def _result(self, index: int) -> str:
        var = self._fgraph.outputs[index]
        if is_number(var):
            return self.array(var) if isinstance(var.type, TensorType) else self.of(var)
        before = [self._root(other) for other in self._fgraph.outputs[:index]]
        root = self._root(var)
        return f"{self.of(var)}.copy()" if root is None or root in before else self.of(var)
