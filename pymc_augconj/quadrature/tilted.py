"""Moments of tilted distributions, p(yᵢ | f)^η N(f | m, v) normalised, for any log-density.

The integrals run over panels of 16 Gauss–Legendre nodes, which start from
the mesh of :mod:`.mesh` and are bisected until they have converged. All sites are integrated
together, from values of the log density alone.

A panel's 16 nodes give the coefficients c₀…c₁₅, and the rule is exact to degree 31. Where the
coefficients fall geometrically, cₖ ∼ ρ⁻ᵏ, the error is of order c₁₅²; a kink or step shows as
c₁₅ ≫ c₇², and the error is of order c₁₅. The distribution function at the nodes, for quantile
propagation, is the integral of the interpolating polynomial; its error is always of order c₁₅.

References
----------
Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, section 3.6 (tilted moments).
Zhang, R., Walder, C., Bonilla, E., Rizoiu, M.-A. & Xie, L. (2020). Quantile propagation for
Wasserstein-approximate Gaussian processes. NeurIPS 33.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from pymc_augconj.typing import Array, Index, Mask

from .expectation import NODES, TO_COEFFICIENTS, WEIGHTS, Integrand
from .mesh import Mesh, make_mesh

PanelArrays = tuple[Index, Array, Array, Array]

_NODES = NODES[:, None]
_MIDDLE, _LAST = TO_COEFFICIENTS[6:8], TO_COEFFICIENTS[14:16]

# Tolerated error of one panel relative to the whole, for moments accurate to 1e-8.
TOLERANCE = 1e-11
POINTWISE_TOLERANCE = 1e-8
DELTA_TOLERANCE = 1e-9
MAX_ROUNDS = 56
MOST_BAD_PANELS = 24
_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)


class Panels:
    """Panels of 16 nodes of all sites, in x = u − centre, bisected until they have converged."""

    def __init__(
        self, log_likelihood: Integrand, mesh: Mesh, cavity_mean: Array, std: Array
    ) -> None:
        self._log_likelihood = log_likelihood
        self._centre, self._std = mesh.centre, std
        self._origin = cavity_mean + std * mesh.centre
        self._size = mesh.centre.size
        # t relative to its top, without the difference of two large squares.
        self._reference = mesh.top + 0.5 * mesh.centre**2
        self._site = mesh.site
        self._g, self._x, self._half = self._evaluate(mesh.site, mesh.start, mesh.stop)
        self.error = np.zeros(self._size)

    def _evaluate(self, site: Index, start: Array, stop: Array) -> tuple[Array, Array, Array]:
        half = 0.5 * (stop - start)
        x = 0.5 * (start + stop) + half * _NODES
        exponent = self._log_likelihood(self._origin[site] + self._std[site] * x, site)
        exponent -= self._reference[site]
        exponent -= x * (self._centre[site] + 0.5 * x)
        return np.exp(exponent, out=exponent), x, half

    def refine(self, *, pointwise: bool = False) -> None:
        """Bisect panels until they have converged, or until only rounding remains.

        ``pointwise`` also requires that interpolating polynomials of converged panels converge.
        """
        site, g, x, half = self._site, self._g, self._x, self._half
        tolerance = POINTWISE_TOLERANCE if pointwise else TOLERANCE
        self.error = np.zeros(self._size)
        finished = []
        sums_finished = np.zeros((3, self._size))
        for round_ in range(MAX_ROUNDS):
            if pointwise:
                sums = self._sums
            else:
                # Moments so far: good enough to scale the error before convergence.
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
            if not bad.any():
                break
            if not pointwise:
                sums_finished = sums_finished + _raw_moments(*part, self._size)
            site, g, x, half = self._bisect(site[bad], x[:, bad], half[bad])
        parts = (np.concatenate(p, axis=-1) for p in zip(*finished, strict=True))
        self._site, self._g, self._x, self._half = _in_order(*parts)

    def _bad(self, site: Index, error: Array, tolerance: float) -> tuple[Mask, Array]:
        bad = ~(error <= tolerance)
        # Bisection leaves one bad panel at a kink or step and two at a narrow peak, but every
        # panel where the error is rounding.
        crowded = np.bincount(site[bad], minlength=self._size) > MOST_BAD_PANELS
        return bad & ~crowded[site], error

    def _bisect(self, site: Index, x: Array, half: Array) -> PanelArrays:
        middle = x.mean(axis=0)
        twice = np.concatenate([site, site])
        start, stop = (middle - half, middle), (middle, middle + half)
        return twice, *self._evaluate(twice, np.concatenate(start), np.concatenate(stop))

    def _errors(
        self, sums: Array, site: Index, g: Array, x: Array, half: Array, pointwise: bool
    ) -> Array:
        total = sums[0]
        mean = sums[1] / total
        var = sums[2] / total - mean**2
        # Second moments give more weight to large distances.
        distance = np.maximum(np.abs(x[0] - mean[site]), np.abs(x[-1] - mean[site]))
        scale = half * (1.0 + distance**2 / var[site]) / total[site]
        if pointwise:
            return scale * np.abs(_LAST @ g).max(axis=0)
        return scale * _rule_error(g)

    def moments(self, higher: bool) -> dict[str, Any]:
        """Return the fields of :class:`Tilted`, by name."""
        site, x, half, size = self._site, self._x, self._half, self._size
        self._sums = _raw_moments(site, self._g, x, half, size)
        total, first, second = self._sums
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

    @cached_property
    def _nodes(self) -> tuple[Index, Array, Array]:
        """The site of each panel, and nodes f of the panels with their tilted probabilities."""
        f = self._origin[self._site] + self._std[self._site] * self._x
        weights = self._g * (WEIGHTS[:, None] * (self._half / self._total[self._site]))
        return self._site, f, weights

    def expect(self, func: Integrand) -> Array:
        """Return E_tilted[func(f)], (N,); ``func`` as a SiteDensity. Call :meth:`moments` first.

        Nodes of weight zero do not count: a log density may be infinite there.
        """
        site, f, weights = self._nodes
        values = np.where(weights != 0.0, func(f, site), 0.0)
        terms = np.einsum("ij,ij->j", weights, values)
        return np.bincount(site, terms, minlength=self._size)

    def delta(self) -> Array:
        """Return ½ E[(u − z)²], bisecting panels until its integrand has converged.

        z is logarithmic at an edge of f beyond which a step leaves little mass.
        """
        # Imported here, as nothing else needs Numba.
        from .quantile_shift import fill_delta

        with np.errstate(all="ignore"):
            self.refine(pointwise=True)
            result, std = np.zeros(self._size), np.sqrt(self._var)
            site, g, x, half = self._site, self._g, self._x, self._half
            for round_ in range(MAX_ROUNDS):
                parts, error = np.empty_like(half), np.empty_like(half)
                fill_delta(site, g, x, half, self._total, self._mean, std, parts, error)
                bad, _ = self._bad(site, error, DELTA_TOLERANCE)
                open_ = np.zeros(self._size, dtype=bool)
                if round_ < MAX_ROUNDS - 1:
                    open_[site[bad]] = True
                done = ~open_[site]
                result += 0.5 * np.bincount(site[done], parts[done], minlength=self._size)
                if not open_.any():
                    break
                kept = ~done & ~bad
                old = site[kept], g[:, kept], x[:, kept], half[kept]
                new = self._bisect(site[bad], x[:, bad], half[bad])
                pairs = (np.concatenate(p, axis=-1) for p in zip(old, new, strict=True))
                site, g, x, half = _in_order(*pairs)
        return result


def _in_order(site: Index, g: Array, x: Array, half: Array) -> PanelArrays:
    """Return panels sorted by site and position."""
    order = np.lexsort((x[0], site))
    return site[order], g[:, order], x[:, order], half[order]


def _rule_error(g: Array) -> Array:
    """Return the error of the rule for each panel's mean, from the Legendre coefficients."""
    last, middle = np.abs(_LAST @ g).max(axis=0), np.abs(_MIDDLE @ g).max(axis=0)
    height = np.maximum(g.max(axis=0), np.finfo(float).tiny)
    return np.where(last * height <= middle**2, last**2 / height, last)


