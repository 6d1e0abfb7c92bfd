"""Inversion and table against the closed forms.

Kolmogorov–Smirnov tests have level 1e-4 each, and there are about fifty: were the seeds not fixed,
one run in 200 would raise a false alarm. Other Monte Carlo comparisons allow 5 standard errors.
"""

import numpy as np
import pytest
from scipy.special import erfc
from scipy.stats import gamma, invgauss

from pymc_augconj.auxiliary.generalized_inverse_gaussian import logpdf_generalized_inverse_gaussian
from pymc_augconj.auxiliary.laplace_transform.distribution import TiltedDistribution
from pymc_augconj.auxiliary.laplace_transform.inversion import Sites
from pymc_augconj.auxiliary.laplace_transform.quantiles import (
    quantile_tilted,
)
from pymc_augconj.auxiliary.laplace_transform.table_sampler import TiltedSampler
from pymc_augconj.auxiliary.polya_gamma.distribution import logpdf_polya_gamma
from tests.auxiliary.references import cdf_tilted, random_tilted

DRAWS = 10_000
U = np.concatenate(([1e-10, 1e-8, 1e-6, 1e-4, 1e-2], np.linspace(0.03, 0.97, 48)))
U = np.concatenate((U, 1.0 - U[:5]))


def log_phi_laplace(s, b=0.7):
    return -np.sqrt(s) / b


def log_phi_student(s, nu=4.0, sigma=1.3):
    return -0.5 * (nu + 1.0) * np.log1p(s / (nu * sigma**2))


def log_phi_matern(s, a=3.0):
    root = np.sqrt(a * s)
    return np.log1p(root) - root


def log_phi_logit(s):
    root = np.sqrt(s)  # −log cosh(root/2), which must not overflow
    return np.log(2.0) - 0.5 * root - np.log1p(np.exp(-root))


def gamma_law(shape, scale=1.0):
    return lambda s: -shape * np.log1p(s * scale)


def laplace_cdf(x, r, b=0.7):
    shape = 1.0 / (2.0 * b * b)
    if r == 0.0:
        return erfc(np.sqrt(0.5 * shape / x))
    mean = 1.0 / (2.0 * b * np.sqrt(r))
    return invgauss.cdf(x, mean / shape, scale=shape)


def student_cdf(x, r, nu=4.0, sigma=1.3):
    return gamma.cdf(x, 0.5 * (nu + 1.0), scale=1.0 / (nu * sigma**2 + r))


def matern_logpdf(x, r, a=3.0):
    return logpdf_generalized_inverse_gaussian(x, 1.5, 2.0 * r, 0.5 * a)


def logit_logpdf(x, r):
    """ω is PG(1, √r)/2, as cosh(√r/2)⁻¹ = E exp(−r PG/2)."""
    return logpdf_polya_gamma(2.0 * x, 1.0, np.sqrt(r)) + np.log(2.0)


FAMILIES = {
    "laplace": (log_phi_laplace, lambda x, r: laplace_cdf(x, r)),
    "student": (log_phi_student, lambda x, r: student_cdf(x, r)),
    "matern": (log_phi_matern, matern_logpdf),
    "logit": (log_phi_logit, logit_logpdf),
}


def draw(path, rng, log_phi, r):
    if path == "inversion":
        return random_tilted(rng, log_phi, r)
    sampler = TiltedSampler(log_phi)
    x = sampler.random(rng, r)
    assert sampler.fallbacks == 0
    return x


def closed_cdf(family, r, draws, cdf_from_logpdf):
    function = FAMILIES[family][1]
    if not function.__name__.endswith("logpdf"):
        return lambda x: function(x, r)
    return cdf_from_logpdf(lambda x: function(x, r), draws.min() * 0.2, draws.max() * 50.0)


@pytest.mark.parametrize("path", ["inversion", "table"])
@pytest.mark.parametrize("family", FAMILIES)
def test_draws_have_the_closed_form(family, path, ks_rejects, cdf_from_logpdf):
    rng = np.random.default_rng(20)
    for c in (0.05, 0.4, 1.0, 3.0):
        draws = draw(path, rng, FAMILIES[family][0], np.full(DRAWS, c * c))
        assert not ks_rejects(draws, closed_cdf(family, c * c, draws, cdf_from_logpdf)), c


