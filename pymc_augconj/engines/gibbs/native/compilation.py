"""Decorators of the loop's functions, and records that these take by reference.

Some functions Python calls, others are within them. Numba passes named tuples by value: each call
would have some six hundred arguments, which take longer to compile than its arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha1, sha256
from types import CodeType, ModuleType
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.typing.templates import AttributeTemplate
from numba.core.typing.typeof import _typeof_tuple, typeof_impl
from numba.extending import (
    NativeValue,
    infer_getattr,
    lower_getattr_generic,
    models,
    register_model,
    unbox,
)
from numba.np.arrayobj import make_array, populate_array

from .columns import Columns
from .entries import Design, Entries
from .precisions import Roots, Shared
from .problem import Problem
from .row_tapes import RowTape, RowTapes
from .rows import Drawn, Polynomial
from .work import Work


class Record(types.Type):
    """A pointer to the fields of a named tuple."""

    def __init__(self, fields: types.NamedTuple) -> None:
        self.fields = fields
        # As short as it can be: names of compiled functions have those of their arguments.
        super().__init__(f"Record{sha1(str(fields).encode()).hexdigest()[:16]}")


def _typeof(record: Any, context: Any) -> Record:
    return Record(_typeof_tuple(record, context))


def pass_by_reference(*kinds: type) -> None:
    """Let compiled functions take these named tuples, of arrays, numbers and records, as records.

    They can be read and passed on, and their arrays written; they are neither made nor returned.
    """
    for kind in kinds:
        typeof_impl.register(kind)(_typeof)


@register_model(Record)
class _Pointer(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Record) -> None:
        super().__init__(manager, kind, manager[kind.fields].get_value_type().as_pointer())


@unbox(Record)
def _unbox(kind: Record, given: Any, c: Any) -> NativeValue:
    found = c.unbox(kind.fields, given)
    place = cgutils.alloca_once_value(c.builder, found.value)
    # Loads are declared to find what never changes: where that was written must not be known.
    same = ir.FunctionType(place.type, [place.type])
    place = c.builder.asm(same, "", "=r,0,~{memory}", [place], side_effect=True)
    return NativeValue(place, is_error=found.is_error, cleanup=found.cleanup)


@infer_getattr
class _Fields(AttributeTemplate):
    key = Record

    def generic_resolve(self, kind: Any, name: str) -> Any:  # type: ignore[override]
        """Return the type of a field."""
        return dict(zip(kind.fields.fields, kind.fields.types, strict=True)).get(name)


@lower_getattr_generic(Record)
def _load(context: Any, builder: Any, kind: Record, pointer: Any, name: str) -> Any:
    number = kind.fields.fields.index(name)
    field = kind.fields.types[number]

    def word(*place: int) -> Any:
        loaded = builder.load(cgutils.gep_inbounds(builder, pointer, 0, number, *place))
        # So that loops need not load it again.
        loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
        return loaded

    if not isinstance(field, types.Array):
        return word()
    array = make_array(field)(context, builder)
    at = array._datamodel._fields.index
    shape, strides = (
        [word(at(part), axis) for axis in range(field.ndim)] for part in ("shape", "strides")
    )
    itemsize = context.get_abi_sizeof(context.get_data_type(field.dtype))
    populate_array(array, word(at("data")), shape, strides, itemsize, meminfo=None)
    return array._getvalue()


pass_by_reference(
    Columns, Design, Drawn, Entries, Polynomial, Problem, Roots, RowTape, RowTapes, Shared, Work
)


class _Linked(JITCodeLibrary):
    """Code that is compiled within the functions that call it, and nowhere else.

    Numba would also make, for each function, machine code of its own, with all that it calls in
    it: half of the time that the loop takes to compile.
    """

    @property
    def codegen(self) -> _Linked:
        """Return this library, of which Numba sets the environment, as it does of machine code."""
        return self

    def set_env(self, env_name: str, env: object) -> None:
        """Do nothing: there is no machine code."""

    def get_pointer_to_function(self, name: str) -> int:
        """Return no address."""
        self._ensure_finalized()
        return 0

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class _OfInner(Compiler):
    def define_pipelines(self) -> Any:
        self.state.library = _Linked(
            self.state.targetctx.codegen(), self.state.func_id.func_qualname
        )
        return super().define_pipelines()


_OPTIONS: dict[str, Any] = {"error_model": "numpy", "no_cfunc_wrapper": True}
_INNER: dict[str, Any] = {**_OPTIONS, "no_cpython_wrapper": True, "pipeline_class": _OfInner}


def _all_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _all_names(constant)


def _digest(value: Any, seen: set[Any]) -> Iterator[bytes]:
    """Yield code, options and constants of a compiled function and of all that it calls."""
    function = getattr(value, "py_func", None)
    if isinstance(value, tuple):
        for each in value:
            yield from _digest(each, seen)
    elif isinstance(value, (bool, int, float, str, np.generic)):
        yield repr(value).encode()
    elif function is not None and function in seen:
        yield function.__qualname__.encode()
    elif function is not None:
        seen.add(function)
        code, known = function.__code__, function.__globals__
        yield code.co_code
        options = value.targetoptions.items()
        # Sets of names are in another order in each process.
        yield repr([(k, sorted(v) if isinstance(v, set) else v) for k, v in options]).encode()
        names = sorted(set(_all_names(code)))
        read = [known[name] for name in names if name in known]
        modules = [each for each in read if isinstance(each, ModuleType)]
        read += [getattr(each, name) for each in modules for name in names if hasattr(each, name)]
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        yield from _digest((*code.co_consts, *cells, *read), seen)


def _cached(**options: Any) -> Callable[[Any], Any]:
    """Compile functions that Python calls; Numba keeps them until code that they link changes.

    Numba itself compares the file of the function alone. It would run code of an older version of
    the package where only files of functions that are called have changed.
    """

    def decorate(function: Any) -> Any:
        compiled = njit(cache=True, **options)(function)
        file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
        if file is not None:
            digest = sha256(b"".join(_digest(compiled, set()))).digest()
            file._source_stamp = file._source_stamp, digest
        return compiled

    return decorate


#: Compiles functions that Python calls and that make no arrays, so that none are counted: a call
#: would count every array of a :class:`.Problem` and :class:`Work`, which takes longer than its
#: arithmetic; and those that make arrays.
outer = _cached(_nrt=False, nogil=True, **_OPTIONS)
outer_with_arrays = _cached(error_model="numpy", nogil=True)
#: The same of functions that only compiled ones call; and those of them that make arrays.
inner = njit(**{**_INNER, "_nrt": False})
inner_with_arrays = njit(**{**_INNER, "_nrt": True})
#: Compiles sums that processors may add up in any order.
inner_in_any_order = njit(**{**_INNER, "_nrt": False, "fastmath": {"contract", "reassoc"}})
