"""An elementwise formula of one argument and of parameters, detached from the user's model.

``log_phi=lambda r: -pt.sqrt(r) / b`` closes over the model's variable b. A :class:`Formula` calls
it once, and finds the subgraphs that do not depend on r (the *parameters*). It can then write the
formula for other arguments: as part of a log density, for derivatives, and as a function of real or
complex NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.gradient import grad
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import graph_inputs, toposort
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.errors import AugmentationError
from pymc_augconj.python_mode import complex_mode, python_mode, without_compilation

# √x² is analytic, unlike |x|, and both agree for x = √r, whose argument is within ±π/4.
_ANALYTIC: dict[str, Callable[[Variable], Variable]] = {
    "Abs": lambda x: pt.sqrt(x * x),
    "Sigmoid": lambda x: 1.0 / (1.0 + pt.exp(-x)),
    "Softplus": lambda x: pt.log1p(pt.exp(x)),
}
# NumPy would order complex numbers by their real parts in silence.
_NOT_ANALYTIC = frozenset(
    {"Maximum", "Minimum", "Clip", "LT", "LE", "GT", "GE", "EQ", "NEQ", "Sign"}
)


class Formula:
    """A function of one argument, elementwise in it and in every parameter.

    It takes a float64 vector; a value instead of a function is a constant. ``parameters`` are
    the graphs in its closure: scalars, or arrays with an entry for each observation. Raises
    AugmentationError if it is not elementwise and a parameter is an array.
    """

    def __init__(self, function: Callable[[TensorVariable], Variable] | object, what: str) -> None:
        self.what = what
        self._argument = pt.tensor(what, dtype="float64", shape=(None,))
        value = function(self._argument) if callable(function) else function
        self._output = pt.as_tensor(value)
        if self._output.dtype.startswith(("int", "uint", "bool", "float32")):
            self._output = self._output.astype("float64")
        self._varying = self._between()
        self.is_elementwise = all(_is_elementwise(node) for node in self._nodes())
        self._stems = self._find_parameters()
        self.parameters = list(dict.fromkeys(self._stems.values()))
        arrays = [p for p in self.parameters if p.ndim > 0]
        if not self.is_elementwise and arrays:
            other = next(type(n.op).__name__ for n in self._nodes() if not _is_elementwise(n))
            raise AugmentationError(
                f"{what}: expected a formula that is elementwise in its argument and in "
                f"parameters that are arrays, found the operation {other}; write it "
                "with elementwise operations (pt.logaddexp for a mixture), or use scalars"
            )

    # -- reading the graph --------------------------------------------------------------------

    def _between(self) -> set[Variable]:
        varying = {self._argument}
        for node in toposort([self._output]):
            if any(parent in varying for parent in node.inputs):
                varying.update(node.outputs)
        return varying

    def _nodes(self) -> list[Any]:
        nodes = toposort([self._output])
        return [n for n in nodes if any(parent in self._varying for parent in n.inputs)]

    def _find_parameters(self) -> dict[Variable, Variable]:
        """Map each subgraph free of the argument to the parameter that it broadcasts."""
        roots = [p for node in self._nodes() for p in node.inputs if p not in self._varying]
        if self._output not in self._varying:
            roots = [self._output]
        parameters = {}
        for root in roots:
            stem = _without_new_axes(root)
            is_constant = all(isinstance(leaf, Constant) for leaf in graph_inputs([stem]))
            # A constant with an entry for each observation is a parameter, too.
            if is_constant and (not self.is_elementwise or all(stem.type.broadcastable)):
                continue
            if isinstance(root, TensorVariable):
                parameters[root] = stem
        return parameters

    # -- writing it again ---------------------------------------------------------------------

    def __call__(
        self, argument: TensorVariable, parameters: Sequence[Variable] | None = None
    ) -> TensorVariable:
        """Return the graph at ``argument``, broadcast against ``parameters``."""
        parameters = self.parameters if parameters is None else parameters
        argument = pt.as_tensor(argument)
        new = dict(zip(self.parameters, parameters, strict=True))
        if self._output not in self._varying:
            value = new[self._stems[self._output]] if self._stems else self._output
            return value.squeeze() if not self._stems and value.ndim else value
        shape = argument.shape
        rebuilt: dict[Variable, Variable] = {}
        for root, stem in self._stems.items():
            rebuilt[root] = new[stem] if self.is_elementwise else _like(new[stem], root)
        rebuilt[self._argument] = argument if self.is_elementwise else argument.ravel()
        for node in self._nodes():
            if self.is_elementwise:
                inputs = [rebuilt[p] if p in rebuilt else _as_scalar(p) for p in node.inputs]
            else:
                inputs = [rebuilt.get(p, p) for p in node.inputs]
            rebuilt[node.outputs[0]] = _rewritten(node, inputs, self.is_elementwise)
        value = rebuilt[self._output]
        return value if self.is_elementwise else value.reshape(shape)

    # -- as functions of NumPy arrays ---------------------------------------------------------

    def evaluate(
        self, x: np.ndarray, parameters: Sequence[np.ndarray], order: int = 0
    ) -> np.ndarray:
        """Return the values, or a derivative, at real or complex ``x``; arguments broadcast."""
        x = np.asarray(x)
        x = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64, copy=False)
        parameters = [np.asarray(p, dtype=np.float64) for p in parameters]
        scalar = tuple(p.size == 1 for p in parameters)
        shape = np.broadcast_shapes(x.shape, *(p.shape for p in parameters if p.size > 1))
        flat = np.ascontiguousarray(np.broadcast_to(x, shape)).reshape(-1)
        values = [
            p.reshape(()) if one else np.ascontiguousarray(np.broadcast_to(p, shape)).reshape(-1)
            for p, one in zip(parameters, scalar, strict=True)
        ]
        function = self._function(order, x.dtype.name, scalar)
        result = np.asarray(function(flat, *values))
        return np.broadcast_to(result, flat.shape).reshape(shape)

    @cached_property
    def _functions(self) -> dict[Any, Any]:
        return {}

    def __getstate__(self) -> dict[Any, Any]:
        # Compiled functions are not pickled, but compiled on demand.
        return {k: v for k, v in self.__dict__.items() if k != "_functions"}

    def _at(self, x: Variable, inputs: list[Variable]) -> Variable:
        try:
            return self(x, inputs)
        except (NotImplementedError, TypeError) as error:
            raise AugmentationError(
                f"{self.what}: expected a formula that can be written for numbers of type "
                f"{x.dtype}, found an operation that cannot ({error}); write it with exp, log, "
                "log1p, sqrt, cosh and powers"
            ) from None

    def _function(
        self, order: int, dtype: str, scalar: tuple[bool, ...]
    ) -> Callable[..., np.ndarray]:
        key = (order, dtype, scalar)
        if key not in self._functions:
            x = pt.tensor(self.what, dtype=dtype, shape=(None,))
            shapes = [() if one else (None,) for one in scalar]
            inputs = [pt.tensor(f"p{i}", dtype="float64", shape=s) for i, s in enumerate(shapes)]
            graph = self._at(x, inputs)
            for _ in range(order):
                graph = grad(graph.sum(), x, disconnected_inputs="ignore")
            if dtype == "complex128" and graph.dtype != "complex128":
                if self._output in self._varying:
                    raise AugmentationError(
                        f"{self.what}: expected a formula that is analytic in its argument, so "
                        f"that it can be evaluated at complex numbers, found one of {graph.dtype}; "
                        "write it with exp, log, log1p, sqrt, cosh and powers"
                    )
                graph = graph.astype("complex128")
            with without_compilation():
                self._functions[key] = pytensor.function(
                    [x, *inputs],
                    graph,
                    mode=complex_mode() if dtype == "complex128" else python_mode(),
                    trust_input=True,
                    on_unused_input="ignore",
                )
        return self._functions[key]


def _without_new_axes(graph: Variable) -> Variable:
    """Strip axes of length one that were only prepended for broadcasting."""
    while graph.owner is not None and isinstance(graph.owner.op, DimShuffle):
        order = list(graph.owner.op.new_order)
        while order and order[0] == "x":
            order.pop(0)
        if order != list(range(graph.owner.inputs[0].ndim)):
            break
        graph = graph.owner.inputs[0]
    return graph


def _as_scalar(graph: Variable) -> Variable:
    graph = _without_new_axes(graph)
    if isinstance(graph, Constant) and isinstance(graph, TensorVariable) and graph.ndim:
        return pt.constant(np.asarray(graph.data).reshape(()))
    return graph


def _like(new: Variable, root: Variable) -> Variable:
    """Return the scalar ``new`` with the number of axes of ``root``, each of length one."""
    new = new.astype(root.dtype)
    return new.dimshuffle(["x"] * root.ndim) if root.ndim else new


def _keeps_order(op: Op) -> bool:
    return (
        isinstance(op, DimShuffle)
        and not op.drop
        and ([axis for axis in op.new_order if axis != "x"] == [0] and op.new_order[-1] == 0)
    )


def _is_elementwise(node: Apply) -> bool:
    op = node.op
    return isinstance(op, Elemwise | CheckParameterValue) or _keeps_order(op)


def _rewritten(node: Apply, inputs: list[Variable], without_axes: bool) -> Variable:
    if without_axes and not isinstance(node.op, Elemwise):
        # Axes prepended for broadcasting, or a check of parameters.
        return inputs[0]
    name = type(getattr(node.op, "scalar_op", None)).__name__
    if name == "Log" and _is_cosh(inputs[0]):
        # cosh overflows where its logarithm is still small.
        (x,) = inputs[0].owner.inputs
        size = pt.sqrt(x * x) if x.dtype.startswith("complex") else pt.abs(x)
        return size + pt.log1p(pt.exp(-2.0 * size)) - np.log(2.0)
    if isinstance(node.op, Elemwise) and inputs[0].dtype.startswith("complex"):
        if name in _ANALYTIC:
            return _ANALYTIC[name](inputs[0])
        if name in _NOT_ANALYTIC:
            raise TypeError(f"{name} is not analytic")
        if name == "Cast":
            return inputs[0]
    return node.op(*inputs)


def _is_cosh(graph: Variable) -> bool:
    op = graph.owner.op if graph.owner is not None else None
    return isinstance(op, Elemwise) and type(op.scalar_op).__name__ == "Cosh"
