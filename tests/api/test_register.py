"""A likelihood of another package: registered, recognised, sampled, fitted, unregistered."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy.integrate import trapezoid
from scipy.optimize import minimize
from scipy.special import log_ndtr, logsumexp
from scipy.stats import norm, skewnorm

import pymc_augconj as pac
from pymc_augconj.auxiliary.truncated_normal import (
    logpdf_truncated_normal,
    mean_truncated_normal,
    random_truncated_normal,
)


class SkewNormal(pac.Likelihood):
    """y = η + σ (δ ω + √(1 − δ²) z), ω half-normal, δ = α/√(1 + α²); all else is the default."""

    name = "skew normal"
    augmentation = "truncated normal"
    patterns = (pac.Pattern("SkewNormalRV", ("mu", "sigma", "alpha"), predictor="mu"),)

    def _constants(self, params):
        delta = params["alpha"] / np.sqrt(1.0 + params["alpha"] ** 2)
        return delta, np.sqrt(1.0 - delta**2), params["sigma"]

    def _location(self, y, eta, params):
        """ω | y, η is s N(location, 1), cut at zero."""
        delta, s, sigma = self._constants(params)
        return delta * (y - eta) / (sigma * s)

    def log_density(self, y, eta, params):
        e = (y - eta) / params["sigma"]
        log_norm = np.log(params["sigma"]) + 0.5 * np.log(0.5 * np.pi)
        return log_ndtr(params["alpha"] * e) - 0.5 * e**2 - log_norm

    def draw_auxiliary(self, rng, y, eta, params):
        location = self._location(y, eta, params)
        return self._constants(params)[1] * random_truncated_normal(
            rng, location, location < np.inf
        )

    def sites(self, y, omega, params):
        delta, s, sigma = self._constants(params)
        lam = np.broadcast_to((s * sigma) ** -2.0, np.shape(y))
        return lam * (y - sigma * delta * omega), lam

    def expected_sites(self, y, mean, var, params):
        location = self._location(y, mean, params)
        s = self._constants(params)[1]
        return self.sites(y, s * mean_truncated_normal(location, location < np.inf), params)

    def log_base(self, y, omega, params):
        delta, s, sigma = self._constants(params)
        log_prior = np.where(omega > 0.0, norm.logpdf(omega) + np.log(2.0), -np.inf)
        return norm.logpdf(y, sigma * delta * omega, s * sigma) + log_prior

    def log_conditional(self, omega, y, eta, params):
        s = self._constants(params)[1]
        location = self._location(y, eta, params)
        return logpdf_truncated_normal(omega / s, location, location < np.inf) - np.log(s)


Y = np.array([1.4, -0.2, 0.9, 3.0])
SIGMA, ALPHA, MEAN, STD = 0.8, 2.5, 0.3, 1.2
GRID = np.linspace(-6.0, 6.0, 4001)


def write_model():
    with pm.Model() as model:
        f = pm.Normal("f", MEAN, STD)
        pm.SkewNormal("y", mu=f, sigma=SIGMA, alpha=ALPHA, observed=Y)
    return model


def log_likelihood(f, alpha=ALPHA):
    return skewnorm.logpdf(Y, alpha, loc=np.asarray(f)[..., None], scale=SIGMA).sum(-1)


@pytest.fixture
def registered():
    pac.register(SkewNormal)
    yield
    pac.unregister(SkewNormal)


def by_quadrature(alpha=ALPHA):
    """Return log p(y), and the posterior's mean and variance."""
    joint = np.exp(log_likelihood(GRID, alpha) + norm.logpdf(GRID, MEAN, STD))
    total = trapezoid(joint, GRID)
    mean = trapezoid(joint * GRID, GRID) / total
    return np.log(total), mean, trapezoid(joint * (GRID - mean) ** 2, GRID) / total


@pytest.mark.usefixtures("registered")
def test_is_recognised_in_an_unchanged_model():
    assert "truncated normal" in str(pac.recognize(write_model()))


def test_is_known_by_its_density_alone_once_unregistered():
    pac.register(SkewNormal)
    pac.unregister(SkewNormal)
    assert "truncated normal" not in str(pac.recognize(write_model()))
    with pytest.raises(pac.AugmentationError, match=r"'y'.*no augmentation .* SkewNormal"):
        pac.sample(sites="augmented", model=write_model(), progressbar=False)
    with pytest.raises(ValueError, match="expected a registered likelihood"):
        pac.unregister(SkewNormal)


@pytest.mark.usefixtures("registered")
def test_gibbs_draws_agree_with_quadrature():
    _, mean, var = by_quadrature()
    drawn = pac.sample(
        3000, tune=50, chains=2, cores=1, model=write_model(), random_seed=2, progressbar=False
    )
    f = drawn.posterior["f"]
    for values, expected in ((f, mean), ((f - mean) ** 2, var)):
        assert az.ess(values) > 1000
        assert abs(float(values.mean()) - expected) < 5.0 * az.mcse(values)
    # Negative control: a posterior of slightly less skewness is told apart.
    assert abs(float(f.mean()) - by_quadrature(0.9 * ALPHA)[1]) > 5.0 * az.mcse(f)


