"""The VGP: stationarity, negative precisions, and the exact posterior of a normal likelihood."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from scipy.integrate import quad
from scipy.stats import multivariate_normal, norm

import pymc_augconj as pac
from pymc_augconj.engines.variational.ascent import climb
from pymc_augconj.engines.variational.bound import (
    BoundFamily,
    CoordinateAscent,
    VariationalGaussian,
    bound_gradient,
)

RULES = {"cavi": CoordinateAscent, "vgp": VariationalGaussian}


def family_of(model, method):
    recognition = pac.recognize(model)
    points = [recognition.start, *recognition.probes]
    return recognition, BoundFamily(recognition.model, RULES[method](), points)


@pytest.fixture
def outliers() -> pm.Model:
    """Student-t noise with outliers, where log p is not concave."""
    rng = np.random.default_rng(3)
    X = np.linspace(-2.0, 2.0, 30)[:, None]
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(30)
    y[[4, 17]] += [3.0, -4.0]
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=X)
        pm.StudentT("y", nu=3, mu=f, sigma=0.2, observed=y)
    return model


def test_is_stationary_also_with_negative_precisions(outliers):
    recognition, family = family_of(outliers, "vgp")
    bound = family.at(recognition.start)
    found = climb(bound, max_iter=500, tol=1e-10)
    at = found.evaluation
    assert found.converged
    assert (at.lam < 0.0).sum() >= 2
    # α = E[∂ log p] and λ = −E[∂² log p] by adaptive quadrature of the derivatives themselves.
    nu, sigma = 3.0, 0.2
    y = recognition.model.sites[0].y(recognition.start)

    def first(eta, y):
        return (nu + 1.0) * (y - eta) / (nu * sigma**2 + (y - eta) ** 2)

    def second(eta, y):
        square = (y - eta) ** 2
        return (nu + 1.0) * (square - nu * sigma**2) / (nu * sigma**2 + square) ** 2

    alpha = at.h - at.lam * at.mean
    for i in range(30):
        std = np.sqrt(at.var[i])
        found_alpha, found_lam = (
            quad(
                lambda z, i=i, g=g, std=std: norm.pdf(z) * g(at.mean[i] + std * z, y[i]),
                -9.0,
                9.0,
                points=[np.clip((y[i] - at.mean[i]) / std, -8.9, 8.9)],
                limit=300,
                epsabs=1e-12,
                epsrel=1e-12,
            )[0]
            for g in (first, second)
        )
        assert alpha[i] == pytest.approx(found_alpha, abs=1e-8)
        assert at.lam[i] == pytest.approx(-found_lam, abs=1e-8 * (1.0 + abs(found_lam)))
    # m = K α, with the prior mean zero.
    np.testing.assert_allclose(at.mean, bound.prior.predictor_cov @ alpha, atol=1e-8)


@pytest.mark.parametrize("method", RULES)
def test_normal_likelihood_gives_exact_regression(method):
    rng = np.random.default_rng(0)
    X, x_sigma = rng.uniform(-2.0, 2.0, (20, 1)), 0.3
    y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(20)
    with pm.Model() as model:
        ls, sigma = pm.InverseGamma("ls", 5, 5), pm.HalfNormal("sigma", 1)
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls)).prior("f", X=X)
        pm.Normal("y", mu=f, sigma=sigma, observed=y)
    recognition, family = family_of(model, method)
    point = {"ls_log__": np.array(np.log(0.7)), "sigma_log__": np.array(np.log(x_sigma))}
    point = {**recognition.start, **point}

    def exact(ls, sigma):
        K = np.exp(-0.5 * ((X - X.T) / ls) ** 2) + 1e-6 * np.eye(20)
        return K, multivariate_normal(np.zeros(20), K + sigma**2 * np.eye(20)).logpdf(y)

    bound = family.at(point)
    found = climb(bound, max_iter=50, tol=1e-10)
    K, evidence = exact(0.7, x_sigma)
    C = K + x_sigma**2 * np.eye(20)
    assert found.evaluation.bound == pytest.approx(evidence, abs=1e-8)
    np.testing.assert_allclose(found.evaluation.mean, K @ np.linalg.solve(C, y), atol=1e-8)
    var = np.diagonal(K - K @ np.linalg.solve(C, K))
    np.testing.assert_allclose(found.evaluation.var, var, rtol=1e-6)
    gradient = bound_gradient(bound, found.evaluation)
    step = 1e-5
    for name, d_ls, d_sigma in (("ls_log__", step, 0.0), ("sigma_log__", 0.0, step)):
        up = exact(0.7 * np.exp(d_ls), x_sigma * np.exp(d_sigma))[1]
        down = exact(0.7 * np.exp(-d_ls), x_sigma * np.exp(-d_sigma))[1]
        assert gradient[name] == pytest.approx((up - down) / (2.0 * step), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("noise", ["normal", "Student-t", "Student-t of two predictors"])
def test_units_of_the_data_do_not_matter(noise):
    rng = np.random.default_rng(0)
    group, y = np.arange(30) % 5, rng.standard_t(4, size=30)
    fits = []
    for unit in (1.0, 1e-9):
        with pm.Model() as model:
            mu = pm.Normal("mu", 0.0, 3.0 * unit) + pm.Normal("u", 0.0, unit, shape=5)[group]
            if noise == "normal":
                pm.Normal("y", mu, 0.7 * unit, observed=unit * y)
            elif noise == "Student-t":
                pm.StudentT("y", nu=4, mu=mu, sigma=0.7 * unit, observed=unit * y)
            else:
                sigma = unit * pm.math.exp(pm.Normal("v", 0.0, 0.5, shape=5)[group])
                pm.StudentT("y", nu=4, mu=mu, sigma=sigma, observed=unit * y)
        fits.append(pac.fit("vgp", model=model, progressbar=False))
    first, second = fits
    assert second.log_evidence - 30 * np.log(1e9) == pytest.approx(first.log_evidence, abs=1e-6)
    for name in ("mu", "u"):
        std = first.std[name]
        np.testing.assert_allclose((second.mean[name] * 1e9 - first.mean[name]) / std, 0, atol=1e-5)
        np.testing.assert_allclose(second.std[name] * 1e9, std, rtol=1e-5)
