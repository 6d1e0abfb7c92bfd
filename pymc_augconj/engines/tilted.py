"""Moments of tilted distributions, p(yᵢ | f)^η N(f | m, v) normalised, for any log-density.

The integrals run over panels of 16 Gauss–Legendre nodes. They start from the mesh of
:mod:`.tilted_mesh`; a panel is bisected until the Legendre coefficients of the density on it have
died out. All sites are worked on at once, in NumPy, through the log-density's values alone.

When has a panel's rule converged? With 16 nodes the coefficients c₀…c₁₅ are known, while the rule
is exact to degree 31. Where the coefficients fall geometrically, cₖ ∼ ρ⁻ᵏ, its error is of order
c₁₅², and it is enough that c₁₅² is small; a kink or step shows as c₁₅ ≫ c₇², and then c₁₅ itself
has to be small. The distribution function at the nodes, which quantile propagation wants, is
the integral of the interpolating polynomial, whose error is of order c₁₅ in either case.

References
----------
Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, section 3.6 (tilted moments).
Zhang, R., Walder, C., Bonilla, E., Rizoiu, M.-A. & Xie, L. (2020). Quantile propagation for
Wasserstein-approximate Gaussian processes. NeurIPS 33.
Wichura (1988), algorithm AS 241, behind Φ⁻¹.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import NDArray
from scipy.special import ndtri

from .site_density import Index, SiteDensity
from .tilted_mesh import make_mesh

__all__ = ["Quadrature", "Tilted", "check_cavities", "tilted_moments"]

Array = NDArray[np.float64]

ORDER = 16
NODES, WEIGHTS = legendre.leggauss(ORDER)
_NODES = NODES[:, None]

# Legendre coefficients from values at the nodes: cₖ = (k + ½) Σⱼ wⱼ Pₖ(xⱼ) gⱼ.
_TO_COEFFICIENTS = (
    (np.arange(ORDER) + 0.5)[:, None] * legendre.legvander(NODES, ORDER - 1).T * WEIGHTS
)
_MIDDLE, _LAST = _TO_COEFFICIENTS[6:8], _TO_COEFFICIENTS[14:16]
# Values at the nodes of ∫₋₁ˣ and ∫ₓ¹ of the interpolating polynomial.
_FROM_LEFT = (
    np.stack(
        [legendre.legval(NODES, legendre.legint(column, lbnd=-1)) for column in np.eye(ORDER)],
        axis=1,
    )
    @ _TO_COEFFICIENTS
)
_FROM_RIGHT = WEIGHTS - _FROM_LEFT

# Error that one panel may have, as a part of the whole; moments are to be good to 1e-8.
TOLERANCE = 1e-11
POINTWISE_TOLERANCE = 2e-9
MAX_ROUNDS = 56
MOST_BAD_PANELS = 24
# A node's part of δ that is left out; 100 is above any z² that float64 knows in its bulk.
NEGLIGIBLE = 1e-14
_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)


@dataclass(frozen=True)
class Quadrature:
    """The nodes on which the tilted moments were taken.

    Attributes
    ----------
    site : ndarray of int, shape (P,)
    f : ndarray, shape (16, P)
        Nodes.
    weights : ndarray, shape (16, P)
        Tilted probabilities of the nodes, which sum to one over the panels of each site.
    size : int
        Number of sites.
    """

    site: Index
    f: Array
    weights: Array
    size: int

    def expect(self, func: Callable[[Array, Index], Array]) -> Array:
        """Return E_tilted[func(f)] of every site, shape (N,); ``func`` as a SiteDensity."""
        terms = np.einsum("ij,ij->j", self.weights, func(self.f, self.site))
        return np.bincount(self.site, terms, minlength=self.size)


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
    quadrature : Quadrature or None
        None for a closed form.
    """

    log_Z: Array
    mean: Array
    var: Array
    third: Array | None = None
    fourth: Array | None = None
    delta: Array | None = None
    quadrature: Quadrature | None = None


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
        return np.where(np.isnan(values), -np.inf, values if power == 1.0 else power * values)

    def log_tilted(u: Array, sites: Index) -> Array:
        return log_likelihood(cavity_mean[sites] + std[sites] * u, sites) - 0.5 * u**2

    with np.errstate(all="ignore"):
        landmarks = (density.landmarks - cavity_mean) / std
        mesh = make_mesh(log_tilted, landmarks)
        panels = _Panels(log_likelihood, mesh, cavity_mean, std, pointwise=delta)
        panels.refine()
    moments = panels.moments(higher)
    if delta:
        moments["delta"] = panels.delta()
    return Tilted(**moments, quadrature=panels.quadrature())