@pytest.mark.parametrize("path", ["inversion", "table"])
def test_each_site_has_its_own_tilt(path, ks_rejects):
    """The negative control: a tilt off by a few per cent is found out."""
    rng = np.random.default_rng(21)
    c = rng.standard_t(3, 4 * DRAWS)
    draws = draw(path, rng, log_phi_student, c * c)
    assert not ks_rejects(student_cdf(draws, c * c), lambda u: u)
    assert ks_rejects(student_cdf(draws, 1.15 * c * c), lambda u: u)
    assert ks_rejects(student_cdf(draws, 0.0), lambda u: u)


@pytest.mark.parametrize("path", ["inversion", "table"])
@pytest.mark.parametrize("r", [0.0, 1e-12, 1e-3, 1.0, 1e2, 1e4, 1e6, 1e12])
def test_the_distribution_function_of_a_quantile_is_u(r, path):
    distributions = {shape: gamma_law(shape) for shape in (0.05, 0.5, 2.5, 11.0, 25.0, 100.0, 1e4)}
    cases = [
        (log_phi, lambda x, s=s: gamma.cdf(x, s, scale=1 / (1 + r)))
        for s, log_phi in distributions.items()
    ]
    if r < 1e6:  # beyond, SciPy's inverse Gaussian is the less accurate one
        cases.append((log_phi_laplace, lambda x: laplace_cdf(x, r)))
    for log_phi, cdf in cases:
        if path == "inversion":
            x = quantile_tilted(U, log_phi, r)
        else:
            sampler = TiltedSampler(log_phi)
            x = sampler.quantile(np.tile(U, 2), r)[: U.size]
        assert np.all(np.diff(x[5:-5]) > 0.0)
        np.testing.assert_allclose(cdf(x), U, rtol=0, atol=5e-9)
        np.testing.assert_allclose(cdf_tilted(x, log_phi, r), U, rtol=0, atol=5e-9)


def test_newtons_iteration_ends_where_its_step_is_zero():
    u = 0.7579238376445712  # the first evaluation at this quantile gives u itself
    assert laplace_cdf(quantile_tilted(u, log_phi_laplace, 0.0), 0.0) == pytest.approx(u, abs=5e-9)


@pytest.mark.parametrize(
    "log_phi", [log_phi_matern, log_phi_logit, lambda s: 1.0 - (1.0 + s) ** 0.3]
)
def test_table_and_inversion_transform_a_uniform_alike(log_phi):
    rng = np.random.default_rng(22)
    r = rng.standard_t(2, 4000) ** 2
    distribution, u = TiltedDistribution(log_phi), rng.random(4000)
    u[:10] = U[:5].tolist() + U[-5:].tolist()
    x = TiltedSampler(distribution).quantile(u, r)
    np.testing.assert_allclose(cdf_tilted(x, distribution, r), u, rtol=0, atol=1e-8)
    np.testing.assert_allclose(
        cdf_tilted(quantile_tilted(u, distribution, r), distribution, r), u, rtol=0, atol=5e-9
    )


def method(log_phi, r):
    sites = Sites(TiltedDistribution(log_phi), np.array([r]))
    named = {"normal": sites.is_normal, "fourier": sites.is_fourier, "euler": sites.is_wide}
    return next((name for name, which in named.items() if which[0]), "narrow euler")


def test_nothing_changes_at_a_change_of_method():
    """On both sides of each switch the exact F of the quantiles is u: far below what draws see."""
    u = np.linspace(1e-4, 1.0 - 1e-4, 400)
    seen = set()
    for shape in (10.9, 11.3, 2.4e5, 2.6e5):  # CV 0.3, skewness 4e-3
        seen.add(method(gamma_law(shape), 1.0))
        error = gamma.cdf(quantile_tilted(u, gamma_law(shape), 1.0), shape, scale=0.5) - u
        assert np.abs(error).max() < 5e-9, shape
        seen.add(method(gamma_law(shape), 1e-9))  # no upper Chernoff bound there
        error = gamma.cdf(quantile_tilted(u, gamma_law(shape), 1e-9), shape) - u
        assert np.abs(error).max() < 1e-12 * shape + 5e-9, shape  # the rounding of log φ
    assert seen == {"normal", "fourier", "euler", "narrow euler"}


