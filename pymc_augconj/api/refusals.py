"""Hyperparameter values that a chain refused because rounding ruins their log evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from pymc.stats.convergence import SamplerWarning, WarningType

from pymc_augconj.block import LatentBlock
from pymc_augconj.engines.gibbs.state import GibbsInfo
from pymc_augconj.errors import UncertainEvidenceError

# A chain ends where more than this part of its updates met refused values, once there are some.
_MANY, _FEWEST = 0.05, 100

_ADVICE = (
    "give them priors that exclude such values (under a flat prior the posterior may be improper), "
    "bring priors and data to similar scales, or start elsewhere (initvals=…)"
)


class Refusals:
    """Refused values of one chain after tuning; ``names`` are the user's, by entry of the point."""

    def __init__(self, names: Mapping[str, str], blocks: Sequence[LatentBlock]) -> None:
        self._names = names
        self._latents = " and ".join(repr(block.name) for block in blocks)
        self.total = GibbsInfo()

    def check_start(self, info: GibbsInfo) -> None:
        """Raise UncertainEvidenceError if the first step could not be made."""
        if info.stays:
            raise UncertainEvidenceError(self._sentence(info, "at the start of the chain"))

    def count(self, info: GibbsInfo, *, last: bool, steps: int = 1) -> SamplerWarning | None:
        """Add those of some equal steps; raise if they are too many, warn of any at the last."""
        total = self.total
        if info.refusals or info.stays:
            total.refusals += info.refusals
            total.stays += info.stays
            for name, (least, largest) in info.refused.items():
                known = total.refused.get(name, (np.inf, -np.inf))
                total.refused[name] = min(least, known[0]), max(largest, known[1])
        total.updates += steps * max(info.updates, 1)
        met = max(total.refusals, total.stays)
        if not met:
            return None
        share = f"in {met} of {total.updates} updates"
        if total.updates >= _FEWEST and met > _MANY * total.updates:
            raise UncertainEvidenceError(self._sentence(total, share))
        if not last:
            return None
        return SamplerWarning(
            WarningType.BAD_ACCEPTANCE, f"Refused values: {self._sentence(total, share)}", "warn"
        )

    def _sentence(self, info: GibbsInfo, when: str) -> str:
        ranges = [
            (f"{name!r}, PyMC's transformed {self._names[name]!r}," if name != self._names[name]
             else repr(name)) + f" from {least:.3g} to {largest:.3g}"
            for name, (least, largest) in info.refused.items()
        ]  # fmt: skip
        where = f" at {', '.join(ranges)}" if ranges else ""
        return (
            f"latent variables {self._latents}: expected a log evidence with a rounding error of "
            f"at most one nat, found a larger one {when}{where}, in whichever way it is computed, "
            f"so that such values were not accepted; {_ADVICE}"
        )
