"""Independent pieces of work: in this thread, on threads, on processes, on a Dask cluster.

Algorithms that sum over pieces use the methods of one object for every place of computation. The
result does not depend on the place: results are gathered in the order of the tasks, and
:meth:`Executor.reduce` adds in one fixed tree.

Settings of the whole process, such as threads of BLAS, may be changed by calls in several threads
at the same time. If every call saved and restored the value itself, overlapping calls would not
restore it. Here the first call saves the value, and the last call restores it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor as FuturesExecutor
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import lru_cache
from typing import Any, Protocol, Self
from uuid import uuid4

import cloudpickle
import numpy as np
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


def available_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# Results that are added at once.
_FAN_IN = 8

# Number of shared values that a process keeps.
_KEPT = 8


class Task[T](Protocol):
    """Work with a result."""

    def result(self) -> T:
        """Wait for the result and return it; raises the exception of the work."""


class _Deferred[T]:
    """Work that runs when its result is requested."""

    def __init__(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments = function, arguments
        self._found: list[T] = []

    def result(self) -> T:
        if not self._found:
            self._found.append(self._function(*self._arguments))
        return self._found[0]


def _never() -> bool:
    return False


def _silent(topic: str, message: Any) -> None:
    pass


class Executor:
    """Runs all work in this thread, when its result is requested; the base of the others.

    A context manager: when it exits, no submitted work is running or waiting.
    """

    #: Number of tasks that run at once.
    workers = 1

    #: Function by which a task learns whether its result is no longer wanted.
    is_cancelled: Callable[[], bool] = staticmethod(_never)
    #: Function ``(topic, message)`` by which a task sends to :meth:`listening`.
    tell: Callable[[str, Any], None] = staticmethod(_silent)

    def listening(
        self, topic: str, handler: Callable[[Any], None]
    ) -> AbstractContextManager[object]:
        """Call ``handler`` with the messages of a topic, if tasks can send them."""
        return nullcontext()

    def share(self, value: Any) -> Any:
        """Return a substitute for ``value`` among the arguments of many tasks."""
        return value

    def block(self, array: Any) -> Any:
        """Return a substitute for a part of a Dask array among the arguments of a task."""
        from .dask_arrays import ArrayPart

        return ArrayPart(array)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Task[Any]:
        """Begin ``function(*arguments)``."""
        return _Deferred(function, arguments)

    def map(
        self, function: Callable[..., Any], items: Iterable[Any], *shared: Any
    ) -> list[Task[Any]]:
        """Begin ``function(item, *shared)`` for each item."""
        return [self.submit(function, item, *shared) for item in items]

    def gather(self, tasks: Sequence[Task[Any]]) -> list[Any]:
        """Return the results of all tasks, in order."""
        return [task.result() for task in tasks]

    def drop(self, tasks: Sequence[Task[Any]]) -> None:
        """Wait for running tasks, and forget all of them."""

    def reduce(self, function: Callable[[list[Any]], Any], tasks: list[Task[Any]]) -> Any:
        """Return the results of all tasks added by ``function``, a few at a time.

        Neighbours are added, then their sums, and so on. ``tasks`` is emptied, so that few results
        are held at once.
        """

        def total(size: int) -> Any:
            """Return the sum of the next ``size`` results, a power of the number that are added."""
            if size == _FAN_IN:
                few, tasks[:] = tasks[:_FAN_IN], tasks[_FAN_IN:]
                return function(self.gather(few))
            parts: list[Any] = []
            while tasks and len(parts) < _FAN_IN:
                parts.append(total(size // _FAN_IN))
            return function(parts)

        size = _FAN_IN
        while size < len(tasks):
            size *= _FAN_IN
        return total(size)

    def close(self) -> None:
        """Drop the remaining tasks."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()


class Pool(Executor):
    """Work for a pool of the standard library, which is not closed at the end."""

    def __init__(self, pool: FuturesExecutor, workers: int) -> None:
        self._pool, self.workers = pool, workers
        self._separate = isinstance(pool, ProcessPoolExecutor)
        self._futures: set[Future[Any]] = set()

    def share(self, value: Any) -> Any:
        return _Shared(value) if self._separate else value

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Task[Any]:
        if self._separate:
            future = self._pool.submit(_unpickled, cloudpickle.dumps((function, arguments)))
        else:
            # A new thread does not inherit the floating-point errors that this one ignores.
            how: Any = np.geterr()
            future = self._pool.submit(_with_errors, how, function, arguments)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def drop(self, tasks: Sequence[Task[Any]]) -> None:
        for task in tasks:
            assert isinstance(task, Future)
            if not task.cancel():
                with suppress(Exception):
                    task.result()

    def close(self) -> None:
        self.drop(list(self._futures))


class Threads(Pool):
    """Runs work on the caller's thread and ``workers`` − 1 others.

    The caller's thread runs tasks not yet begun when it requests results.
    """

    def __init__(self, workers: int) -> None:
        super().__init__(ThreadPoolExecutor(workers - 1), workers)
        self._work: dict[Task[Any], tuple[Callable[..., Any], tuple[Any, ...]]] = {}

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Task[Any]:
        future = super().submit(function, *arguments)
        self._work[future] = function, arguments
        return future

    def gather(self, tasks: Sequence[Task[Any]]) -> list[Any]:
        results: list[Any] = [None] * len(tasks)
        own = []
        # From the last one on, since other threads take the first ones.
        for i in reversed(range(len(tasks))):
            function, arguments = self._work.pop(tasks[i])
            if tasks[i].cancel():  # type: ignore[attr-defined]
                own.append(i)
                results[i] = function(*arguments)
        for i, task in enumerate(tasks):
            if i not in own:
                results[i] = task.result()
        return results

    def drop(self, tasks: Sequence[Task[Any]]) -> None:
        for task in tasks:
            self._work.pop(task, None)
        super().drop(tasks)

    def close(self) -> None:
        super().close()
        self._pool.shutdown()


class _Shared:
    """A value that a process unpickles once."""

    def __init__(self, value: Any) -> None:
        self.state = uuid4().hex, cloudpickle.dumps(value)

    def get(self) -> Any:
        name, pickled = self.state
        if name not in _KNOWN:
            while len(_KNOWN) >= _KEPT:
                del _KNOWN[next(iter(_KNOWN))]
            _KNOWN[name] = cloudpickle.loads(pickled)
        # Values in use stay.
        _KNOWN[name] = _KNOWN.pop(name)
        return _KNOWN[name]


_KNOWN: dict[str, Any] = {}


def _unpickled(pickled: bytes) -> Any:
    function, arguments = cloudpickle.loads(pickled)
    return function(*(x.get() if isinstance(x, _Shared) else x for x in arguments))


def _with_errors(how: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    with np.errstate(**how):
        return function(*arguments)
