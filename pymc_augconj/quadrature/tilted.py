"""Moments of tilted distributions, p(yᵢ | f)^η N(f | m, v) normalised, for any log-density.

The integrals run over panels of 16 Gauss–Legendre nodes (:mod:`.panels`), which start from
the mesh of :mod:`.mesh` and are bisected until they have converged. All sites are integrated
together, from values of the log density alone.

References
----------
Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, section 3.6 (tilted moments).
Zhang, R., Walder, C., Bonilla, E., Rizoiu, M.-A. & Xie, L. (2020). Quantile propagation for
Wasserstein-approximate Gaussian processes. NeurIPS 33.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from pymc_augconj.typing import Array, Index

from .mesh import make_mesh
from .panels import Panels, Quadrature

__all__ = ["SiteDensity", "Tilted", "check_cavities", "tilted_moments"]


class SiteDensity(Protocol):
    """log p(yᵢ | η) of N observations, at any η for any choice of sites.

    It needs no derivatives and no log-concavity. ``landmarks`` are places of a narrow peak, a kink
    or a singularity, which a grid could miss: the observation for a density in y − η.
    """

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


@dataclass(frozen=True)
class Tilted:
    """Moments of the tilted distributions of N sites, each of shape (N,).

    Attributes
    ----------
    log_Z : ndarray
        log ∫ p(y | f)^η N(f | m, v) df.
    mean, var : ndarray
    third, fourth : ndarray or None
        Central moments E[(f − mean)³] and E[(f − mean)⁴], where asked for.
    delta : ndarray or None
        δ = ½ E[(u − z)²] with u the standardised f and z = Φ⁻¹(F(f)), where asked for.
    error : ndarray or None
        Estimated relative error of log Ẑ and of the moments; None for a closed form. A large one
        means that the log density itself is rounded that coarsely.
    panels : Panels or None
        Panels of the integrals; None for a closed form.
    """

    log_Z: Array
    mean: Array
    var: Array
    third: Array | None = None
    fourth: Array | None = None
    delta: Array | None = None
    error: Array | None = None
    panels: Panels | None = field(default=None, repr=False)

    @property
    def quadrature(self) -> Quadrature | None:
        """The nodes and weights; None for a closed form."""
        return None if self.panels is None else self.panels.quadrature()


def tilted_moments(
    density: SiteDensity,
    cavity_mean: Array,
    cavity_var: Array,
    *,
    power: float = 1.0,
    higher: bool = False,
    delta: bool = False,
) -> Tilted:
    """Return log Ẑ, mean and variance of every tilted distribution, by adaptive quadrature.

    Parameters
    ----------
    density : SiteDensity
        log p(yᵢ | f) of N observations.
    cavity_mean, cavity_var : ndarray, shape (N,)
        m and v > 0.
    power : float
        η, the power of the density.
    higher : bool
        Whether to give the third and fourth central moments.
    delta : bool
        Whether to give δ of quantile propagation.

    Returns
    -------
    Tilted
        To a relative error of about 1e-8: log Ẑ absolutely, the mean relative to the tilted
        standard deviation, δ absolutely. Modes are found where a landmark or a geometric scan
        about the cavity's mean leads to them; a narrow one elsewhere would be missed.

    Raises
    ------
    ValueError
        If a cavity is not proper.
    FloatingPointError
        If a tilted density has no maximum, or its integral does not converge.
    """
    check_cavities(cavity_mean, cavity_var)
    std = np.sqrt(cavity_var)

    def log_likelihood(f: Array, sites: Index) -> Array:
        values = density(f, sites)
        # Far out, rounding may turn 0/0 into an infinite density.
        nothing = np.isnan(values) | (values == np.inf)
        return np.where(nothing, -np.inf, values if power == 1.0 else power * values)

    def log_tilted(u: Array, sites: Index) -> Array:
        return log_likelihood(cavity_mean[sites] + std[sites] * u, sites) - 0.5 * u**2

    with np.errstate(all="ignore"):
        landmarks = (density.landmarks - cavity_mean) / std
        mesh = make_mesh(log_tilted, landmarks)
        panels = Panels(log_likelihood, mesh, cavity_mean, std)
        panels.refine()
        moments = panels.moments(higher)
    if delta:
        moments["delta"] = panels.delta()
    return Tilted(**moments, error=panels.error, panels=panels)


def check_cavities(cavity_mean: Array, cavity_var: Array) -> None:
    """Raise ValueError where a cavity is not a normal distribution."""
    proper = (cavity_var > 0.0) & (cavity_var < np.inf) & np.isfinite(cavity_mean)
    if not proper.all():
        bad = np.flatnonzero(~proper)[0]
        raise ValueError(
            f"site {bad}: expected a proper cavity, got mean {cavity_mean[bad]:.6g} and variance "
            f"{cavity_var[bad]:.6g}; damp the update that led there"
        )
