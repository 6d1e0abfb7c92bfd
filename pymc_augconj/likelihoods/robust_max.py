"""Classes by the largest predictor, with mistakes, by their density.

    p(y | η) = 1 − ε where y = argmax η,    else ε/(K − 1).

There is no augmentation. For *independent* η_j ~ N(m_j, s_j²) the expectation of log p is linear in
the probability q that y is the largest,

    E log p = q log(1 − ε) + (1 − q) log(ε/(K − 1)),
    q = ∫ N(f; m_y, s_y²) Π_{j≠y} Φ((f − m_j)/s_j) df,

so that the variational Gaussian is mean-field across predictors. With t = s_y² + s_j², d = m_y −
m_j and q_j the same integral without class j, under N(m_y − d s_y²/t, s_y² s_j²/t),

    ∂q/∂m_j = −N(d; 0, t) q_j,      ∂q/∂s_j² = ½ ∂²q/∂m_j²  (Price).

Held sites approximate the posterior of predictors that are *not* independent: a common shift of all
predictors does not change the density. Since 1 − q ≤ Σ_{j≠y} P(η_j > η_y), they treat log p as a
sum over rivals j of functions of δ = η_y − η_j. With a = log(1 − ε) − log(ε/(K − 1)) and a residual
variance of s², the function is a Φ(δ/s), and e^{a (Φ(x) − 1)} is close to the distribution function
of a normal variable with its own mean c and variance κ. A site therefore has
Λ = Σ_{j≠y} λ_j (e_y − e_j)(e_y − e_j)ᵀ, with λ_j by expectation propagation for
e^{−a} + (1 − e^{−a}) Φ((δ − c s)/(√κ s)). The variational λ_j is far too large where s is small.

References
----------
Hernández-Lobato, Hernández-Lobato & Dupont (2011), Robust multi-class Gaussian process
classification. NeurIPS.
Matthews, Hensman, Turner & Ghahramani (2015), On sparse variational methods. arXiv:1504.07027.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from pymc_augconj.quadrature.expectation import gaussian_expectation
from pymc_augconj.typing import Array, Index

from .base import Expected, Params, Pattern, refuse_classes
from .contract import MultiDensity, Traits
from .pattern import PredictorInput
from .registry import register

_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)
# The trapezoidal rule over standardised f: its range, its step for an integrand as smooth as a
# normal density (an error of exp(−½ (2π/0.9)²) = 3e-11), the nodes from which single integrals that
# adapt to sharp integrands take over, and how many numbers are worked on at once.
_RANGE, _STEP, _MOST_NODES, _CHUNK = 7.0, 0.9, 128, 200_000
_FAR = 1e4
# Standard deviations of a difference beyond which its sign is certain, to rounding.
_DECIDED = 8.5
# Least part of a precision that a site leaves to the others, and least variance of a difference.
_LEAST_LEFT, _SMALLEST_VAR = 1e-6, 1e-12


@register
class RobustMax(MultiDensity):
    """One class y ∈ {0, …, K − 1}; ``params["epsilon"]`` is the probability of a mistake."""

    name = "Categorical"
    link = "robust-max"
    discrete = True
    traits = Traits(factorises=True, propagates=True, is_bounded=True)
    patterns = (
        Pattern(
            "RobustMaxRV", inputs=("f", "epsilon"), predictors=(PredictorInput("f", classes=True),)
        ),
    )

    def __init__(self, n_predictors: int) -> None:
        self.n_predictors = self.n_classes = n_predictors

    def check(self, y: Array, params: Params) -> str | None:
        return refuse_classes(y, self.n_predictors)

    def _log_levels(self, params: Params) -> tuple[Array, Array]:
        epsilon = params["epsilon"]
        return np.log1p(-epsilon), np.log(epsilon / (self.n_predictors - 1))

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        right, wrong = self._log_levels(params)
        return np.where(np.argmax(eta, axis=0) == y, right, wrong)

    def expected_log_density(self, y: Array, mean: Array, cov: Array, params: Params) -> Expected:
        var = np.einsum("ppn->pn", cov)
        value, d_mean, d_var = self.expected_log_density_apart(y, mean, var, params)
        return value, d_mean, np.einsum("pq,pn->pqn", np.eye(len(mean)), d_var)

    def expected_log_density_apart(
        self, y: Array, mean: Array, var: Array, params: Params
    ) -> Expected:
        right, wrong = self._log_levels(params)
        q, d_mean, d_var = _largest(y.astype(int), mean, var)
        scale = right - wrong
        return wrong + q * scale, scale * d_mean, scale * d_var

    def class_probabilities_apart(self, mean: Array, var: Array, params: Params) -> Array:
        right, wrong = (np.exp(level) for level in self._log_levels(params))
        classes = [np.full(mean.shape[1], k) for k in range(self.n_predictors)]
        return wrong + (right - wrong) * np.stack([_largest(k, mean, var)[0] for k in classes])

    def propagated_sites(
        self,
        y: Array,
        mean: Array,
        cov: Array,
        residual_var: Array,
        sites: tuple[Array, Array],
        params: Params,
    ) -> tuple[Array, Array]:
        K, size = mean.shape
        own, everyone = y.astype(int), np.arange(size)
        rivals = (own + np.arange(1, K)[:, None]) % K
        right, wrong = self._log_levels(params)
        step = right - wrong
        c, kappa = _as_normal(float(np.mean(step)))
        # Cavities of the differences.
        m = mean[own, everyone] - mean[rivals, everyone]
        V = cov[own, own, everyone] + cov[rivals, rivals, everyone]
        V = np.maximum(V - 2.0 * cov[own, rivals, everyone], _SMALLEST_VAR)
        h, lam = -sites[0][rivals, everyone], -sites[1][own, rivals, everyone]
        left = 1.0 / V - lam
        proper = left > _LEAST_LEFT / V
        left, h_left = np.where(proper, left, 1.0 / V), m / V - np.where(proper, h, 0.0)
        # Moments of the tilted distributions.
        s2 = residual_var[own, everyone] + residual_var[rivals, everyone]
        width = np.sqrt(1.0 / left + kappa * s2)
        z = (h_left / left - c * np.sqrt(s2)) / width
        floor = np.exp(-step)
        slope = np.exp(-0.5 * z**2 - _HALF_LOG_2PI) / width
        slope *= (1.0 - floor) / (floor + (1.0 - floor) * ndtr(z))
        curvature = slope * (slope + z / width)
        tilted_mean = (h_left + slope) / left
        precision = left / np.maximum(1.0 - curvature / left, _LEAST_LEFT)
        new = np.maximum(precision - left, 0.0)
        new_h = (left + new) * tilted_mean - h_left
        H, Lam = np.zeros((K, size)), np.zeros((K, K, size))
        H[own, everyone], H[rivals, everyone] = new_h.sum(axis=0), -new_h
        Lam[own, own, everyone], Lam[rivals, rivals, everyone] = new.sum(axis=0), new
        Lam[own, rivals, everyone] = Lam[rivals, own, everyone] = -new
        return H, Lam


def _as_normal(step: float) -> tuple[float, float]:
    """Return mean and variance of the distribution function e^{a (Φ(x) − 1)}, x > −∞."""
    u = (np.arange(1000) + 0.5) / 1000
    weights, x = np.exp(step * (u - 1.0)), ndtri(u)
    weights /= weights.sum()
    c = float(weights @ x)
    return c, float(weights @ x**2) - c**2


def _largest(own: Index, mean: Array, var: Array) -> tuple[Array, Array, Array]:
    """Return P(η_own is the largest) and its derivatives by means and variances."""
    K, size = mean.shape
    everyone, std = np.arange(size), np.sqrt(var)
    # Distance of η_own above the others, in standard deviations of the difference.
    above = (mean[own, everyone] - mean) / np.sqrt(var[own, everyone] + var)
    above[own, everyone] = np.inf
    least = above.min(axis=0)
    # NaN stays NaN.
    q, d_mean, d_var = np.heaviside(least, 0.0), np.zeros((K, size)), np.zeros((K, size))
    # Rivals that may be above it, these first; none where one is above it for certain.
    near = above < _DECIDED
    near[:, least < -_DECIDED] = False
    rivals, counts = np.argsort(above, axis=0), np.count_nonzero(near, axis=0)
    # The integrand's spectrum is at most as wide as that of normal densities with these variances.
    ratios = 1.0 + np.sum((std[own, everyone] / std) ** 2, axis=0, where=near)
    nodes = 8 * np.ceil(_RANGE / (4.0 * _STEP) * np.sqrt(ratios)).astype(int)
    nodes = np.minimum(nodes, 2 * _MOST_NODES)
    for count, length in np.unique([counts[counts > 0], nodes[counts > 0]], axis=1).T:
        which = np.flatnonzero((counts == count) & (nodes == length))
        rule = _largest_adaptively if length > _MOST_NODES else partial(_largest_by_nodes, length)
        step = max(_CHUNK // (count * length), 1)
        for some in np.split(which, range(step, which.size, step)):
            found = rule(own[some], rivals[:count, some], mean[:, some], std[:, some])
            q[some], d_mean[:, some], d_var[:, some] = found
    return q, d_mean, d_var


def _largest_by_nodes(
    count: int, own: Index, rivals: Index, mean: Array, std: Array
) -> tuple[Array, Array, Array]:
    """Return the result of :func:`_largest` by the trapezoidal rule over f, with derivatives.

    ``rivals`` are the classes that η_own is compared with, shape (·, N).
    """
    K, size = mean.shape
    everyone = np.arange(size)
    m, s = mean[rivals, everyone], std[rivals, everyone]
    m_own, s_own = mean[own, everyone], std[own, everyone]
    z = np.linspace(-_RANGE, _RANGE, count)
    weights = np.exp(-0.5 * z**2)
    t = ((m_own - m) / s)[..., None] + (s_own / s)[..., None] * z
    # Far out the product is zero, and rounding of t² all that would be left.
    np.maximum(t, -_FAR, out=t)
    log_each = log_ndtr(t)
    product = np.exp(log_each.sum(axis=0)) * (weights / weights.sum())
    # The product with φ/Φ in the place of one Φ.
    slopes = np.exp(-0.5 * t**2 - log_each - _HALF_LOG_2PI) * product
    by_rival = slopes.sum(axis=-1) / s
    d_mean, d_var = np.zeros((K, size)), np.zeros((K, size))
    d_mean[rivals, everyone] = -by_rival
    d_var[rivals, everyone] = -0.5 * (slopes * t).sum(axis=-1) / s**2
    # A common shift of all predictors changes nothing.
    d_mean[own, everyone] = by_rival.sum(axis=0)
    d_var[own, everyone] = 0.5 * ((slopes @ z) / s).sum(axis=0) / s_own
    return product.sum(axis=-1), d_mean, d_var


def _largest_adaptively(
    own: Index, rivals: Index, mean: Array, std: Array
) -> tuple[Array, Array, Array]:
    """Return the result of :func:`_largest` if η_own varies far more than another predictor."""
    K, size = mean.shape
    everyone = np.arange(size)
    var = std**2

    def product_of(rivals: Index) -> Callable[[Array, Index], Array]:
        """Return Π Φ((f − m_j)/s_j) over the rows of classes j, as a function of f."""

        def product(f: Array, which: Index) -> Array:
            found = np.ones_like(f)
            for j in rivals:
                k = j[which]
                found *= ndtr((f - mean[k, which][:, None]) / std[k, which][:, None])
            return found

        return product

    m_own, v_own = mean[own, everyone], var[own, everyone]
    q, _, d_var_own = gaussian_expectation(product_of(rivals), m_own, v_own)
    d_mean, d_var = np.zeros((K, size)), np.zeros((K, size))
    d_var[own, everyone] = d_var_own
    for i, j in enumerate(rivals):
        m, v = mean[j, everyone], var[j, everyone]
        t, d = v_own + v, m_own - m
        density = np.exp(-0.5 * d**2 / t) / np.sqrt(2.0 * np.pi * t)
        rest, slope, _ = gaussian_expectation(
            product_of(np.delete(rivals, i, axis=0)), m_own - d * v_own / t, v_own * v / t
        )
        d_mean[j, everyone] = -density * rest
        d_var[j, everyone] = -0.5 * density * (d * rest + v_own * slope) / t
    # A common shift of all predictors changes nothing.
    d_mean[own, everyone] = -d_mean.sum(axis=0)
    return q, d_mean, d_var
