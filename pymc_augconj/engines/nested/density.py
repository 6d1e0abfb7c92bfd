"""The points at which θ is tried, and the continuous density over θ between them.

The log density relative to N(0, I) in coordinates z of the points is interpolated by cubic
radial basis functions, and so are sites. It is drawn from by importance resampling of a mixture of
Student-t densities: one about each point of a lattice, or one about the mode of scattered points.
Its integral and moments are taken over a Sobol sequence of that mixture.

Where there are too many hyperparameters to interpolate, the points are that sequence themselves,
and have importance weights. The proposals are, in θ, a copula with skew marginals.

The coordinates z have a posterior of about N(0, I): θ = mode + Σ_j t_j(z_j) v_j along the
eigenvectors v_j of the Hessian at the mode, with

    t(z) = a z + b (√(z² + ¼) − ½),        |b| < a,

which has the slopes a ± b on the two sides of the mode and so accounts for skewness.

Up to three hyperparameters have a lattice, on which the trapezoidal rule converges faster than any
power of the spacing d (for a normal density its error is 2 exp(−2π²/d²)), extended wherever the
density is still large. Up to twelve have the centre, four points on every axis, and a Sobol
sequence of N(0, s²I): about the posterior by skewed normal marginals along the axes of the Hessian.
More have importance weights.

References
----------
Rue, H., Martino, S. & Chopin, N. (2009). Approximate Bayesian inference for latent Gaussian models
by using integrated nested Laplace approximations. JRSS B 71, section 6.5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.interpolate import RBFInterpolator
from scipy.spatial import KDTree
from scipy.special import gammaln, logsumexp, ndtri
from scipy.stats import chi2, qmc

from pymc_augconj.typing import Array, Generator, Index

#: Numbers of hyperparameters.
LARGEST_LATTICE, LARGEST_INTERPOLATED, LARGEST_DESIGN = 3, 12, 40
#: Of the lattice, by the number of hyperparameters; and how far its log density goes down. For the
#: logarithms of gamma variables of shape 3, which are skew, sums over the lattice have means within
#: 0.002, 0.007 and 0.014 standard deviations, and the density between the points within 0.005.
SPACING = {1: 0.75, 2: 1.0, 3: 1.2}
_DROP = {1: 14.0, 2: 6.5, 3: 6.5}
_MOST_POINTS = 500
#: z at which the fall of a normal log density, one, gives the widths; and the largest |b|/a.
REFERENCE, _MOST_SKEW = np.sqrt(2.0), 0.9
# Of points that are scattered: their standard deviation s; and where the others are on each axis,
# far enough out for tails to be interpolated.
_SPREAD, _STARS = 1.25, (-4.5, -2.5, 2.5, 4.5)


@dataclass(frozen=True)
class Scaling:
    """The coordinates z of θ, both of shape (…, p)."""

    #: θ at z = 0, shape (p,).
    mode: Array
    #: Orthonormal columns v_j, shape (p, p).
    axes: Array
    #: a and b, shape (p,).
    width: Array
    skew: Array

    @classmethod
    def of_widths(cls, mode: Array, axes: Array, below: Array, above: Array) -> Scaling:
        """Return the scaling with t(z) = ``above``·z and ``below``·z at z = ±``REFERENCE``."""
        width = 0.5 * (above + below)
        bend = np.sqrt(REFERENCE**2 + 0.25) - 0.5
        skew = 0.5 * (above - below) * REFERENCE / bend
        return cls(mode, axes, width, np.clip(skew, -_MOST_SKEW * width, _MOST_SKEW * width))

    def theta(self, z: Array) -> Array:
        """Return θ, flat, on the unconstrained scale."""
        along = self.width * z + self.skew * (np.sqrt(z**2 + 0.25) - 0.5)
        return np.asarray(self.mode + along @ self.axes.T)

    def log_jacobian(self, z: Array) -> Array:
        """Return log |∂θ/∂z|."""
        slopes = self.width + self.skew * z / np.sqrt(z**2 + 0.25)
        return np.asarray(np.log(slopes).sum(axis=-1))


def lattice(log_density: Callable[[Array], float], p: int) -> Array:
    """Return the points z, (n, p), of the lattice where the density counts, and those around them.

    ``log_density`` is of z, and −∞ where there is none.
    """
    start: tuple[int, ...] = (0,) * p
    values = {start: log_density(np.zeros(p))}
    queue = [start]
    for at in queue:
        if len(values) >= _MOST_POINTS or not values[at] > max(values.values()) - _DROP[p]:
            continue
        for j, step in product(range(p), (-1, 1)):
            to = (*at[:j], at[j] + step, *at[j + 1 :])
            if to not in values:
                values[to] = log_density(SPACING[p] * np.array(to, dtype=float))
                queue.append(to)
    return SPACING[p] * np.array(list(values), dtype=float)


def scattered(p: int) -> Array:
    """Return points z, (n, p), the centre first: on the axes, and a Sobol sequence.

    The latter has five times as many points as a quadratic has coefficients, or more.
    """
    power = int(np.ceil(np.log2(5 * (p + 1) * (p + 2) // 2)))
    uniform = qmc.Sobol(p, seed=0).random_base2(power)
    z = _SPREAD * ndtri(np.clip(uniform, 1e-12, 1.0 - 1e-12))
    return np.vstack([np.zeros((1, p)), *(end * np.eye(p) for end in _STARS), z])


# Degrees of freedom of the proposals; scales about a point of a lattice, in spacings, and about the
# mode; the weight of the latter beside a lattice.
_FREEDOM, _KERNEL, _WIDE, _SHARE = 8.0, 0.7, 1.1, 0.1
# log2 of the length of the Sobol sequence; candidates for each draw.
_LOG_SOBOL, _CANDIDATES, _FEWEST = 13, 8, 4096
# log2 of the number of weighted points.
_LOG_POINTS = 11


class ThetaDensity:
    """A density over z, and so over θ, given log p(θ) Z(θ) as a density of θ at n points z, (n, p).

    ``sample``, (S, p), is the Sobol sequence, with ``sample_weights`` under the density, of sum
    one, and ``log_mass`` = log ∫ p(θ) Z(θ) dθ. ``weights`` of the points, (n,), are those of a
    trapezoidal rule on a lattice, otherwise those with which the mean of what is interpolated is a
    sum over points, some of which are negative; their sum is one.
    """

    def __init__(self, scaling: Scaling, z: Array, log_density: Array, *, is_lattice: bool) -> None:
        self.scaling, self.z, self.is_lattice = scaling, z, is_lattice
        p = z.shape[1]
        self._residual = log_density + 0.5 * np.sum(z**2, axis=1)
        self._centres, self._scales = np.zeros((1, p)), np.array([_WIDE])
        self._shares = np.ones(1)
        mass = log_density + scaling.log_jacobian(z)
        mass = np.exp(mass - mass.max())
        if is_lattice:
            self._centres = np.vstack([self._centres, z])
            self._scales = np.append(_WIDE, np.full(len(z), _KERNEL * SPACING[p]))
            self._shares = np.append(_SHARE, (1.0 - _SHARE) * mass / mass.sum())
        # A lattice may have points along one axis only beside its centre.
        self._interpolate = RBFInterpolator(
            z, np.eye(len(z)), kernel="cubic", degree=1 if is_lattice else 2
        )
        self._reach = SPACING[p] if is_lattice else float(np.sqrt(np.sum(z**2, axis=1).max()))
        self.sample = self._place(_sobol(p, _LOG_SOBOL))
        log_weights = self.log_density(self.sample) - self.log_proposal(self.sample)
        total = float(logsumexp(log_weights))
        self.log_mass = total - np.log(len(log_weights))
        self.sample_weights = np.exp(log_weights - total)
        if not is_lattice:
            mass = self.sample_weights @ self.site_weights(self.sample)
        self.weights = mass / mass.sum()

    def site_weights(self, z: Array) -> Array:
        """Return the weight of each point in what is interpolated at ``z``, shape (S, n)."""
        if not self.is_lattice:
            length = np.sqrt(np.sum(z**2, axis=1, keepdims=True))
            z = z * np.minimum(1.0, self._reach / np.maximum(length, 1e-300))
        return np.asarray(self._interpolate(z))

    def log_density(self, z: Array) -> Array:
        """Return log p(θ) Z(θ) |∂θ/∂z|, interpolated: the density of z up to its integral."""
        low, high = self._residual.min(), self._residual.max()
        residual = np.clip(self.site_weights(z) @ self._residual, low, high)
        found = residual - 0.5 * np.sum(z**2, axis=1) + self.scaling.log_jacobian(z)
        if self.is_lattice:
            # Beyond the points the density is far below that at the mode.
            away = np.abs(z[:, None] - self.z).max(axis=2).min(axis=1)
            found[away > self._reach] = -np.inf
        return np.asarray(found)

    def log_proposal(self, z: Array) -> Array:
        """Return the log density of the proposals, at each row of ``z``."""
        p, nu = z.shape[1], _FREEDOM
        constant = gammaln(0.5 * (nu + p)) - gammaln(0.5 * nu) - 0.5 * p * np.log(nu * np.pi)
        parts = [
            np.log(share)
            + constant
            - p * np.log(scale)
            - 0.5 * (nu + p) * np.log1p(np.sum((z - centre) ** 2, axis=1) / (nu * scale**2))
            for share, centre, scale in zip(self._shares, self._centres, self._scales, strict=True)
            if share > 0.0
        ]
        return np.asarray(logsumexp(parts, axis=0))

    def _place(self, uniform: Array) -> Array:
        """Return proposals for uniform numbers of shape (S, p + 2)."""
        which = np.searchsorted(np.cumsum(self._shares)[:-1], uniform[:, 0], side="right")
        return np.asarray(self._centres[which] + self._scales[which, None] * _student(uniform))

    def propose(self, rng: Generator, draws: int) -> Array:
        """Return independent proposals, shape (draws, p)."""
        return self._place(np.clip(rng.random((draws, self.z.shape[1] + 2)), 1e-12, 1.0 - 1e-12))

    def draw(self, rng: Generator, draws: int) -> Array:
        """Return draws from the density, in random order, shape (draws, p)."""
        z = self.propose(rng, max(_CANDIDATES * draws, _FEWEST))
        log_weights = self.log_density(z) - self.log_proposal(z)
        weights = np.exp(log_weights - logsumexp(log_weights))
        # Systematic resampling.
        edges = (rng.random() + np.arange(draws)) / draws
        chosen = np.searchsorted(np.cumsum(weights), edges * weights.sum())
        return z[rng.permutation(np.minimum(chosen, len(z) - 1))]

    def certified(self, rng: Generator, draws: int) -> tuple[Array, Array]:
        """Return draws, and the log density with which the posterior is compared there."""
        z = self.draw(rng, draws)
        return z, self.log_density(z)


class WeightedPoints(ThetaDensity):
    """Points of :func:`proposals` with importance weights, in place of a continuous density.

    Those at which there is no approximation are left out: the proposals are given that there is.
    """

    def __init__(self, scaling: Scaling, z: Array, log_density: Array) -> None:
        self.scaling, self.z, self.sample = scaling, z, z
        self._centres, self._scales = np.zeros((1, z.shape[1])), np.array([_WIDE])
        self._shares = np.ones(1)
        self._log_density = log_density + scaling.log_jacobian(z)
        log_weights = self._log_density - self.log_proposal(z)
        total = float(logsumexp(log_weights))
        self.log_mass = total - np.log(len(z))
        self.weights = self.sample_weights = np.exp(log_weights - total)

    def _nearest(self, z: Array) -> Index:
        return np.asarray(KDTree(self.z).query(z)[1])

    def site_weights(self, z: Array) -> Array:
        """Return one for the nearest point, (S, n)."""
        return np.asarray(self._nearest(z)[:, None] == np.arange(len(self.z)), dtype=float)

    def log_density(self, z: Array) -> Array:
        """Return log p(θ) Z(θ) |∂θ/∂z| at points."""
        return self._log_density[self._nearest(z)]

    def log_proposal(self, z: Array) -> Array:
        return super().log_proposal(z) + _LOG_POINTS * np.log(2.0) - np.log(len(self.z))

    def propose(self, rng: Generator, draws: int) -> Array:
        """Return different points, ``draws`` of them or all."""
        return self.z[rng.permutation(len(self.z))[:draws]]

    def certified(self, rng: Generator, draws: int) -> tuple[Array, Array]:
        """Return points as they were proposed, and the log density of that."""
        z = self.propose(rng, draws)
        return z, self.log_proposal(z)


def density_of(scaling: Scaling, z: Array, log_density: Array) -> ThetaDensity:
    """Return the density between points that were made for so many hyperparameters."""
    p = z.shape[1]
    if p > LARGEST_INTERPOLATED:
        return WeightedPoints(scaling, z, log_density)
    return ThetaDensity(scaling, z, log_density, is_lattice=p <= LARGEST_LATTICE)


def proposals(p: int) -> Array:
    """Return the points to be weighted, about N(0, I) with heavier tails."""
    return _WIDE * _student(_sobol(p, _LOG_POINTS))


def _sobol(p: int, log_length: int) -> Array:
    uniform = qmc.Sobol(p + 2, seed=0).random_base2(log_length)
    return np.asarray(np.clip(uniform, 1e-12, 1.0 - 1e-12))


def _student(uniform: Array) -> Array:
    stretch = np.sqrt(_FREEDOM / chi2.ppf(uniform[:, 1], _FREEDOM))
    return np.asarray(ndtri(uniform[:, 2:]) * stretch[:, None])
