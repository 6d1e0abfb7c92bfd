"""Work on the workers of a Dask cluster; imported only for a client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4
from weakref import WeakSet

import distributed

from .executor import _FAN_IN, Executor, Task

_TOPIC = "pymc-augconj"


def _tell(topic: str, message: Any) -> None:
    distributed.get_worker().log_event(_TOPIC, [topic, message])


def is_cancelled() -> bool:
    """Return whether all clients have cancelled the calling task on a worker."""
    worker = distributed.get_worker()
    task = worker.state.tasks.get(worker.get_current_task())
    return task is None or task.state in ("cancelled", "released", "forgotten")


class DaskExecutor(Executor):
    """Runs each task as a task of the cluster's scheduler; does not close the client.

    The inputs of a task are in its description, or are results of other tasks, so that the cluster
    can repeat the work of a lost worker.
    """

    is_cancelled = staticmethod(is_cancelled)
    tell = staticmethod(_tell)

    def __init__(self, client: distributed.Client) -> None:
        self.client = client
        self._futures: WeakSet[distributed.Future[Any]] = WeakSet()

    @property
    def workers(self) -> int:  # type: ignore[override]
        return max(sum(self.client.nthreads().values()), 1)

    @contextmanager
    def listening(self, topic: str, handler: Callable[[Any], None]) -> Iterator[None]:
        def hear(event: Any) -> None:
            of, message = event[1]
            if of == topic:
                handler(message)

        # One topic of the scheduler's, which keeps a log of each.
        self.client.subscribe_topic(_TOPIC, hear)
        try:
            yield
        finally:
            self.client.unsubscribe_topic(_TOPIC)

    def share(self, value: Any) -> Any:
        # Not scattered: data scattered to one worker would be lost with it.
        return self.submit(_same, value)

    def block(self, array: Any) -> Any:
        if not distributed.futures_of(array):
            # Computed within the task that uses it, so that it is not kept.
            return super().block(array)
        future = self.client.compute(array)
        self._futures.add(future)
        return future

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Task[Any]:
        name = f"pymc-augconj-{function.__name__.strip('_')}-{uuid4().hex}"
        future = self.client.submit(function, *arguments, key=name, pure=False)
        self._futures.add(future)
        return future

    def gather(self, tasks: Sequence[Task[Any]]) -> list[Any]:
        return self.client.gather(list(tasks))

    def drop(self, tasks: Sequence[Task[Any]]) -> None:
        self.client.cancel(list(tasks))

    def reduce(self, function: Callable[[list[Any]], Any], tasks: list[Task[Any]]) -> Any:
        left = list(tasks)
        tasks.clear()
        while True:
            groups = [left[i : i + _FAN_IN] for i in range(0, len(left), _FAN_IN)]
            left = [self.submit(function, group) for group in groups]
            if len(left) == 1:
                return left[0].result()

    def close(self) -> None:
        self.drop(list(self._futures))
        self._futures.clear()


def _same(value: Any) -> Any:
    return value
