"""The one check that every sampler of this folder must pass, and that a wrong sampler must fail."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.integrate import cumulative_simpson
from scipy.interpolate import CubicSpline
from scipy.stats import kstest

STANDARD_ERRORS = 5.0
KS_LEVEL = 1e-4


def _z_scores(draws, mean, var, log_laplace):
    """Standard errors between draws and the exact mean, variance and Laplace transform."""

    def z(values, expected):
        error = values.std() / np.sqrt(values.size)
        # The last term: the rounding of a mean whose relative spread is tiny.
        return abs(values.mean() - expected) / (error + 1e-15 * abs(expected))

    scores = {"mean": z(draws, mean), "var": z((draws - mean) ** 2, var)}
    for t in (0.3, 1.0, 3.0):
        scores[f"laplace {t}"] = z(np.exp(-t / mean * draws), np.exp(log_laplace(t / mean)))
    return scores


@pytest.fixture(scope="session")
def disagreements() -> Callable[..., dict[str, float]]:
    """``disagreements(draws, mean, var, log_laplace)``: the scores beyond 5 standard errors."""

    def find(draws, mean, var, log_laplace):
        scores = _z_scores(draws, float(mean), float(var), log_laplace)
        return {name: score for name, score in scores.items() if not score < STANDARD_ERRORS}

    return find


@pytest.fixture(scope="session")
def ks_rejects() -> Callable[..., bool]:
    """``ks_rejects(draws, cdf)``: whether a Kolmogorov–Smirnov test at level 1e-4 rejects."""
    return lambda draws, cdf: kstest(draws, cdf).pvalue < KS_LEVEL


@pytest.fixture(scope="session")
def cdf_from_logpdf() -> Callable[..., Callable]:
    """``cdf_from_logpdf(logpdf, low, high)``: the CDF, by quadrature over log x."""

    def build(logpdf, low, high, points=4001):
        log_x = np.linspace(np.log(low), np.log(high), points)
        density = np.exp(logpdf(np.exp(log_x)) + log_x)
        cumulative = cumulative_simpson(density, x=log_x, initial=0.0)
        assert cumulative[-1] == pytest.approx(1.0, abs=1e-8)
        spline = CubicSpline(log_x, cumulative)
        return lambda x: np.clip(spline(np.clip(np.log(x), log_x[0], log_x[-1])), 0.0, 1.0)

    return build
