"""The continuous density over θ between the points of a design.

The log density relative to N(0, I) in the coordinates z of :mod:`.design` is interpolated by cubic
radial basis functions, and so are sites. It is drawn from by importance resampling of a mixture of
Student-t densities: one about each point of a lattice, or one about the mode of scattered points.
Its integral and moments are taken over a Sobol sequence of that mixture.
"""

from __future__ import annotations

import numpy as np
from scipy.interpolate import RBFInterpolator
from scipy.special import gammaln, logsumexp, ndtri
from scipy.stats import chi2, qmc

from pymc_augconj.typing import Array

from .design import SPACING, Scaling

# Degrees of freedom of the proposals; scales about a point of a lattice, in spacings, and about the
# mode; the weight of the latter beside a lattice.
_FREEDOM, _KERNEL, _WIDE, _SHARE = 8.0, 0.7, 1.1, 0.1
# log2 of the length of the Sobol sequence; candidates for each draw.
_LOG_SOBOL, _CANDIDATES, _FEWEST = 13, 8, 4096


class ThetaDensity:
    """A density over z, and so over θ.

    Parameters
    ----------
    scaling : Scaling
    z : ndarray, shape (n, p)
        The points.
    log_density : ndarray, shape (n,)
        log p(θ) Z(θ), as a density of θ, at the points.
    is_lattice : bool

    Attributes
    ----------
    sample : ndarray, shape (S, p)
        The Sobol sequence.
    sample_weights : ndarray, shape (S,)
        Its weights under the density, of sum one.
    log_mass : float
        log ∫ p(θ) Z(θ) dθ.
    weights : ndarray, shape (n,)
        Of the points, of sum one: those of a trapezoidal rule on a lattice, otherwise those with
        which the mean of what is interpolated is a sum over points, some of which are negative.
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
        uniform = qmc.Sobol(p + 2, seed=0).random_base2(_LOG_SOBOL)
        self.sample = self._place(np.clip(uniform, 1e-12, 1.0 - 1e-12))
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
        stretch = np.sqrt(_FREEDOM / chi2.ppf(uniform[:, 1], _FREEDOM))
        step = ndtri(uniform[:, 2:]) * stretch[:, None]
        return np.asarray(self._centres[which] + self._scales[which, None] * step)

    def propose(self, rng: np.random.Generator, draws: int) -> Array:
        """Return independent proposals, shape (draws, p)."""
        return self._place(np.clip(rng.random((draws, self.z.shape[1] + 2)), 1e-12, 1.0 - 1e-12))

    def draw(self, rng: np.random.Generator, draws: int) -> Array:
        """Return draws from the density, in random order, shape (draws, p)."""
        z = self.propose(rng, max(_CANDIDATES * draws, _FEWEST))
        log_weights = self.log_density(z) - self.log_proposal(z)
        weights = np.exp(log_weights - logsumexp(log_weights))
        # Systematic resampling.
        edges = (rng.random() + np.arange(draws)) / draws
        chosen = np.searchsorted(np.cumsum(weights), edges * weights.sum())
        return z[rng.permutation(np.minimum(chosen, len(z) - 1))]
