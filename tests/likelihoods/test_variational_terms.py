"""Terms of the bound and predictive formulas, over every likelihood that a model can have.

The expected sites are checked against quadrature over ω in the contract test; here the bound is
tied to them and to the density, which together say that its closed form is exact.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from pymc_augconj.likelihoods import robust_max
from pymc_augconj.likelihoods.base import DensityLikelihood, Likelihood
from pymc_augconj.quadrature.expectation import gaussian_expectation
from tests.likelihoods.cases import CASES

# Cases that are found by a pattern, by the names of their classes.
EXAMPLES = {case.likelihood.__name__: case for case in CASES if case.likelihood.patterns}
MEAN, VAR = np.array([-1.1, 0.0, 0.3, 2.2]), np.array([0.02, 0.4, 1.3, 3.0])


def predicts(likelihood) -> bool:
    """Whether it says what y is given η, which a pseudo-likelihood does not."""
    return type(likelihood).cdf is not DensityLikelihood.cdf


def example_of(name):
    """Likelihood, y, means, variances (all combinations, flat), parameters."""
    case = EXAMPLES[name]
    i, j = (part.ravel() for part in np.meshgrid(range(len(case.y)), range(4), indexing="ij"))
    return case.build(), np.array(case.y)[i], MEAN[j], VAR[j], case.params[0]


@pytest.fixture(params=sorted(EXAMPLES))
def example(request):
    return example_of(request.param)


@pytest.fixture(params=[name for name in sorted(EXAMPLES) if EXAMPLES[name].likelihood.can_augment])
def augmented(request):
    return example_of(request.param)


def test_bound_at_a_point_is_the_density(augmented):
    likelihood, y, mean, _, params = augmented
    bound = likelihood.expected_log_bound(y, mean, np.zeros_like(mean), params)
    np.testing.assert_allclose(bound, likelihood.log_density(y, mean, params), atol=1e-12)


def test_derivatives_of_the_bound_are_the_expected_sites(augmented):
    likelihood, y, mean, var, params = augmented
    h, lam = likelihood.expected_sites(y, mean, var, params)

    def slope(d_mean, d_var, step=1e-4):
        def at(t):
            return likelihood.expected_log_bound(y, mean + t * d_mean, var + t * d_var, params)

        return (8.0 * (at(step) - at(-step)) - at(2 * step) + at(-2 * step)) / (12.0 * step)

    np.testing.assert_allclose(slope(1.0, 0.0), h - lam * mean, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(slope(0.0, 1.0), -0.5 * lam, rtol=1e-6, atol=1e-8)


def test_bound_agrees_with_the_one_that_is_integrated(augmented):
    likelihood, y, mean, var, params = augmented
    integrated = Likelihood.expected_log_bound(likelihood, y, mean, var, params)
    bound = likelihood.expected_log_bound(y, mean, var, params)
    np.testing.assert_allclose(bound, integrated, rtol=1e-6, atol=1e-6)


def test_bound_is_below_the_expected_log_density(augmented):
    likelihood, y, mean, var, params = augmented
    z = np.linspace(-10.0, 10.0, 20_001)[:, None]
    weights = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
    density = likelihood.log_density(y, mean + np.sqrt(var) * z, params)
    expected = (weights * density).sum(axis=0)
    assert np.all(likelihood.expected_log_bound(y, mean, var, params) <= expected + 1e-7)
    closed = likelihood.expected_log_density(y, mean, var, params)
    if closed is None:
        return
    np.testing.assert_allclose(closed[0], expected, atol=1e-6)
    # Bonnet's and Price's theorems, on the same grid.
    by_mean = (weights * z * density).sum(axis=0) / np.sqrt(var)
    by_var = (weights * (z**2 - 1.0) * density).sum(axis=0) / (2.0 * var)
    np.testing.assert_allclose(closed[1], by_mean, atol=1e-5)
    np.testing.assert_allclose(closed[2], by_var, atol=1e-4)


def test_distribution_function_is_the_densitys(example):
    likelihood, _, mean, _, params = example
    if not predicts(likelihood):
        return
    if likelihood.discrete:
        limit = 10 if "n" in params else 2 if likelihood.check(np.array([2.0]), params) else 60
        y = np.arange(float(limit))[:, None] + np.zeros_like(mean)
        mass = np.exp(likelihood.log_density(y, mean, params))
        expected = np.cumsum(mass, axis=0)
        np.testing.assert_allclose(likelihood.cdf(y + 0.5, mean, params), expected, atol=1e-9)
        assert not likelihood.cdf(y[0] - 0.1, mean, params).any()
        return
    y = np.array([-5.0, -0.9, 0.1, 0.45, 6.0])[:, None] + np.zeros_like(mean)
    step = 1e-4
    slope = (likelihood.cdf(y + step, mean, params) - likelihood.cdf(y - step, mean, params)) / (
        2.0 * step
    )
    np.testing.assert_allclose(slope, np.exp(likelihood.log_density(y, mean, params)), atol=1e-6)
    np.testing.assert_allclose(likelihood.cdf(mean - 1e9, mean, params), 0.0, atol=1e-8)
    np.testing.assert_allclose(likelihood.cdf(mean + 1e9, mean, params), 1.0, atol=1e-8)


def test_moments_are_those_of_the_density(example):
    likelihood, _, mean, _, params = example
    if not predicts(likelihood):
        return
    centre, var = likelihood.moments(mean, params)
    if type(likelihood).__name__ == "Cauchy":
        assert np.isnan(centre).all()
        return
    if likelihood.discrete:
        limit = 10 if "n" in params else 2 if likelihood.check(np.array([2.0]), params) else 2000
        y, log_measure = np.arange(float(limit)), np.zeros(limit)
    else:
        t = np.arange(-40.0, 40.0, 0.02)
        y = np.concatenate([-np.exp(t), np.exp(t)])
        log_measure = np.tile(t + np.log(0.02), 2)
    for m, expected_mean, expected_var in zip(
        mean, centre, np.broadcast_to(var, mean.shape), strict=True
    ):
        shift = 0.0 if likelihood.discrete else m
        eta = np.full(y.size, m)
        mass = np.exp(likelihood.log_density(y + shift, eta, params) + log_measure)
        found = mass @ (y + shift)
        assert found == pytest.approx(expected_mean, abs=1e-4)
        assert mass @ (y + shift - found) ** 2 == pytest.approx(expected_var, rel=1e-3)


# E[g(η)] = ∫ g(±eᵗ) N(±eᵗ) eᵗ dt: also for a g with a singularity at zero.
T = np.arange(-60.0, 4.0, 0.004)
POINTS = np.concatenate([-np.exp(T), np.exp(T)])[:, None]


def expect(func, mean, var):
    log_weight = np.tile(T, 2)[:, None] + np.log(T[1] - T[0]) - 0.5 * (POINTS - mean) ** 2 / var
    with np.errstate(divide="ignore"):
        values = func(POINTS + np.zeros_like(mean))
    return (np.exp(log_weight) / np.sqrt(2.0 * np.pi * var) * values).sum(axis=0)


@pytest.mark.parametrize("name", ["PoissonLog", "PoissonSquare"])
def test_closed_expectations_of_the_log_density_are_exact(name):
    likelihood, y, mean, var, params = example_of(name)
    value, d_mean, d_var = likelihood.expected_log_density(y, mean, var, params)
    exact = expect(lambda eta: likelihood.log_density(y, eta, params), mean, var)
    np.testing.assert_allclose(value, exact, rtol=1e-7, atol=1e-7)

    def slope(by_mean, by_var, step=1e-4):
        def at(t):
            moved = mean + t * by_mean, var + t * by_var
            return likelihood.expected_log_density(y, *moved, params)[0]

        return (8.0 * (at(step) - at(-step)) - at(2 * step) + at(-2 * step)) / (12.0 * step)

    np.testing.assert_allclose(d_mean, slope(1.0, 0.0), rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(d_var, slope(0.0, 1.0), rtol=1e-6, atol=1e-6)


def test_closed_predictive_moments_are_exact(example):
    likelihood, _, mean, var, params = example
    closed = likelihood.predictive_moments(mean, var, params)
    if closed is None:
        return
    centre = expect(lambda eta: likelihood.moments(eta, params)[0], mean, var)
    np.testing.assert_allclose(closed[0], centre, rtol=1e-9)

    def spread(eta):
        given, within = likelihood.moments(eta, params)
        return within + (given - centre) ** 2

    np.testing.assert_allclose(closed[1], expect(spread, mean, var), rtol=1e-9)


def test_closed_predictive_densities_are_exact(example):
    likelihood, y, mean, var, params = example
    closed = likelihood.log_predictive(y, mean, var, params)
    if closed is None:
        return

    def density(eta, which):
        return np.exp(likelihood.log_density(y[which, None], eta, params))

    value, *_ = gaussian_expectation(density, mean, var)
    np.testing.assert_allclose(np.exp(closed), value, atol=1e-9)


def tilted_by_sites(residual):
    """Return moments of differences of two predictors given a site, and as its density has them.

    In units of the standard deviation without the site.
    """
    y, params = np.array([0.0, 0.0, 1.0]), {"epsilon": np.array(0.01)}
    likelihood, r = robust_max.RobustMax(2), np.full((2, 3), residual)
    mean = np.array([[0.5, -0.4, 0.0], [0.0, 0.3, 0.2]])
    cov = np.array([[[0.6], [0.2]], [[0.2], [0.5]]]) * np.array([1.0, 0.3, 2.0])
    none = np.zeros((2, 3)), np.zeros((2, 2, 3))
    h, lam = likelihood.propagated_sites(y, mean, cov, r, none, params)
    # Functions of the difference alone.
    np.testing.assert_allclose(lam.sum(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(h.sum(axis=0), 0.0, atol=1e-12)
    sign = np.array([1.0, 1.0, -1.0])
    m, V = sign * (mean[0] - mean[1]), cov[0, 0] + cov[1, 1] - 2.0 * cov[0, 1]
    found_var = 1.0 / (1.0 / V + lam[0, 0])
    found_mean = found_var * (m / V + sign * h[0])
    delta = np.linspace(-12.0, 12.0, 40_001)[:, None]
    below = stats.norm.cdf(delta / np.sqrt(2.0 * residual)) if residual else delta > 0.0
    density = np.exp(np.log(99.0) * below) * stats.norm.pdf(delta, m, np.sqrt(V))
    density /= density.sum(axis=0)
    tilted = (delta * density).sum(axis=0)
    var = (delta**2 * density).sum(axis=0) - tilted**2
    # The site that is there is taken away before it is found anew.
    prior = np.linalg.inv(np.moveaxis(cov, -1, 0))
    with_site = np.linalg.inv(prior + np.moveaxis(lam, -1, 0))
    moved = np.einsum("npq,nq->pn", with_site, np.einsum("npq,qn->np", prior, mean) + h.T)
    again = likelihood.propagated_sites(
        y, moved, np.moveaxis(with_site, 0, -1), r, (h, lam), params
    )
    for one, other in zip(again, (h, lam), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-8)
    differences = np.array([found_mean - tilted, np.sqrt(found_var) - np.sqrt(np.minimum(var, V))])
    return np.abs(differences / np.sqrt(V)).max()


def test_robust_max_has_sites_of_tilted_moments(monkeypatch):
    """A step exactly; its expectation over a residual as well as a normal integral resembles it."""
    assert tilted_by_sites(0.0) < 1e-3
    close = tilted_by_sites(0.3)
    assert close < 0.15
    # The integral that the density itself has is further off.
    monkeypatch.setattr(robust_max, "_as_normal", lambda step: (0.0, 1.0))
    assert tilted_by_sites(0.3) > 2.0 * close


@pytest.mark.parametrize("spread", [1.0, 2.5])
def test_largest_predictor_by_nodes_is_what_single_integrals_give(spread):
    """Where standard deviations differ by orders of magnitude single integrals take over."""
    rng = np.random.default_rng(0)
    mean, std = 3.0 * rng.normal(size=(6, 60)), np.exp(rng.uniform(-spread, spread, (6, 60)))
    own = rng.integers(6, size=60)
    found = robust_max._largest(own, mean, std**2)
    rivals = (own + np.arange(1, 6)[:, None]) % 6
    expected = robust_max._largest_adaptively(own, rivals, mean, std)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-9)
