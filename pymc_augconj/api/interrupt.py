"""An interrupt of ``pac.sample``: it stops every chain, and no draw is lost.

PyMC samples chains one after the other in one process. An interrupt ends that which is sampled,
and PyMC goes on with the next; in the end it leaves out the chains that are too short.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from pymc.backends.ndarray import NDArray

from pymc_augconj.results.comparison.fits import DataTree
from pymc_augconj.results.unequal_chains import with_rest

__all__ = ["Chains"]

# What PyMC says where no chain has a draw.
_NO_DRAW = "Not enough samples"


class Chains:
    """The chains of one call, as PyMC's callback: calls the user's, and keeps what it is given.

    Parameters
    ----------
    callback : callable, optional
        The user's.
    """

    def __init__(self, callback: Callable[..., None] | None) -> None:
        self._callback = callback
        self._traces: dict[int, Any] = {}
        # Of the chain that is sampled in this process.
        self._steps_left = 0

    def begin(self, steps: int) -> None:
        """Begin a chain in this process, unless the one before was interrupted.

        Raises
        ------
        KeyboardInterrupt
            Which PyMC takes as the end of this chain.
        """
        if self._steps_left > 0:
            raise KeyboardInterrupt
        self._steps_left = steps

    def __call__(self, trace: Any, draw: Any) -> None:
        """Take note of a step that was recorded."""
        self._traces[draw.chain] = trace
        if self._callback is not None:
            self._callback(trace=trace, draw=draw)
        self._steps_left -= 1

    def run(self, sample: Callable[..., Any], draws: int, **options: Any) -> Any:
        """Return what ``pm.sample`` returns, of interrupted chains with every draw.

        Raises
        ------
        KeyboardInterrupt
            If it was interrupted before there was a draw.
        """
        try:
            found = sample(draws, callback=self, **options)
        except ValueError as error:
            # That of an interrupt, not of a chain.
            if not str(error).startswith(_NO_DRAW) or not self._interrupted(options):
                raise
            raise KeyboardInterrupt("interrupted before the first draw after tuning") from None
        ours = all(isinstance(trace, NDArray) for trace in self._traces.values())
        if not (ours and self._interrupted(options)):
            return found
        tune = max(trace.draws for trace in self._traces.values()) - draws
        numbers = {k: max(len(t) - tune, 0) for k, t in sorted(self._traces.items())}
        made = ", ".join(f"{number} draws of chain {k}" for k, number in numbers.items())
        if isinstance(found, DataTree):
            found = with_rest(found, self._traces, tune)
            rest = " and 'posterior_rest'" if "posterior_rest" in found.children else ""
            kept = f"they are in the group 'posterior'{rest}"
        else:
            kept = f"of which the {type(found).__name__} has {len(found)} of chains {found.chains}"
        warnings.warn(f"interrupted after {made}; {kept}", UserWarning, stacklevel=4)
        return found

    def _interrupted(self, options: Mapping[str, Any]) -> bool:
        short = any(len(t) < t.draws for t in self._traces.values() if isinstance(t, NDArray))
        few = len(self._traces) < (options.get("chains") or 1)
        return short or few or self._steps_left > 0
