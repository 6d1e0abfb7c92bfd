"""Points at which hyperparameters are tried, in coordinates z with a posterior of about N(0, I).

θ = mode + Σ_j t_j(z_j) v_j along the eigenvectors v_j of the Hessian at the mode, with

    t(z) = a z + b (√(z² + ¼) − ½),        |b| < a,

which has the slopes a ± b on the two sides of the mode and so accounts for skewness.

Up to three hyperparameters have a lattice, on which the trapezoidal rule converges faster than any
power of the spacing d (for a normal density its error is 2 exp(−2π²/d²)), extended wherever the
density is still large. Up to twelve have the centre, four points on every axis, and a Sobol
sequence of N(0, s²I): about the posterior by skewed normal marginals along the axes of the Hessian.
More have importance weights, see :mod:`.density`.

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
from scipy.special import ndtri
from scipy.stats import qmc

from pymc_augconj.typing import Array

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
    """The coordinates z of θ, both of shape (…, p).

    Attributes
    ----------
    mode : ndarray, shape (p,)
    axes : ndarray, shape (p, p)
        Orthonormal columns v_j.
    width, skew : ndarray, shape (p,)
        a and b.
    """

    mode: Array
    axes: Array
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
