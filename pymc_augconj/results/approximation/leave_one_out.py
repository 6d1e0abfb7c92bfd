"""Leave-one-out cross-validation by cavities, with importance weights over hyperparameters alone.

Given θ, p(yᵢ | y₋ᵢ, θ) is the integral of p(yᵢ | ηᵢ) under the cavity, the Gaussian that the sites
of the other observations leave. As p(θ | y₋ᵢ) ∝ p(θ | y) / p(yᵢ | y₋ᵢ, θ),

    1 / p(yᵢ | y₋ᵢ) = E[ 1 / p(yᵢ | y₋ᵢ, θ) | y ],

over the continuous density of θ, between whose points log p(yᵢ | y₋ᵢ, θ) is interpolated.

References
----------
Vehtari, A., Mononen, T., Tolvanen, V., Sivula, T. & Winther, O. (2016). Bayesian leave-one-out
cross-validation approximations for Gaussian latent variable models. JMLR 17.
Vehtari, A., Simpson, D., Gelman, A., Yao, Y. & Gabry, J. (2024). Pareto smoothed importance
sampling. JMLR 25.
"""

from __future__ import annotations

import numpy as np
from arviz_stats.base import array_stats
from arviz_stats.utils import ELPDDataLOO
from scipy.special import logsumexp

from pymc_augconj.engines.nested.importance import NestedPosterior
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.model import Site
from pymc_augconj.typing import Array

from .layout import Labels

# Largest k̂ by which ArviZ calls a value good, and observations that are done at once.
_GOOD_K, _AT_ONCE = 0.7, 500
_DRAWS = 4000


def leave_one_out(
    nested: NestedPosterior, site: Site, labels: Labels, shape: tuple[int, ...]
) -> ELPDDataLOO:
    """Return ArviZ's result for the observations of a site, of this ``shape``."""
    left_out, fitted, kept = [], [], []
    for k in range(len(nested.x)):
        try:
            given = nested.given(nested.x[k], nested.h[k], nested.lam[k])
            found = nested.log_predictive(given, site)
        except (NotPositiveDefiniteError, FloatingPointError):
            # Of a point far out, which counts little.
            continue
        kept.append(k)
        left_out.append(found[0])
        fitted.append(found[1])
    density = nested.density
    assert density is not None  # without hyperparameters there is no mixture
    used = density.sample_weights > 0.0
    log_weights = np.log(density.sample_weights[used])
    weights = density.site_weights(density.sample[used])[:, kept]
    weights /= weights.sum(axis=1, keepdims=True)
    elpd, lpd, k_hat = np.empty((3, site.size))
    # Draws of θ given all observations, whose ratios k̂ is of.
    edges = (np.arange(_DRAWS) + 0.5) / _DRAWS
    draws = np.searchsorted(np.cumsum(density.sample_weights[used]), edges).clip(max=used.sum() - 1)
    for start in range(0, site.size, _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        outside = _interpolated(weights, np.array(left_out)[:, part])
        elpd[part] = -logsumexp(log_weights[:, None] - outside, axis=0)
        inside = _interpolated(weights, np.array(fitted)[:, part])
        lpd[part] = logsumexp(log_weights[:, None] + inside, axis=0)
        k_hat[part] = [pareto_k(-column) for column in outside[draws].T]
    values = elpd.reshape(shape)
    return ELPDDataLOO(
        elpd=float(elpd.sum()),
        se=float(np.sqrt(elpd.size * np.var(elpd))),
        p=float(np.sum(lpd - elpd)),
        n_samples=int(np.count_nonzero(used)),
        n_data_points=elpd.size,
        scale="log",
        warning=bool((k_hat > _GOOD_K).any()),
        good_k=_GOOD_K,
        elpd_i=labels.array(site.name, values),
        pareto_k=labels.array(site.name, k_hat.reshape(shape)),
        approx_posterior=True,
    )


def _interpolated(weights: Array, values: Array) -> Array:
    """Return values at the points, (n, N), interpolated within their range, (S, N)."""
    return np.clip(weights @ values, values.min(axis=0), values.max(axis=0))


def pareto_k(log_ratios: Array) -> float:
    """Return k̂; −∞ where all ratios are equal, and ∞ where one is not a number or all are zero."""
    if np.isnan(log_ratios).any() or not np.isfinite(log_ratios.max(initial=-np.inf)):
        return np.inf
    if np.ptp(log_ratios) < 1e-12:
        return -np.inf
    lowest = log_ratios[np.isfinite(log_ratios)].min()
    # ArviZ takes log likelihoods that are left out, minus the log ratios.
    return float(array_stats.psislw(-np.maximum(log_ratios, lowest))[1])
