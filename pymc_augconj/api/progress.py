"""The progress bar of ``pac.fit``, and the user's callback."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from pymc_augconj.engines.base import FitState

__all__ = ["FitProgress"]


class FitProgress:
    """Shows a progress bar and calls the user's callback, as a context manager.

    Parameters
    ----------
    method : str
    callback : callable, optional
    show : bool
        Whether to show the bar.
    bound : bool
        Whether the method's evidence is a bound.
    last : int, optional
        Number of the last iteration, if it is known.
    """

    def __init__(
        self,
        method: str,
        callback: Callable[[FitState], object] | None,
        *,
        show: bool,
        bound: bool,
        last: int | None = None,
    ) -> None:
        self._callback, self._show, self._method = callback, show, method
        self._value = "bound" if bound else "evidence"
        self._of = "" if last is None else f" of {last}"
        self._progress: Progress | None = None

    def __enter__(self) -> None:
        if self._show:
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}"),
                TextColumn("iteration {task.fields[count]}" + self._of),
                TextColumn(self._value + " {task.fields[bound]:.4f}"),
                TextColumn("residual {task.fields[residual]:.1e}"),
                TimeElapsedColumn(),
            )
            self._progress = Progress(*columns)
            self._task = self._progress.add_task(
                self._method, total=None, visible=False, count=0, bound=np.nan, residual=np.nan
            )
            self._progress.start()

    def __call__(self, state: FitState) -> None:
        """Show an iteration, and call the callback."""
        if self._progress is not None:
            self._progress.update(
                self._task,
                visible=True,  # only now, so that a refused model leaves no line of NaN
                count=state.count,
                bound=state.iteration.bound,
                residual=state.iteration.residual,
            )
        if self._callback is not None:
            self._callback(state)

    def __exit__(self, *details: object) -> None:
        if self._progress is not None:
            self._progress.stop()
