"""Decorators of the loop's functions: those that Python calls, and those within them."""

from __future__ import annotations

from typing import Any

from numba import njit
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler

from pymc_augconj.python_mode.records import pass_by_reference

from .entries import Design, Entries
from .precisions import Roots, Shared
from .problem import Problem
from .row_tapes import RowTape, RowTapes
from .rows import Polynomial
from .work import Work

pass_by_reference(Design, Entries, Polynomial, Problem, Roots, RowTape, RowTapes, Shared, Work)


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
#: Compiles functions that make no arrays, so that none are counted: a call would count every array
#: of a :class:`.Problem` and :class:`Work`, which takes longer than its arithmetic.
WITHOUT_COUNTS: dict[str, Any] = {"_nrt": False, "cache": True, **_OPTIONS}
outer = njit(**WITHOUT_COUNTS)
#: The same of functions that only compiled ones call; and those of them that make arrays.
inner = njit(**{**_INNER, "_nrt": False})
inner_with_arrays = njit(**{**_INNER, "_nrt": True})
#: Compiles sums that processors may add up in any order.
inner_in_any_order = njit(**{**_INNER, "_nrt": False, "fastmath": {"contract", "reassoc"}})
