"""The executor for the user's ``client``."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

from pymc_augconj.errors import AugmentationError

from .executor import Executor, Pool


def executor_of(client: Any) -> Executor:
    """Return the executor for the user's ``client``: this process where it is None."""
    if client is None:
        return Executor()
    if isinstance(client, ThreadPoolExecutor | ProcessPoolExecutor):
        return Pool(client, client._max_workers)  # type: ignore[union-attr]
    if type(client).__module__.partition(".")[0] == "distributed":
        from .dask import DaskExecutor

        return DaskExecutor(client)
    raise AugmentationError(
        "client: expected a distributed.Client, or a pool of concurrent.futures, got "
        f"{client!r}; make one by distributed.Client(…)"
    )