def _raw_moments(site: Index, g: Array, x: Array, half: Array, size: int) -> Array:
    weighted = WEIGHTS[:, None] * g
    zeroth = half * weighted.sum(axis=0)
    weighted *= x
    first = half * weighted.sum(axis=0)
    second = half * np.einsum("ij,ij->j", weighted, x)
    return np.stack([np.bincount(site, m, minlength=size) for m in (zeroth, first, second)])


class SiteDensity(Protocol):
    """log p(yᵢ | η) of N observations, at any η for any choice of sites.

    It needs no derivatives and no log-concavity. ``landmarks`` are values of η near a narrow peak,
    a kink or a singularity, which a grid could miss: the observation for a density in y − η.
    """

    @property
    def size(self) -> int:
        """N, the number of observations."""

    @property
    def landmarks(self) -> Array:
        """Values of η where a peak, kink or singularity may sit, shape (L, N); L may be 0."""

    def __call__(self, eta: Array, sites: Index, /) -> Array:
        """Return log p(y[sites[j]] | eta[..., j]), of the shape of ``eta``, (..., M)."""


@dataclass(frozen=True)
class Tilted:
    """Moments of the tilted distributions of N sites, each of shape (N,)."""

    #: log ∫ p(y | f)^η N(f | m, v) df.
    log_Z: Array
    mean: Array
    var: Array
    #: Central moments E[(f − mean)³] and E[(f − mean)⁴], where asked for.
    third: Array | None = None
    fourth: Array | None = None
    #: δ = ½ E[(u − z)²] with u the standardised f and z = Φ⁻¹(F(f)), where asked for.
    delta: Array | None = None
    #: Estimated relative error of log Ẑ and of the moments; None for a closed form. A large error
    #: means that the log density itself has this rounding error.
    error: Array | None = None
    #: Panels of the integrals; None for a closed form.
    panels: Panels | None = field(default=None, repr=False)


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

    ``density`` is log p(yᵢ | f) of N observations, ``power`` its η; cavities are N(m, v), v > 0,
    (N,). ``higher`` asks for the third and fourth central moments too, ``delta`` for δ of quantile
    propagation. The relative error is about 1e-8: log Ẑ and δ absolutely, the mean relative to the
    tilted standard deviation. The search finds modes from the landmarks and from a geometric scan
    about the cavity's mean; it would miss a narrow mode elsewhere. Raises ValueError if a cavity is
    not proper; FloatingPointError if a tilted density has no maximum, or its integral does not
    converge.
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