@pytest.mark.usefixtures("registered")
def test_vgp_agrees_with_quadrature():
    log_evidence, mean, var = by_quadrature()

    def bound(m, log_std):
        q = norm.pdf(GRID, m, np.exp(log_std))
        divergence = -0.5 - log_std + np.log(STD)
        divergence += 0.5 * (np.exp(2.0 * log_std) + (m - MEAN) ** 2) / STD**2
        return trapezoid(q * log_likelihood(GRID), GRID) - divergence

    best = minimize(lambda x: -bound(*x), [mean, 0.5 * np.log(var)], tol=1e-12)
    fit = pac.fit("vgp", model=write_model(), tol=1e-10, progressbar=False)
    assert fit.log_evidence == pytest.approx(-best.fun, abs=1e-7)
    assert fit.log_evidence < log_evidence
    np.testing.assert_allclose(fit._posterior.mean, best.x[0], atol=1e-4)
    np.testing.assert_allclose(fit._posterior.var, np.exp(2.0 * best.x[1]), rtol=1e-3)


@pytest.mark.usefixtures("registered")
def test_augmented_model_integrates_to_the_likelihood():
    """ω as the base contract writes it: in a numerical form."""
    omega = np.arange(1e-3, 12.0, 2e-3)
    with pm.Model() as model:
        f = pm.Normal("f")
        pm.SkewNormal("y", mu=f, sigma=SIGMA, alpha=ALPHA, observed=np.full(omega.size, 1.4))
    augmented = pac.augment(model)
    terms = augmented.compile_fn(augmented.logp(sum=False))
    for f in (-1.2, 0.4, 2.0):
        _, *parts = terms({"f": np.array(f), "y_omega": omega})
        total = logsumexp(sum(parts)) + np.log(2e-3)
        expected = skewnorm.logpdf(1.4, ALPHA, loc=f, scale=SIGMA)
        assert total == pytest.approx(expected, abs=1e-5)


def test_example_of_the_documentation():
    from pymc_augconj.likelihoods import registry

    (test,) = doctest.DocTestFinder(recurse=False).find(registry.register, "register")
    found = doctest.DocTestRunner().run(test)
    assert found.attempted > 5
    assert found.failed == 0


GUIDE = Path(__file__).parents[2] / "CONTRIBUTING.md"
RECIPES = re.findall(r"```python\n(@pac.register\n.*?)```", GUIDE.read_text(), flags=re.DOTALL)
LINKS = ("identity", "identity, log of the scale")


@pytest.mark.parametrize(("recipe", "link"), list(zip(RECIPES, LINKS, strict=True)), ids=LINKS)
def test_recipes_of_the_guide(recipe, link):
    found = {"np": np, "pac": pac}
    exec(recipe, found)
    cls = [value for value in found.values() if isinstance(value, type)][-1]
    try:
        with pm.Model() as model:
            f, g = pm.Normal("f", 0, 1, shape=4), pm.Normal("g", 0, 1, shape=4)
            beta = 0.7 if link == "identity" else pm.math.exp(g)
            pm.Gumbel("y", mu=f, beta=beta, observed=Y)
        # Its density is compared with PyMC's.
        (site,) = pac.recognize(model).model.sites
    finally:
        pac.unregister(cls)
    assert site.likelihood.link == link
    assert site.likelihood.n_predictors == len(cls.patterns[0].predictors)


class Unfinished(pac.Likelihood):
    name = "unfinished"

    def log_density(self, y, eta, params):
        return -np.abs(y - eta)


def test_what_is_no_likelihood_is_refused():
    with pytest.raises(TypeError, match=r"expected a subclass of Likelihood.*found 3"):
        pac.register(3)
    with pytest.raises(TypeError, match=r"Unfinished: expected draw_auxiliary, .*, patterns"):
        pac.register(Unfinished)


def test_a_pattern_that_another_likelihood_has_is_refused():
    class Other(SkewNormal):
        name = "other"
        patterns = (pac.Pattern("LaplaceRV", ("mu", "b"), predictor="mu"),)

    with pytest.raises(
        ValueError, match=r"'other \(identity\)'.*LaplaceRV.*'Laplace \(identity\)'"
    ):
        pac.register(Other)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"link": "cloglog"}, "expected a link in .*found 'cloglog'"),
        ({"predictor": "rate"}, "expected a predictor in inputs .*found 'rate'"),
        ({"link": "scaled_log"}, "expected a scale .*'scaled_log' with scale None"),
    ],
)
def test_a_pattern_that_cannot_match_is_refused(more, message):
    with pytest.raises(ValueError, match=message):
        pac.Pattern(**{"rv": "GumbelRV", "inputs": ("mu", "beta"), "predictor": "mu", **more})
