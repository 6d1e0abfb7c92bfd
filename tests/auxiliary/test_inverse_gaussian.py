import numpy as np
import pytest
from scipy.stats import invgauss, levy

from pymc_augconj.auxiliary.generalized_inverse_gaussian import (
    logpdf_inverse_gaussian,
    random_inverse_gaussian,
)
from tests.auxiliary.references import (
    log_laplace_inverse_gaussian,
    mean_inverse_gaussian,
    var_inverse_gaussian,
)


@pytest.mark.parametrize(("mean", "shape"), [(1, 1), (0.01, 3), (5, 0.5), (1e-6, 1e6), (300, 1e5)])
def test_draws_have_the_law(mean, shape, disagreements, ks_rejects):
    draws = random_inverse_gaussian(np.random.default_rng(1), mean, np.full(200_000, shape))
    distribution = (
        mean_inverse_gaussian(mean, shape),
        var_inverse_gaussian(mean, shape),
        lambda t: log_laplace_inverse_gaussian(mean, shape, t),
    )
    assert not disagreements(draws, *distribution)
    if mean > 1e-3:  # below, SciPy's distribution function is that of a constant
        assert not ks_rejects(draws, invgauss(mean / shape, scale=shape).cdf)
    wrong = mean + np.sqrt(1.1) * (draws - mean)
    assert disagreements(wrong, *distribution)


@pytest.mark.parametrize("mean", [1e3, 1e8, 1e12, 1e15, 1e300, np.inf])
def test_large_and_infinite_means(mean, ks_rejects):
    draws = random_inverse_gaussian(np.random.default_rng(2), mean, np.full(100_000, 2.0))
    assert np.all(draws > 0)
    cdf = levy(scale=2.0).cdf if mean > 1e10 else invgauss(mean / 2.0, scale=2.0).cdf
    assert not ks_rejects(draws, cdf)
    assert not ks_rejects(draws[draws > 10.0], lambda x: 1 - (1 - cdf(x)) / (1 - cdf(10.0)))


def test_extreme_ratios_stay_positive_and_finite():
    rng = np.random.default_rng(3)
    for mean, shape in ((1e-300, 1.0), (1e-150, 1e-300), (1e150, 1e300), (1.0, 1e300), (1.0, 1e-9)):
        draws = random_inverse_gaussian(rng, mean, np.full(1000, shape))
        assert np.all((draws > 0) & np.isfinite(draws)), (mean, shape)


def test_density_against_scipy_and_its_limits():
    x = np.geomspace(1e-3, 50, 100)
    expected = invgauss(2.0 / 3.0, scale=3.0).logpdf(x)
    np.testing.assert_allclose(logpdf_inverse_gaussian(x, 2.0, 3.0), expected, rtol=1e-11)
    x = x[x > 0.01]  # SciPy's underflows before
    expected = levy(scale=3.0).logpdf(x)
    np.testing.assert_allclose(logpdf_inverse_gaussian(x, np.inf, 3.0), expected, rtol=1e-12)
    edges = logpdf_inverse_gaussian([-1.0, 0.0, 1e-320, np.inf, np.nan], 2.0, 3.0)
    assert np.all(edges[:4] == -np.inf)
    assert np.isnan(edges[4])


@pytest.mark.parametrize(("mean", "shape"), [(1.0, 1.0), (2.0, 30.0)])
def test_laplace_transform_is_that_of_the_density(mean, shape):
    log_x, step = np.linspace(-15, 8, 20001, retstep=True)
    x = np.exp(log_x)
    log_mass = logpdf_inverse_gaussian(x, mean, shape) + log_x + np.log(step)
    assert np.exp(log_mass).sum() == pytest.approx(1.0, abs=1e-10)
    for t in (0.5, 4.0, -0.1 * shape / mean**2):
        expected = log_laplace_inverse_gaussian(mean, shape, t)
        assert np.log(np.exp(log_mass - t * x).sum()) == pytest.approx(expected, abs=1e-9)


def test_laplace_transform_limits():
    assert log_laplace_inverse_gaussian(np.inf, 2.0, 3.0) == pytest.approx(-np.sqrt(12.0))
    assert log_laplace_inverse_gaussian(np.inf, 2.0, 0.0) == 0.0
    assert log_laplace_inverse_gaussian(1.0, 1.0, 1e-12) == pytest.approx(-1e-12, rel=1e-11)
    assert log_laplace_inverse_gaussian(1.0, 1.0, -0.51) == np.inf


def test_shapes_seed_and_refusals():
    def draw(mean, shape):
        return random_inverse_gaussian(np.random.default_rng(5), mean, shape)

    assert draw(1.0, 2.0).shape == ()
    assert draw([1.0, 2.0], [[1.0], [2.0], [3.0]]).shape == (3, 2)
    np.testing.assert_array_equal(draw(np.ones(9), 2.0), draw(np.ones(9), 2.0))
    with pytest.raises(ValueError, match=r"expected a mean > 0 .*, got mean\[1\] = 0.0"):
        draw([1.0, 0.0], 1.0)
    with pytest.raises(ValueError, match=r"got mean = nan"):
        draw(np.nan, 1.0)
    with pytest.raises(ValueError, match=r"expected a finite shape > 0, got shape = inf"):
        draw(1.0, np.inf)
    assert var_inverse_gaussian(np.inf, 1.0) == np.inf
    np.testing.assert_array_equal(mean_inverse_gaussian(3.0, [1.0, 2.0]), [3.0, 3.0])
