"""Seconds spent in LAPACK, compiled kernels and the draws of auxiliary variables."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from numba.core.dispatcher import Dispatcher
from scipy.linalg.lapack import dpotrf

__all__ = ["Watch"]

_FORTRAN = type(dpotrf)


class Watch:
    """Counts the time inside such routines, as the package's modules call them.

    Install it when every kernel has been compiled, in a process of its own: the modules keep the
    counting routines.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = False

    def install(self) -> None:
        """Replace the routines in all loaded modules of the package."""
        for module_name, module in list(sys.modules.items()):
            if module_name.split(".")[0] == "pymc_augconj":
                for name, value in list(vars(module).items()):
                    if _is_routine(value):
                        setattr(module, name, self._counting(value))

    def _counting(self, routine: Callable) -> Callable:
        def counting(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return routine(*args, **kwargs)
            self._inside, start = True, time.perf_counter()
            try:
                return routine(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start
                self._inside = False

        return counting if isinstance(routine, _FORTRAN) else wraps(routine)(counting)


def _is_routine(value: Any) -> bool:
    if isinstance(value, _FORTRAN | Dispatcher):
        return True
    module, name = getattr(value, "__module__", None) or "", getattr(value, "__name__", "")
    return module.startswith("pymc_augconj.auxiliary") and name.startswith("random_")
