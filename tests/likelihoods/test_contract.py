"""The contract, over every registered likelihood; a new likelihood is one new line in ``cases``.

By quadrature over ω wherever possible (fixture ``nodes``), so that most tests are exact. The two
statistical tests, of the draws and of a Gibbs sampler, allow five standard errors, and each has a
negative control that must fail.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pymc as pm
import pytest
from scipy.special import expit, gammaln, logsumexp, ndtr
from scipy.stats import gamma

from pymc_augconj.auxiliary.polya_gamma.distribution import logpdf_polya_gamma
from pymc_augconj.likelihoods.laplace import BayesianSVM
from pymc_augconj.likelihoods.powers_of_sigmoid import BinomialLogit
from pymc_augconj.likelihoods.registry import known_likelihoods
from pymc_augconj.likelihoods.super_gaussian import SuperGaussian
from tests.likelihoods.cases import BINARY, CASES, COUNTS, REALS, SIGNS
from tests.likelihoods.test_contract_of_several import SEVERAL
from tests.modes import AS_WRITTEN

ETA = (-3.7, -0.8, 0.0, 1.3, 4.2)
MOMENTS = [(-1.1, 0.0), (0.3, 0.4), (2.2, 3.0)]  # means and variances of q(η)
LARGEST_DISTANCE = 2.7  # √N times Kolmogorov–Smirnov's: exceeded once in 1e6, as 5 standard errors
NORMAL_POINTS = np.linspace(-12.0, 12.0, 20_001)
NORMAL_MASSES = np.exp(-0.5 * NORMAL_POINTS**2) / np.exp(-0.5 * NORMAL_POINTS**2).sum()
LINKS = {
    "identity": lambda eta: eta,
    "logit": expit,
    "probit": ndtr,
    "scaled_logit": expit,
    "scaled_square": np.square,
    "scaled_log": np.exp,
}


def case_name(case, params):
    return "-".join([likelihood_name(case), *(f"{k}={v:g}" for k, v in params.items())])


def likelihood_name(case):
    formula = "".join(case.arguments[0].names) if case.arguments else ""
    return case.likelihood.__name__ + formula


def over(cases):
    return pytest.mark.parametrize(
        ("case", "params"),
        [
            pytest.param(case, params, id=case_name(case, params))
            for case in cases
            for params in case.params
        ],
    )


# Those without an augmentation have only what is about densities to satisfy.
AUGMENTED = [case for case in CASES if case.likelihood.can_augment]
over_likelihoods = pytest.mark.parametrize("case", AUGMENTED, ids=likelihood_name)
over_cases, over_densities = over(AUGMENTED), over(CASES)


def mesh(*axes):
    """Every combination, as flat arrays."""
    return tuple(part.ravel() for part in np.meshgrid(*axes, indexing="ij"))


def log_joint(likelihood, y, omega, eta, params):
    h, lam = likelihood.sites(y, omega, params)
    return h * eta - 0.5 * lam * eta**2 + likelihood.log_base(y, omega, params)


def is_discrete(case):
    return case.y in (BINARY, SIGNS, COUNTS)


def test_every_registered_likelihood_has_a_line():
    known = set(known_likelihoods().values())
    assert {case.likelihood for case in CASES} == {c for c in known if c not in SEVERAL}


@over_cases
def test_joint_over_conditional_is_the_density_at_every_omega(case, params):
    rng = np.random.default_rng(1)
    likelihood = case.build()
    y, eta, _ = mesh(case.y, ETA, np.arange(40))
    # Drawn at other predictors as well, so that ω is tried where it is unlikely too.
    omega = likelihood.draw_auxiliary(rng, y, eta + rng.normal(0.0, 1.5, eta.size), params)
    ratio = log_joint(likelihood, y, omega, eta, params)
    ratio = ratio - likelihood.log_conditional(omega, y, eta, params)
    expected = likelihood.log_density(y, eta, params)
    assert expected.shape == ratio.shape == y.shape
    np.testing.assert_allclose(ratio, expected, rtol=1e-8, atol=1e-8)


@over_densities
def test_density_is_pymcs(case, params):
    y, eta = mesh(case.y, ETA)
    rv = case.pymc(eta, **params)
    value = y.astype(int) if is_discrete(case) else y
    expected = pm.logp(rv, value).eval(mode=AS_WRITTEN)
    actual = case.build().log_density(y, eta, params)
    np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-10)


@over_densities
def test_pattern_is_pymcs(case, params):
    eta = np.array(ETA)
    rv = case.pymc(eta, **params)
    inputs = [part.eval(mode=AS_WRITTEN) for part in rv.owner.op.dist_params(rv.owner)]
    if not case.likelihood.patterns:
        assert case.likelihood is SuperGaussian  # read from the formulas, not by a pattern
        return
    (pattern,) = [p for p in case.likelihood.patterns if p.rv == type(rv.owner.op).__name__]
    assert len(pattern.inputs) == len(inputs)
    assert set(pattern.parameter_names()) == set(params)
    expected = LINKS[pattern.link](-eta if pattern.negate else eta)
    if pattern.scale is not None:
        expected = params[pattern.scale] * expected
    for name, value in zip(pattern.inputs, inputs, strict=True):
        name = dict(pattern.rename).get(name, name)
        known = expected if name == pattern.predictor else params[name]
        np.testing.assert_allclose(value, np.broadcast_to(known, value.shape), rtol=1e-12)


@over_densities
def test_density_is_normalised(case, params):
    likelihood = case.build()
    if not likelihood.is_normalized:
        assert case.likelihood is BayesianSVM
        return
    for eta in ETA:
        if is_discrete(case):
            # Of the counts, those that the likelihood itself accepts.
            y = np.arange(3000.0)
            y = y[[likelihood.check(y[i : i + 1], params) is None for i in range(y.size)]]
            log_measure = np.zeros_like(y)
        else:
            # y = c ± exp(t): a kink at c and heavy tails are both harmless.
            t = np.arange(-40.0, 40.0, 0.05)
            centre = 0.0 if min(case.y) > 0.0 else eta
            y = np.concatenate([centre - np.exp(t), centre + np.exp(t)])
            log_measure = np.tile(t + np.log(0.05), 2)
        total = logsumexp(likelihood.log_density(y, np.full(y.size, eta), params) + log_measure)
        assert total == pytest.approx(0.0, abs=1e-9)


@over_densities
def test_check_accepts_what_can_be_observed(case, params):
    assert case.build().check(np.array(case.y), params) is None


@pytest.mark.parametrize("case", CASES, ids=likelihood_name)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_check_refuses_what_is_not_finite(case, value):
    y = np.array([*case.y, value, value])
    sentence = case.build().check(y, case.params[0])
    assert sentence.startswith("expected ")
    assert sentence.endswith(f", found {value:g} at position {len(case.y)}")


@over_cases
def test_conditional_is_normalised(case, params, nodes):
    likelihood = case.build()
    for y, eta in zip(*mesh(case.y, ETA), strict=True):
        if case.auxiliary == "none":
            continue
        grid = nodes(case.auxiliary, y)
        many = np.full(grid.log_measure.size, y)
        log_mass = likelihood.log_conditional(grid.omega, many, np.full_like(many, eta), params)
        assert logsumexp(log_mass + grid.log_measure) == pytest.approx(0.0, abs=1e-8)


@over_cases
def test_expected_sites_are_those_of_the_optimal_q(case, params, nodes):
    # The optimal q(ω) is ∝ exp E[log p(y, ω | η)] = exp(log_base + h m − ½ λ (m² + v)). Its
    # normaliser is the evidence lower bound of the site, which E[log p(y | η)] cannot be below.
    likelihood = case.build()
    for y in case.y:
        grid = nodes(case.auxiliary, y)
        many = np.full(grid.log_measure.size, y)
        h, lam = likelihood.sites(many, grid.omega, params)
        assert h.shape == lam.shape == many.shape
        log_mass_free = likelihood.log_base(many, grid.omega, params) + grid.log_measure
        for mean, var in MOMENTS:
            log_mass = log_mass_free + h * mean - 0.5 * lam * (mean**2 + var)
            bound = logsumexp(log_mass)
            q = np.exp(log_mass - bound)
            one = np.ones(1)
            site = likelihood.expected_sites(y * one, mean * one, var * one, params)
            np.testing.assert_allclose(site, [[q @ h], [q @ lam]], rtol=1e-7, atol=1e-9)
            assert bound <= expected_log_density(likelihood, y, mean, var, params) + 1e-6


def expected_log_density(likelihood, y, mean, var, params):
    eta = mean + np.sqrt(var) * NORMAL_POINTS
    return NORMAL_MASSES @ likelihood.log_density(np.full(eta.size, y), eta, params)


@over_cases
def test_coordinate_ascent_climbs_below_the_evidence(case, params, nodes):
    prior_mean, prior_var = 0.5, 4.0
    likelihood = case.build()
    for y in case.y:
        grid = nodes(case.auxiliary, y)
        many = np.full(grid.log_measure.size, y)
        h, lam = likelihood.sites(many, grid.omega, params)
        log_mass_free = likelihood.log_base(many, grid.omega, params) + grid.log_measure
        evidence = posterior(likelihood, y, params, prior_mean, prior_var).log_evidence
        mean, var, bounds = prior_mean, prior_var, []
        for _ in range(60):
            bound = logsumexp(log_mass_free + h * mean - 0.5 * lam * (mean**2 + var))
            ratio = var / prior_var
            divergence = ratio - 1.0 - np.log(ratio) + (mean - prior_mean) ** 2 / prior_var
            bounds.append(bound - 0.5 * divergence)
            one = np.ones(1)
            (site_h,), (site_lam,) = likelihood.expected_sites(
                y * one, mean * one, var * one, params
            )
            var = 1.0 / (1.0 / prior_var + site_lam)
            mean = var * (prior_mean / prior_var + site_h)
        assert np.min(np.diff(bounds)) > -1e-9
        assert bounds[-1] <= evidence + 1e-9
        if case.auxiliary == "none":
            assert bounds[-1] == pytest.approx(evidence, abs=1e-9)


@over_likelihoods
def test_draws_follow_the_conditional(case, nodes, distance):
    # All parameter sets at once: every parameter is a vector, as the contract allows.
    likelihood, size = case.build(), 20_000
    if case.auxiliary == "none":
        assert likelihood.draw_auxiliary(np.random.default_rng(2), None, None, {}) is None
        assert not likelihood.has_auxiliary
        return
    assert likelihood.has_auxiliary
    points = [(y, eta) for y in case.y[:1] + case.y[-1:] for eta in (-0.8, 1.3)]
    sets = [(y, eta, params) for y, eta in points for params in case.params]
    which = np.tile(np.arange(len(sets)), size)
    y, eta = np.array([s[0] for s in sets])[which], np.array([s[1] for s in sets])[which]
    params = {name: np.array([s[2][name] for s in sets])[which] for name in case.params[0]}
    omega = likelihood.draw_auxiliary(np.random.default_rng(2), y, eta, params)

    control = []
    for i, (y, eta, params) in enumerate(sets):
        grid = nodes(case.auxiliary, y)
        many = np.full(grid.log_measure.size, y)
        log_mass = likelihood.log_conditional(grid.omega, many, np.full_like(many, eta), params)
        masses = np.exp(log_mass + grid.log_measure)
        if isinstance(omega, tuple):
            count = omega[0][which == i]
            assert distance(count, grid.omega[0], masses) < LARGEST_DISTANCE
        draws = (omega[1] if isinstance(omega, tuple) else omega)[which == i]
        assert distance(draws, grid.scalar, masses) < LARGEST_DISTANCE
        control.append(distance(1.1 * draws, grid.scalar, masses))
    assert np.median(control) > LARGEST_DISTANCE


class Posterior(NamedTuple):
    eta: np.ndarray
    mass: np.ndarray
    mean: float
    var: float
    log_evidence: float


def posterior(likelihood, y, params, prior_mean, prior_var):
    """The posterior of η ~ N(prior_mean, prior_var) given one observation, by quadrature."""
    eta = prior_mean + np.sqrt(prior_var) * NORMAL_POINTS
    log_mass = likelihood.log_density(np.full(eta.size, y), eta, params) + np.log(NORMAL_MASSES)
    log_evidence = logsumexp(log_mass)
    mass = np.exp(log_mass - log_evidence)
    mean = mass @ eta
    return Posterior(eta, mass, mean, mass @ (eta - mean) ** 2, log_evidence)


def gibbs_errors(case, y, params, distortion, prior_mean=0.5, prior_var=16.0):
    """Errors, in standard errors, of the mean and variance of a Gibbs sampler of one datum.

    The chains are replicates of one another: at a fixed iteration their states are independent
    draws, and the effective sample size is their number. They start in the posterior, which a
    sampler of another one leaves at once. The precision of the sites is multiplied by `distortion`.
    """
    replicates, iterations = 40_000, 4
    likelihood, rng = case.build(), np.random.default_rng(3)
    many = np.full(replicates, y)
    exact = posterior(likelihood, y, params, prior_mean, prior_var)
    eta = np.interp(rng.random(replicates), np.cumsum(exact.mass) - 0.5 * exact.mass, exact.eta)
    for _ in range(iterations):
        h, lam = likelihood.sites(many, likelihood.draw_auxiliary(rng, many, eta, params), params)
        var = 1.0 / (1.0 / prior_var + distortion * lam)
        eta = var * (prior_mean / prior_var + h) + np.sqrt(var) * rng.standard_normal(replicates)
    squared = (eta - exact.mean) ** 2
    return (
        abs(eta.mean() - exact.mean) / np.sqrt(exact.var / replicates),
        abs(squared.mean() - exact.var) / (squared.std() / np.sqrt(replicates)),
    )


@over_likelihoods
def test_gibbs_sampler_of_one_datum_has_the_posterior(case):
    for y, params in ((case.y[0], case.params[0]), (case.y[-1], case.params[-1])):
        assert max(gibbs_errors(case, y, params, distortion=1.0)) < 5.0


@over_likelihoods
def test_gibbs_sampler_with_a_wrong_site_is_found_out(case):
    assert max(gibbs_errors(case, case.y[-1], case.params[0], distortion=1.1)) > 5.0


@over_likelihoods
def test_vector_parameters_are_the_scalar_ones_side_by_side(case):
    likelihood, rng = case.build(), np.random.default_rng(4)
    y, eta, which = mesh(case.y, ETA, np.arange(len(case.params)))
    which = which.astype(int)
    vectors = {key: np.array([p[key] for p in case.params])[which] for key in case.params[0]}
    omega = likelihood.draw_auxiliary(rng, y, eta, vectors)

    def everything(params):
        site = likelihood.sites(y, omega, params)
        expected = likelihood.expected_sites(y, eta, 0.5 + eta**2, params)
        log_conditional = likelihood.log_conditional(omega, y, eta, params)
        log_base = likelihood.log_base(y, omega, params)
        log_density = likelihood.log_density(y, eta, params)
        return np.array([*site, *expected, log_conditional, log_base, log_density])

    together = everything(vectors)
    assert together.shape == (7, y.size)
    for i, params in enumerate(case.params):
        scalars = {key: np.array(value) for key, value in params.items()}
        alone, beside = everything(scalars)[:, which == i], together[:, which == i]
        # A density found by inversion depends, within its error, on what it is computed with.
        tolerance = 1e-8 if case.likelihood is SuperGaussian else 1e-12
        np.testing.assert_allclose(alone, beside, rtol=tolerance, atol=tolerance)


@over_cases
def test_extreme_values_stay_finite(case, params):
    likelihood, rng = case.build(), np.random.default_rng(5)
    extremes = {REALS: (-1e6, 0.4, 1e6), COUNTS: (0.0, 8.0, 1e6)}
    extreme_y = extremes.get(case.y, case.y)
    if case.likelihood is BinomialLogit:
        extreme_y, params = (0.0, 8.0, 1e6), {"n": np.array(1e6)}
    y, eta = mesh(extreme_y, (-1e3, -30.0, 0.0, 30.0, 1e3))
    assert np.isfinite(likelihood.log_density(y, eta, params)).all()
    for var in (1e-6, 1e6):
        expected = likelihood.expected_sites(y, eta, np.full(eta.size, var), params)
        assert np.isfinite(expected).all()
        assert (expected[1] >= 0.0).all()
    h, lam = likelihood.sites(y, likelihood.draw_auxiliary(rng, y, eta, params), params)
    assert np.isfinite(h).all()
    assert (np.isfinite(lam) & (lam >= 0.0)).all()


@over_likelihoods
def test_draws_are_repeatable(case):
    likelihood = case.build()
    y, eta = mesh(case.y, ETA)
    first, second = (
        likelihood.draw_auxiliary(np.random.default_rng(6), y, eta, case.params[0])
        for _ in range(2)
    )
    np.testing.assert_equal(first, second)


@over_likelihoods
def test_a_normal_likelihood_has_the_sites_of_its_normal_form(case):
    likelihood, eta, z_of = case.build(), np.linspace(-2.0, 2.0, 5), {}
    for params in case.params if likelihood.can_augment else ():
        for value in case.y:
            y = np.full(eta.size, value)
            form = likelihood.as_normal(y, params)
            assert (form is None) == likelihood.has_auxiliary
            if form is None:
                continue
            z, c = form
            np.testing.assert_array_equal(z, z_of.setdefault(value, z))
            h, lam = likelihood.sites(y, None, params)
            np.testing.assert_allclose(h, c * z, rtol=1e-14)
            np.testing.assert_allclose(lam, c * np.ones_like(y), rtol=1e-14)
            normal = 0.5 * np.log(c / (2.0 * np.pi)) - 0.5 * c * (z - eta) ** 2
            factor = likelihood.log_density(y, eta, params) - normal
            np.testing.assert_allclose(
                factor, z_of.setdefault((value, "factor"), factor), atol=1e-12
            )
            np.testing.assert_allclose(factor, factor[0], atol=1e-12)


@over_likelihoods
def test_a_logistic_likelihood_has_the_sites_of_its_logistic_form(case):
    likelihood, eta = case.build(), np.linspace(-2.0, 2.0, 5)
    known = likelihood.name in ("Bernoulli", "Binomial", "Negative binomial")
    is_logistic = known and likelihood.link == "logit"
    for params in case.params if likelihood.can_augment else ():
        for value in case.y:
            y = np.full(eta.size, value)
            form = likelihood.as_logistic(y, params)
            assert (form is not None) == is_logistic
            if form is None:
                continue
            a, b = form
            h, lam = likelihood.sites(y, np.arange(1.0, 6.0), params)
            np.testing.assert_allclose(h * np.ones(5), (a - 0.5 * b) * np.ones(5), rtol=1e-14)
            np.testing.assert_array_equal(lam, np.arange(1.0, 6.0))
            factor = likelihood.log_density(y, eta, params) - a * eta + b * np.logaddexp(0.0, eta)
            np.testing.assert_allclose(factor, factor[0], atol=1e-12)
            # ω ~ PG(b, η).
            prior = logpdf_polya_gamma(np.full(5, 0.3), b, eta) if np.all(b > 0) else None
            if prior is not None:
                found = likelihood.log_conditional(np.full(5, 0.3), y, eta, params)
                np.testing.assert_allclose(found, prior, rtol=1e-12)


@over_likelihoods
def test_a_tilted_laplace_density_has_its_slopes(case):
    likelihood, eta = case.build(), np.linspace(-2.0, 2.0, 5)
    for params in case.params if likelihood.can_augment else ():
        for value in case.y:
            y = np.full(eta.size, value)
            form = likelihood.as_tilted_laplace(y, params)
            assert (form is not None) == likelihood.augmentation.startswith("inverse Gaussian")
            if form is None:
                continue
            a, d, c = form
            expected = likelihood.log_density(y, eta, params)
            np.testing.assert_allclose(
                c - a * np.abs(y - eta) - d * (y - eta), expected, rtol=1e-12
            )
            omega = np.linspace(0.3, 2.0, 5)
            np.testing.assert_array_equal(likelihood.sites(y, omega, params)[0], omega * y + d)


@over_likelihoods
def test_a_mixture_of_normals_has_the_sites_of_its_precisions(case):
    likelihood, eta = case.build(), np.linspace(-2.0, 2.0, 5)
    for params in case.params if likelihood.can_augment else ():
        for value in case.y:
            y = np.full(eta.size, value)
            form = likelihood.as_normal_mixture(y, params)
            assert (form is not None) == (likelihood.name in ("Student-t", "Cauchy"))
            if form is None:
                continue
            a, r = form
            omega = np.linspace(0.3, 2.0, 5)
            np.testing.assert_array_equal(likelihood.sites(y, omega, params), (omega * y, omega))
            rate = r + 0.5 * (y - eta) ** 2
            np.testing.assert_allclose(
                likelihood.log_conditional(omega, y, eta, params),
                gamma.logpdf(omega, a + 0.5, scale=1.0 / rate),
                rtol=1e-11,
            )
            peak = gammaln(a + 0.5) - gammaln(a) - 0.5 * np.log(2.0 * np.pi * r)
            np.testing.assert_allclose(
                likelihood.log_density(y, eta, params),
                peak - (a + 0.5) * np.log1p(rate / r - 1.0),
                rtol=1e-11,
            )