@pytest.mark.parametrize("path", ["inversion", "table"])
def test_moments_where_the_variation_is_small(path):
    """CV 0.05 to 1e-7: the mean to its rounding, and the first four standardised moments."""
    rng = np.random.default_rng(23)
    for c in (100.0, 1e3, 1e5, 1e8, 1e14):
        # Laplace: CV² = b/c.
        r, mean, shape = c * c, 1.0 / (2 * 0.7 * c), 1.0 / (2 * 0.7**2)
        std = np.sqrt(mean**3 / shape)
        sampler = TiltedSampler(log_phi_laplace)
        x = (
            sampler.random if path == "table" else lambda g, r: random_tilted(g, log_phi_laplace, r)
        )(rng, np.full(DRAWS, r))
        z = (x - mean) / std
        skewness, excess = 3.0 * std / mean, 15.0 * (std / mean) ** 2
        for power, expected in ((1, 0.0), (2, 1.0), (3, skewness), (4, 3.0 + excess)):
            error = (z**power).std() / np.sqrt(DRAWS)
            assert abs((z**power).mean() - expected) < 5.0 * error + 1e-8, (c, power)


@pytest.mark.parametrize("path", ["inversion", "table"])
@pytest.mark.parametrize("r", [1e-12, 1e-6, 1e3, 1e12])
def test_laplace_transform_at_extreme_tilts(path, r):
    """E exp(−tω) = φ(r + t)/φ(r) at t about the inverse mean, for distributions of every kind."""
    rng = np.random.default_rng(24)
    distributions = [log_phi_matern, log_phi_logit, gamma_law(0.1), lambda s: -(s**0.4)]
    distributions += [lambda s: 1.0 - (1.0 + s) ** 0.3, lambda s: -2.0 * s - np.sqrt(s)]
    for i, log_phi in enumerate(distributions):
        x = (
            TiltedSampler(log_phi).random(rng, np.full(DRAWS, r))
            if path == "table"
            else (random_tilted(rng, log_phi, np.full(DRAWS, r)))
        )
        assert np.all(np.isfinite(x) & (x >= 0.0))
        for t in (0.3 / np.median(x), 3.0 / np.median(x)):
            values = np.exp(-t * x)
            expected = np.exp(log_phi(np.array([r + t + 0j])) - log_phi(np.array([r + 0j]))).real[0]
            # At r = 1e12 and a shift of 2 the difference of logs is rounded.
            tolerance = 5.0 * values.std() / np.sqrt(x.size) + 1e-12 + 1e-15 * r * (i == 5)
            assert abs(values.mean() - expected) < tolerance, i


@pytest.mark.parametrize("path", ["inversion", "table"])
def test_atom_at_zero(path, ks_rejects):
    rng = np.random.default_rng(25)
    for r in (0.0, 0.5, 30.0):
        x = draw(path, rng, lambda s: np.log(0.3 + 0.7 / (1.0 + s)), np.full(DRAWS, r))
        atom = 0.3 / (0.3 + 0.7 / (1.0 + r))
        error = np.sqrt(atom * (1.0 - atom) / DRAWS)
        assert abs((x == 0.0).mean() - atom) < 5.0 * error
        assert not ks_rejects(x[x > 0.0], gamma(1.0, scale=1.0 / (1.0 + r)).cdf)


@pytest.mark.parametrize("path", ["inversion", "table"])
def test_infinite_density_infinite_mean_and_an_end_of_the_support(path, ks_rejects):
    rng = np.random.default_rng(26)
    x = draw(path, rng, gamma_law(0.05), np.full(DRAWS, 1.0))
    assert not ks_rejects(x, gamma(0.05, scale=0.5).cdf)
    x = draw(path, rng, log_phi_laplace, np.zeros(DRAWS))
    assert not ks_rejects(x, lambda x: laplace_cdf(x, 0.0))
    x = draw(path, rng, lambda s: -3.0 * s - 1.5 * np.log1p(s), np.full(DRAWS, 0.5))
    assert x.min() >= 3.0
    assert not ks_rejects(x - 3.0, gamma(1.5, scale=1 / 1.5).cdf)
    # An infinite density at an end above zero; the table may decline.
    x = TiltedSampler(lambda s: -s - 0.5 * np.log1p(s)).random(rng, np.full(DRAWS, 0.5))
    assert not ks_rejects(x - 1.0, gamma(0.5, scale=1 / 1.5).cdf)
    x = draw(path, rng, lambda s: -2.0 * s, np.full(200, 0.5))
    np.testing.assert_allclose(x, 2.0, rtol=1e-12)


