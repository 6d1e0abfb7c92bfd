"""Sampling in a thread, while the caller continues."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from typing import Any

from pymc_augconj.results.comparison.fits import DataTree


class BackgroundRun:
    """Chains that are being sampled; ``pac.sample(…, blocking=False)`` returns it.

    Parameters
    ----------
    sample : callable
        Samples and returns the draws.
    arguments : dict
        Keywords of ``sample``. Defaults are no progress bar, and processes that are not forked,
        since a fork while other threads run may deadlock.
    """

    def __init__(self, sample: Callable[..., DataTree], arguments: dict[str, Any]) -> None:
        if arguments.get("client") is not None:
            raise TypeError("pac.sample: expected no 'client' with blocking=False; leave it out")
        self._callback = arguments.get("callback")
        defaults: dict[str, Any] = {"progressbar": False}
        if "forkserver" in multiprocessing.get_all_start_methods():
            defaults["mp_ctx"] = "forkserver"
        self._sample, self._arguments = sample, {**defaults, **arguments, "callback": self._look}
        self._progress: dict[int, float] = {}
        self._aborted = threading.Event()
        self._tree: DataTree | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pac.sample", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        parts = [f"chain {chain} {part:.0%}" for chain, part in sorted(self._progress.items())]
        state = "running" if self._thread.is_alive() else "ended"
        return f"<pac.sample, {state}: {', '.join(parts) or 'no step'}>"

    def progress(self) -> dict[int, float]:
        """Return the completed share of each chain's steps, tuning included, by chain number.

        Chains without a step are left out.
        """
        return dict(self._progress)

    def abort(self) -> None:
        """Stop all chains after their current steps, as an interrupt does; see :meth:`result`."""
        self._aborted.set()

    def result(self, timeout: float | None = None) -> DataTree:
        """Wait for the end, and return the result of ``pac.sample`` or raise its exception.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most.

        Raises
        ------
        TimeoutError
            If sampling has not ended by then; sampling continues.
        RuntimeError
            If the run was aborted before the first draw.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"expected draws within {timeout} s, found {self!r}; wait longer")
        if isinstance(self._error, KeyboardInterrupt):
            raise RuntimeError("aborted before the first draw after tuning") from self._error
        if self._error is not None:
            raise self._error
        assert self._tree is not None  # without an error
        return self._tree

    def _run(self) -> None:
        try:
            self._tree = self._sample(**self._arguments)
        except BaseException as error:
            self._error = error

    def _look(self, trace: Any, draw: Any) -> None:
        # Traces of PyMC that are no arrays have no number of steps.
        steps = getattr(trace, "draws", None)
        self._progress[draw.chain] = (draw.draw_idx + 1) / steps if steps else 0.0
        if self._callback is not None:
            self._callback(trace=trace, draw=draw)
        if self._aborted.is_set():
            raise KeyboardInterrupt
