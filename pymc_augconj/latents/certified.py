"""Conditioning in the first of several spaces with an accurate log evidence.

Every space estimates the rounding error of its log evidence. The accurate space depends on θ: a
covariance of 10⁵⁸ may have a well-scaled precision, and wide effects, too many for a border, that
dominate a covariance do not dominate the precision of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pymc_augconj.errors import NotPositiveDefiniteError, UncertainEvidenceError
from pymc_augconj.linalg.rounding import LARGEST_ERROR, SMALL_ERROR

from .affine import AffinePosterior, Conditioner
from .joint import LatentPrior
from .rows import SiteSum

__all__ = ["CertifiedConditioner"]

# A space that is refused so many times, and in this share of times, is not preferred any more.
_FEWEST_REFUSED, _OFTEN = 5, 0.005


class CertifiedConditioner:
    """Conditions in one space, and in others where its log evidence has no digits.

    Parameters
    ----------
    ways : sequence of callable
        Each makes a :class:`.Conditioner` when it is first used; the preferred one first.
    """

    def __init__(self, ways: Sequence[Callable[[], Conditioner]]) -> None:
        self._makers = list(ways)
        self._ways: list[Conditioner] = []
        # Posteriors by the preferred space alone since it was settled, and those without digits.
        self._asked = self._refused = 0

    @property
    def preferred(self) -> Conditioner:
        """The space that is tried first."""
        if not self._ways:
            self._ways.append(self._makers[0]())
        return self._ways[0]

    @property
    def differentiable(self) -> bool:
        """See :class:`.Conditioner`."""
        return self.preferred.differentiable

    def compile(self) -> None:
        """See :class:`.Conditioner`."""
        self.preferred.compile()

    def posterior(
        self,
        prior: LatentPrior,
        sites: SiteSum,
        *,
        alone: bool = False,
        settle: bool = False,
        for_draws: bool = False,
    ) -> AffinePosterior:
        """Return the posterior of the latents; valid until another factorisation.

        Parameters
        ----------
        prior : LatentPrior
        sites : SiteSum
        alone : bool
            Whether to use the preferred space only.
        settle : bool
            Whether to prefer from now on the space that the posterior is made in.
        for_draws : bool
            Whether only the factor need have digits, and not the log evidence.

        Raises
        ------
        UncertainEvidenceError
            If the estimated rounding error of the log evidence is above one nat, or no space has a
            posterior.
        """
        if settle:
            self._reconsider()
        self._asked += alone
        failure: NotPositiveDefiniteError | None = None
        best, least = None, np.inf
        for which, make in enumerate(self._makers[:1] if alone else self._makers):
            if which == len(self._ways):
                self._ways.append(make())
            try:
                posterior = self._ways[which].posterior(prior, sites)
            except NotPositiveDefiniteError as refusal:
                failure = failure or refusal
                continue
            error = posterior.factor_error if for_draws else posterior.error
            if error <= SMALL_ERROR:
                if settle and which:
                    self._makers.insert(0, self._makers.pop(which))
                    self._ways.insert(0, self._ways.pop(which))
                return posterior
            if error < least:
                best, least = posterior, error
        if best is None or least > LARGEST_ERROR:
            self._refused += alone
            found = failure or f"about {least:.1g}"
            names = " and ".join(repr(b.block.name) for b in prior.blocks)
            raise UncertainEvidenceError(
                f"latent variables {names}: expected a log evidence with a rounding error of at "
                f"most {LARGEST_ERROR:g} nat, found {found}; give them priors of more similar "
                "scales, or start elsewhere (initvals=…)"
            ) from failure
        return best

    def _reconsider(self) -> None:
        """Try the preferred space last from now on, where it often had no digits when alone."""
        often = self._refused >= _FEWEST_REFUSED and self._refused > _OFTEN * self._asked
        self._asked = self._refused = 0
        if often and len(self._makers) > 1:
            self._makers.append(self._makers.pop(0))
            # The ways of the others are made when they are asked.
            self._ways = []