def test_a_narrow_part_of_a_wide_law(ks_rejects):
    """Euler's first rule is too short here; the sites that need it get a longer one."""

    def log_phi(s):
        return np.log(0.5 * np.exp(-0.7 * np.log1p(s)) + 0.5 * np.exp(-80 * np.log1p(s / 800)))

    r = 0.3
    weight = 0.5 * (1 + r) ** -0.7 / np.exp(log_phi(np.array(r)))
    u = np.linspace(0.001, 0.999, 300)
    for x in (quantile_tilted(u, log_phi, r), TiltedSampler(log_phi).quantile(u, r)):
        parts = gamma.cdf(x, 0.7, scale=1 / (1 + r)), gamma.cdf(x, 80, scale=1 / (800 + r))
        np.testing.assert_allclose(weight * parts[0] + (1 - weight) * parts[1], u, atol=1e-7)


def test_seed_and_shapes():
    r = np.array([[0.0, 1.0, 4.0], [0.1, 9.0, 1e6]])

    def both(r):
        rngs = np.random.default_rng(27), np.random.default_rng(27)
        sampler = TiltedSampler(log_phi_student)
        return random_tilted(rngs[0], log_phi_student, r), sampler.random(rngs[1], r)

    inverted, tabled = both(r)
    assert inverted.shape == r.shape == tabled.shape
    np.testing.assert_array_equal(inverted, both(r)[0])
    np.testing.assert_array_equal(inverted, tabled)  # few draws: no table
    assert both(1.0)[0].shape == ()
    assert both(np.empty(0))[0].shape == (0,)
    many = np.full(500, 2.0)
    np.testing.assert_array_equal(both(many)[1], both(many)[1])


def test_the_table_is_extended_and_gives_up(ks_rejects):
    rng, sampler = np.random.default_rng(28), TiltedSampler(log_phi_student)
    for r in (1.0, 1e3, 1e-2, 1e7, 0.0):
        draws = sampler.random(rng, np.full(DRAWS, r))
        assert sampler.covered[0] <= r <= sampler.covered[1]
        assert not ks_rejects(draws, lambda x, r=r: student_cdf(x, r))
    assert sampler.fallbacks == 0
    # Poisson: a lattice, whose distribution function no smooth method finds near its jumps.
    sampler = TiltedSampler(lambda s: 5.0 * np.expm1(-s))
    with pytest.warns(RuntimeWarning, match="found one with jumps or kinks"):
        sampler.random(rng, np.full(150, 0.1))
    assert sampler.fallbacks > 140  # all but those at the atom at zero


def test_refusals():
    rng = np.random.default_rng(29)
    with pytest.raises(ValueError, match=r"expected a finite r ≥ 0, got r\[1\] = -1.0"):
        random_tilted(rng, log_phi_laplace, [1.0, -1.0])
    with pytest.raises(ValueError, match=r"expected a finite r ≥ 0, got r = nan"):
        TiltedSampler(log_phi_laplace).random(rng, np.nan)
    with pytest.raises(ValueError, match=r"expected log φ\(0\) = 0, got -1.0"):
        random_tilted(rng, lambda s: -1.0 - s, 1.0)
    with pytest.raises(ValueError, match=r"expected an r at which log φ is finite, got r\[0\] = 1"):
        random_tilted(rng, lambda s: -np.log(np.cosh(np.sqrt(s))), 1e12)
    with pytest.raises(ValueError, match=r"expected a probability u, got u = 1.5"):
        quantile_tilted(1.5, log_phi_laplace, 1.0)
