"""Settings of the whole process that calls in several threads may change at the same time.

If every call saved and restored the value itself, overlapping calls would not restore it. Here the
first call saves the value, and the last call restores it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

from threadpoolctl import ThreadpoolController


class ProcessSetting[T]:
    """One setting of the process; ``change`` sets it and returns a function that restores it."""

    def __init__(self, change: Callable[[T], Callable[[], None]]) -> None:
        self._change = change
        self._wanted: list[tuple[object, T]] = []
        self._restore: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        # A process forked while another thread holds the lock would deadlock.
        if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
            os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def acquire(self, value: T) -> Callable[[], None]:
        """Set ``value``; return a function to call once when the value is no longer needed.

        If several values are set at the same time, the last one counts.
        """
        request = (object(), value)
        with self._lock:
            restore = self._change(value)
            if not self._wanted:
                self._restore = restore
            self._wanted.append(request)

        def release() -> None:
            with self._lock:
                last = self._wanted[-1] is request
                self._wanted.remove(request)
                if not self._wanted:
                    self._restore()
                elif last:
                    self._change(self._wanted[-1][1])

        return release

    @contextmanager
    def __call__(self, value: T) -> Iterator[None]:
        """Set ``value`` within a ``with`` statement."""
        release = self.acquire(value)
        try:
            yield
        finally:
            release()


@lru_cache(maxsize=1)
def _controller(n_modules: int) -> ThreadpoolController:
    return ThreadpoolController()


def _limit_blas(threads: int) -> Callable[[], None]:
    # Looking for the libraries takes ten milliseconds; a module loaded since may have brought one.
    controller = _controller(len(sys.modules))
    return controller.limit(limits=threads, user_api="blas").restore_original_limits


#: The number of threads that BLAS uses.
blas_limit = ProcessSetting(_limit_blas)
