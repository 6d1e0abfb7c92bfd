"""The contract of a log density for integration over one observation.

A :class:`SiteDensity` is log p(yᵢ | η) for one observed variable, evaluated at any η for any
choice of sites. It needs no derivatives and no log-concavity. ``landmarks`` are places of a narrow
peak, a kink or a singularity, which a grid could miss: the observation for a density in y − η.
"""

from __future__ import annotations

from typing import Protocol

from pymc_augconj.typing import Array, Index

__all__ = ["Index", "SiteDensity"]


class SiteDensity(Protocol):
    """log p(yᵢ | η) of N observations."""

    @property
    def size(self) -> int:
        """N, the number of observations."""
        ...

    @property
    def landmarks(self) -> Array:
        """Values of η where a peak, kink or singularity may sit, shape (L, N); L may be 0."""
        ...

    def __call__(self, eta: Array, sites: Index, /) -> Array:
        """Return log p(y[sites[j]] | eta[..., j]), of the shape of ``eta``, (..., M).

        Parameters
        ----------
        eta : ndarray, shape (..., M)
        sites : ndarray of int, shape (M,)
        """
        ...
