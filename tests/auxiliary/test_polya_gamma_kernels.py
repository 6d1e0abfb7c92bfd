"""The inequalities that make the two rejection samplers exact."""

import numpy as np
import pytest

from pymc_augconj.auxiliary.polya_gamma import kernels
from pymc_augconj.auxiliary.polya_gamma.distribution import logpdf_polya_gamma

# The saddlepoint kernel's least shape: at c = 0, h log 2 expected jumps.
LEAST_SHAPE = kernels.MAX_JUMPS_BY_THINNING / kernels.LOG_2


def no_jump_probability(x, h):
    """R(x), from the density: f(x) over 2ʰ times the Lévy density."""
    levy = np.log(h) - 0.5 * np.log(2 * np.pi * x**3) - h * h / (2 * x)
    return np.exp(logpdf_polya_gamma(x / 4, h, 0.0) - np.log(4) - h * np.log(2) - levy)


@pytest.mark.parametrize("h", [0.01, 0.2, 0.7, 1.0, 1.44])
def test_no_jump_probability_is_its_series_and_at_most_one(h):
    x = np.geomspace(1e-3, 39.0, 200)
    coefficient, series = 1.0, np.ones_like(x)
    for n in range(1, 60):
        coefficient *= (h + n - 1) / n
        term = coefficient * (2 * n + h) / h * np.exp(-2 * n * (n + h) / x)
        series += (-1) ** n * term
    reference = no_jump_probability(x, h)
    np.testing.assert_allclose(series, reference, atol=1e-13)
    assert np.all(reference <= 1 + 1e-12)
    assert np.all(np.diff(reference) <= 1e-12)


def test_bounds_of_unit_acceptance_hold_within_every_cell_and_are_tight():
    low, high = kernels.UNIT_BOUNDS.T
    cells = np.arange(low.size)
    within = (cells + np.linspace(1e-6, 1.0 - 1e-6, 5)[:, None]) / kernels.CELLS_PER_UNIT
    reference = no_jump_probability(1.0 / np.maximum(within, 1e-2), 1.0)
    assert np.all(low <= reference + 1e-13)
    assert np.all(reference <= high + 1e-13)
    # One cell off, they would not hold.
    assert np.any(low[1:] > reference[:, :-1])
    assert np.mean(high - low) < 0.01


@pytest.mark.parametrize("h", [1e-6, 0.01, 0.3, 1.0, 1.44, 3.0, 10.0, 100.0, 1e4])
def test_never_beyond_is_never(h):
    assert no_jump_probability(np.array([kernels.NEVER_BEYOND + 3 * h]), h)[0] < 1e-17


def saddle(u):
    return np.array([kernels.saddle(value) for value in np.ravel(u)]).T


@pytest.mark.parametrize("z", [0.0, 0.05, 0.3, 0.8, 1.2, 1.6, 2.0, 3.0, 5.0, 8.0])
def test_normal_envelope_holds_and_is_tight(z):
    u0 = z * z
    alpha, beta, D2 = kernels.coordinate(u0)
    tau = np.concatenate([-np.geomspace(1e-2, 50, 200), np.geomspace(1e-2, 0.999 / alpha, 200)])
    u = (u0 + kernels.EDGE) * (1 - alpha * tau) ** (-1 / alpha) - kernels.EDGE
    # Nearer to the ends the formulas below, not the inequality, run out of digits.
    kept = (u > -kernels.EDGE + 1e-8) & (u < 1e6)
    tau, u = tau[kept], u[kept]
    K, xi, K2 = saddle(u)
    (K0,), _, (K20,) = saddle(u0)
    divergence = K0 - K + 0.5 * (u0 - u) * xi
    log_jacobian = 0.5 * np.log(K2 / K20) - (1 + 1 / alpha) * np.log(1 - alpha * tau)
    for h in (1.0, LEAST_SHAPE, 6.0, 30.0, 1000.0):
        log_density = log_jacobian - h * divergence
        log_envelope = beta * tau - 0.5 * (h - kernels.SLACK) * D2 * tau**2
        assert np.all(log_density <= log_envelope + 1e-12 * h)
    # An envelope without the slack would be crossed: the test sees what it must.
    assert np.any(log_jacobian - divergence > beta * tau - 0.5 * D2 * tau**2 + 1e-6)


@pytest.mark.parametrize("h", [LEAST_SHAPE, 5.0, 12.3, 60.0, 1000.0])
def test_saddlepoint_correction_lies_in_its_gap_and_is_the_density(h):
    u = -kernels.EDGE + np.geomspace(1e-2, 1e4, 120)
    correction = np.array([kernels.density_over_saddlepoint(value, h) for value in u])
    assert np.all(correction <= 1 + 1e-11)
    assert np.all(correction >= 1 - 1 / (12 * h))
    K, xi, K2 = saddle(u)
    log_saddlepoint = h * (K + 0.5 * u * xi) - 0.5 * np.log(2 * np.pi * h * K2)
    log_density = logpdf_polya_gamma(h * xi / 4, h, 0.0) - np.log(4)
    np.testing.assert_allclose(np.log(correction), log_density - log_saddlepoint, atol=1e-10 * h)


def test_saddle_is_smooth_where_its_series_begins():
    for u in (0.01, -0.01):
        inside, outside = saddle([u * (1 - 1e-12), u * (1 + 1e-12)]).T
        np.testing.assert_allclose(inside, outside, rtol=1e-11)
    inside, outside = kernels.coordinate(0.01 * (1 - 1e-12)), kernels.coordinate(0.01 * (1 + 1e-12))
    np.testing.assert_allclose(inside, outside, rtol=1e-9)


def test_kernels_agree_where_both_apply():
    from scipy.stats import ks_2samp

    rng, n = np.random.default_rng(4), 100_000
    one, two = np.empty(n), np.empty(n)
    kernels.fill_by_thinning(rng, np.full(n, 4.3), np.full(n, 0.6), one)
    kernels.fill_by_saddlepoint(rng, np.full(n, 4.3), np.full(n, 0.6), two)
    assert ks_2samp(one, two).pvalue > 1e-4