def check_cavities(cavity_mean: Array, cavity_var: Array) -> None:
    """Raise ValueError where a cavity is not a normal distribution."""
    proper = (cavity_var > 0.0) & (cavity_var < np.inf) & np.isfinite(cavity_mean)
    if not proper.all():
        bad = np.flatnonzero(~proper)[0]
        raise ValueError(
            f"site {bad}: expected a proper cavity, got mean {cavity_mean[bad]:.6g} and variance "
            f"{cavity_var[bad]:.6g}; damp the update that led there"
        )


class _Panels:
    """Panels of 16 nodes of all sites, in x = u − centre, bisected until they have converged."""

    def __init__(self, log_likelihood, mesh, cavity_mean, std, *, pointwise):
        self._log_likelihood = log_likelihood
        self._pointwise = pointwise
        self._centre, self._std = mesh.centre, std
        self._origin = cavity_mean + std * mesh.centre
        self._size = mesh.centre.size
        # t relative to its top, without the difference of two large squares.
        self._reference = mesh.top + 0.5 * mesh.centre**2
        self._site, self._start, self._stop = mesh.site, mesh.start, mesh.stop
        self._g, self._x, self._half = self._evaluate(mesh.site, mesh.start, mesh.stop)

    def _evaluate(self, site, start, stop):
        half = 0.5 * (stop - start)
        x = 0.5 * (start + stop) + half * _NODES
        exponent = self._log_likelihood(self._origin[site] + self._std[site] * x, site)
        exponent -= self._reference[site]
        exponent -= x * (self._centre[site] + 0.5 * x)
        return np.exp(exponent, out=exponent), x, half

    def refine(self):
        """Bisect panels until they have converged, or until rounding is all that is left."""
        g, x, half = self._g, self._x, self._half
        site, start, stop = self._site, self._start, self._stop
        self.error = np.zeros(self._size)
        finished = []
        sums_finished = np.zeros((3, self._size))
        for round_ in range(MAX_ROUNDS):
            # Sums so far: good enough to scale the error by, also before they have converged.
            sums = sums_finished + _raw_moments(site, g, x, half, self._size)
            error = self._error(sums, site, g, half, start, stop)
            tolerance = POINTWISE_TOLERANCE if self._pointwise else TOLERANCE
            bad = ~(error <= tolerance)
            # Bisection leaves one bad panel at a kink or step and two at a narrow peak, but every
            # panel where the error is rounding.
            crowded = np.bincount(site[bad], minlength=self._size) > MOST_BAD_PANELS
            bad &= ~crowded[site] & (round_ < MAX_ROUNDS - 1)
            good = ~bad
            np.maximum.at(self.error, site[good], error[good])
            if round_ == 0 and not bad.any():
                break
            part = (site[good], g[:, good], x[:, good], half[good], start[good])
            finished.append(part)
            sums_finished = sums_finished + _raw_moments(*part[:4], self._size)
            site, start, stop = site[bad], start[bad], stop[bad]
            if site.size == 0:
                site, g, x, half, start = (np.concatenate(p, axis=-1) for p in zip(*finished))
                order = np.lexsort((start, site))
                site, g, x, half = site[order], g[:, order], x[:, order], half[order]
                break
            middle = 0.5 * (start + stop)
            site = np.concatenate([site, site])
            start, stop = np.concatenate([start, middle]), np.concatenate([middle, stop])
            g, x, half = self._evaluate(site, start, stop)
        self._site, self._g, self._x, self._half = site, g, x, half

    def _error(self, sums, site, g, half, start, stop):
        total = sums[0]
        mean = sums[1] / total
        var = sums[2] / total - mean**2
        # Second moments weigh what lies far out more.
        distance = np.maximum(np.abs(start - mean[site]), np.abs(stop - mean[site]))
        scale = half * (1.0 + distance**2 / var[site]) / total[site]
        last = np.abs(_LAST @ g).max(axis=0)
        if self._pointwise:
            return scale * last
        middle = np.abs(_MIDDLE @ g).max(axis=0)
        height = np.maximum(g.max(axis=0), np.finfo(float).tiny)
        return scale * np.where(last * height <= middle**2, last**2 / height, last)

    def moments(self, higher):
        """Return the fields of :class:`Tilted`, by name."""
        site, x, half, size = self._site, self._x, self._half, self._size
        total, first, second = _raw_moments(site, self._g, x, half, size)
        mean = first / total
        log_Z = np.log(total) + self._reference - 0.5 * self._centre**2 - _HALF_LOG_2PI
        var = second / total - mean**2
        self._total, self._mean, self._var = total, mean, var
        fields = {
            "log_Z": log_Z,
            "mean": self._origin + self._std * mean,
            "var": self._std**2 * var,
        }
        if higher:
            central = x - mean[site]
            weighted = self._g * central**3
            third = np.bincount(site, half * (WEIGHTS @ weighted), minlength=size) / total
            weighted *= central
            fourth = np.bincount(site, half * (WEIGHTS @ weighted), minlength=size) / total
            fields |= {"third": self._std**3 * third, "fourth": self._std**4 * fourth}
        return fields

    def quadrature(self):
        f = self._origin[self._site] + self._std[self._site] * self._x
        weights = self._g * (WEIGHTS[:, None] * (self._half / self._total[self._site]))
        return Quadrature(self._site, f, weights, self._size)

    def delta(self):
        """Return ½ E[(u − z)²]; the tail that a node's probability is taken from is the nearer."""
        site, size = self._site, self._size
        scale = self._half / self._total[site]
        mass = scale * (WEIGHTS @ self._g)
        rank = np.arange(site.size) - np.searchsorted(site, np.arange(size))[site]
        # One column a site, one row a panel, and an empty row on either side.
        table = np.zeros((rank.max() + 3, size))
        table[rank + 1, site] = mass
        before = np.cumsum(table, axis=0)[rank, site]
        after = np.cumsum(table[::-1], axis=0)[::-1][rank + 2, site]
        below = before + scale * (_FROM_LEFT @ self._g)
        above = after + scale * (_FROM_RIGHT @ self._g)
        weights = WEIGHTS[:, None] * (scale * self._g)
        u = (self._x - self._mean[site]) / np.sqrt(self._var)[site]
        # Φ⁻¹ is what takes the time here, and most outer nodes weigh nothing.
        heavy = weights * (100.0 + u**2) > NEGLIGIBLE
        below, above = below[heavy], above[heavy]
        # Interpolation may leave a tail that is nothing at minus nothing.
        tail = np.maximum(np.minimum(below, above), np.finfo(float).tiny)
        z = np.copysign(ndtri(tail), below - above)
        owner = np.broadcast_to(site, heavy.shape)[heavy]
        return 0.5 * np.bincount(owner, weights[heavy] * (u[heavy] - z) ** 2, minlength=size)


def _raw_moments(site, g, x, half, size):
    weighted = WEIGHTS[:, None] * g
    zeroth = half * weighted.sum(axis=0)
    weighted *= x
    first = half * weighted.sum(axis=0)
    second = half * np.einsum("ij,ij->j", weighted, x)
    return np.stack([np.bincount(site, m, minlength=size) for m in (zeroth, first, second)])
