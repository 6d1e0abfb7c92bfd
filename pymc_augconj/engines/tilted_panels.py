"""Integrals over panels of 16 Gauss–Legendre nodes, bisected until they have converged.

When has a panel's rule converged? With 16 nodes the coefficients c₀…c₁₅ are known, while the rule
is exact to degree 31. Where the coefficients fall geometrically, cₖ ∼ ρ⁻ᵏ, its error is of order
c₁₅², and it is enough that c₁₅² is small; a kink or step shows as c₁₅ ≫ c₇², and then c₁₅ itself
has to be small. The distribution function at the nodes, which quantile propagation wants, is
the integral of the interpolating polynomial, whose error is of order c₁₅ in either case.

References
----------
Wichura (1988), algorithm AS 241, behind Φ⁻¹.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import NDArray
from scipy.special import ndtri

from .site_density import Index
from .tilted_mesh import Mesh

__all__ = ["Panels", "Quadrature"]

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
POINTWISE_TOLERANCE = 1e-8
DELTA_TOLERANCE = 1e-9
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


class Panels:
    """Panels of 16 nodes of all sites, in x = u − centre, bisected until they have converged."""

    def __init__(
        self,
        log_likelihood: Callable[[Array, Index], Array],
        mesh: Mesh,
        cavity_mean: Array,
        std: Array,
    ):
        self._log_likelihood = log_likelihood
        self._centre, self._std = mesh.centre, std
        self._origin = cavity_mean + std * mesh.centre
        self._size = mesh.centre.size
        # t relative to its top, without the difference of two large squares.
        self._reference = mesh.top + 0.5 * mesh.centre**2
        self._site = mesh.site
        self._g, self._x, self._half = self._evaluate(mesh.site, mesh.start, mesh.stop)
        self.error = np.zeros(self._size)

    def _evaluate(self, site, start, stop):
        half = 0.5 * (stop - start)
        x = 0.5 * (start + stop) + half * _NODES
        exponent = self._log_likelihood(self._origin[site] + self._std[site] * x, site)
        exponent -= self._reference[site]
        exponent -= x * (self._centre[site] + 0.5 * x)
        return np.exp(exponent, out=exponent), x, half

    def refine(self, *, pointwise: bool = False) -> None:
        """Bisect panels until they have converged, or until rounding is all that is left.

        ``pointwise`` asks for the interpolating polynomials to have converged, too.
        """
        site, g, x, half = self._site, self._g, self._x, self._half
        tolerance = POINTWISE_TOLERANCE if pointwise else TOLERANCE
        self.error = np.zeros(self._size)
        finished = []
        sums_finished = np.zeros((3, self._size))
        for round_ in range(MAX_ROUNDS):
            # Sums so far: good enough to scale the error by, also before they have converged.
            sums = sums_finished + _raw_moments(site, g, x, half, self._size)
            bad, error = self._bad(site, self._errors(sums, site, g, x, half, pointwise), tolerance)
            if round_ == MAX_ROUNDS - 1:
                bad[:] = False
            good = ~bad
            self.error += np.bincount(site[good], error[good], minlength=self._size)
            if round_ == 0 and not bad.any():
                return
            part = site[good], g[:, good], x[:, good], half[good]
            finished.append(part)
            sums_finished = sums_finished + _raw_moments(*part, self._size)
            if not bad.any():
                break
            site, g, x, half = self._bisect(site[bad], x[:, bad], half[bad])
        parts = (np.concatenate(p, axis=-1) for p in zip(*finished, strict=True))
        self._site, self._g, self._x, self._half = _in_order(*parts)

    def _bad(self, site: Index, error: Array, tolerance: float) -> tuple[Array, Array]:
        bad = ~(error <= tolerance)
        # Bisection leaves one bad panel at a kink or step and two at a narrow peak, but every
        # panel where the error is rounding.
        crowded = np.bincount(site[bad], minlength=self._size) > MOST_BAD_PANELS
        return bad & ~crowded[site], error

    def _bisect(self, site: Index, x: Array, half: Array):
        middle = x.mean(axis=0)
        twice = np.concatenate([site, site])
        start, stop = (middle - half, middle), (middle, middle + half)
        return twice, *self._evaluate(twice, np.concatenate(start), np.concatenate(stop))

    def _errors(self, sums, site, g, x, half, pointwise):
        total = sums[0]
        mean = sums[1] / total
        var = sums[2] / total - mean**2
        # Second moments weigh what lies far out more.
        distance = np.maximum(np.abs(x[0] - mean[site]), np.abs(x[-1] - mean[site]))
        scale = half * (1.0 + distance**2 / var[site]) / total[site]
        if pointwise:
            return scale * np.abs(_LAST @ g).max(axis=0)
        return scale * _rule_error(g)

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

    def delta(self) -> Array:
        """Return ½ E[(u − z)²]; panels are bisected until its own integrand has converged, too.

        z has a logarithm near its edge where a step leaves little mass beyond it.
        """
        with np.errstate(all="ignore"):
            self.refine(pointwise=True)
            self.moments(higher=False)
            result = np.zeros(self._size)
            site, g, x, half = self._site, self._g, self._x, self._half
            for round_ in range(MAX_ROUNDS):
                terms = self._delta_integrand(site, g, x, half)
                scale = half / self._total[site]
                bad, _ = self._bad(site, scale * _rule_error(terms), DELTA_TOLERANCE)
                open_ = np.zeros(self._size, dtype=bool)
                if round_ < MAX_ROUNDS - 1:
                    open_[site[bad]] = True
                done = ~open_[site]
                parts = (scale * (WEIGHTS @ terms))[done]
                result += 0.5 * np.bincount(site[done], parts, minlength=self._size)
                if not open_.any():
                    break
                kept = ~done & ~bad
                old = site[kept], g[:, kept], x[:, kept], half[kept]
                new = self._bisect(site[bad], x[:, bad], half[bad])
                pairs = (np.concatenate(p, axis=-1) for p in zip(old, new, strict=True))
                site, g, x, half = _in_order(*pairs)
        return result

    def _delta_integrand(self, site, g, x, half):
        """Return g (u − z)²; the tail that a node's probability is taken from is the nearer."""
        scale = half / self._total[site]
        mass = scale * (WEIGHTS @ g)
        where = np.cumsum(np.append(True, site[1:] != site[:-1])) - 1
        first = np.flatnonzero(np.append(True, site[1:] != site[:-1]))
        rank = np.arange(site.size) - first[where]
        # One column a site, one row a panel, and an empty row on either side.
        table = np.zeros((rank.max() + 3, first.size))
        table[rank + 1, where] = mass
        before = np.cumsum(table, axis=0)[rank, where]
        after = np.cumsum(table[::-1], axis=0)[::-1][rank + 2, where]
        below = before + scale * (_FROM_LEFT @ g)
        above = after + scale * (_FROM_RIGHT @ g)
        u = (x - self._mean[site]) / np.sqrt(self._var)[site]
        # Φ⁻¹ is what takes the time here, and most outer nodes weigh nothing.
        heavy = WEIGHTS[:, None] * (scale * g) * (100.0 + u**2) > NEGLIGIBLE
        below, above = below[heavy], above[heavy]
        # Interpolation may leave a tail that is nothing at minus nothing.
        tail = np.maximum(np.minimum(below, above), np.finfo(float).tiny)
        z = np.copysign(ndtri(tail), below - above)
        terms = np.zeros_like(g)
        terms[heavy] = g[heavy] * (u[heavy] - z) ** 2
        return terms


def _in_order(site, g, x, half):
    """Return panels sorted by site and position."""
    order = np.lexsort((x[0], site))
    return site[order], g[:, order], x[:, order], half[order]


def _rule_error(g):
    """Return the error of the rule for each panel's mean, from the Legendre coefficients."""
    last, middle = np.abs(_LAST @ g).max(axis=0), np.abs(_MIDDLE @ g).max(axis=0)
    height = np.maximum(g.max(axis=0), np.finfo(float).tiny)
    return np.where(last * height <= middle**2, last**2 / height, last)


def _raw_moments(site, g, x, half, size):
    weighted = WEIGHTS[:, None] * g
    zeroth = half * weighted.sum(axis=0)
    weighted *= x
    first = half * weighted.sum(axis=0)
    second = half * np.einsum("ij,ij->j", weighted, x)
    return np.stack([np.bincount(site, m, minlength=size) for m in (zeroth, first, second)])
