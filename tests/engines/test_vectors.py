"""Vectors of observations beside the closed form of a linear regression with a known covariance."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_augconj as pac
from pymc_augconj.likelihoods.multivariate_normal import MultivariateNormal

RNG = np.random.default_rng(20_261_123)
N, P = 12, 3
X = RNG.normal(size=(N, 2))
Y = RNG.normal(size=(N, P)) + X @ RNG.normal(size=(2, P))
# One covariance of all, and one of each observation.
ROOT = np.tril(0.4 + 0.2 * RNG.normal(size=(P, P))) + np.eye(P)
ONE = ROOT @ ROOT.T
EACH = ONE * np.linspace(0.5, 2.0, N)[:, None, None]


def closed_form(cov):
    """Return log evidence, and mean and covariance of B, for y_i ~ N(B'x_i, Σ_i), B ~ N(0, 4)."""
    A = np.kron(X, np.eye(P))  # rows: observation, then entry
    noise = np.zeros((N * P, N * P))
    for i, own in enumerate(np.broadcast_to(cov, (N, P, P))):
        noise[i * P : (i + 1) * P, i * P : (i + 1) * P] = own
    total = noise + 4.0 * A @ A.T
    gain = 4.0 * np.linalg.solve(total, A).T
    log_evidence = stats.multivariate_normal.logpdf(Y.ravel(), np.zeros(N * P), total)
    return log_evidence, gain @ Y.ravel(), 4.0 * (np.eye(2 * P) - gain @ A)


def regression(**cov):
    with pm.Model() as model:
        B = pm.Normal("B", 0, 2, shape=(2, P))
        pm.MvNormal("y", pm.math.dot(X, B), observed=Y, **cov)
    return model


@pytest.mark.parametrize("method", ["vgp", "cavi"])
@pytest.mark.parametrize(
    ("spelling", "cov"),
    [
        ({"cov": ONE}, ONE),
        ({"chol": ROOT}, ONE),
        ({"tau": np.linalg.inv(ONE)}, ONE),
        ({"cov": EACH}, EACH),
    ],
    ids=["cov", "chol", "tau", "cov of each"],
)
def test_fits_are_the_closed_form(method, spelling, cov):
    q = pac.fit(method, model=regression(**spelling), progressbar=False)
    log_evidence, mean, posterior_cov = closed_form(cov)
    np.testing.assert_allclose(q.log_evidence, log_evidence, rtol=1e-9)
    np.testing.assert_allclose(q.mean["B"].to_numpy().ravel(), mean, atol=1e-8)
    std = np.sqrt(np.diag(posterior_cov))
    np.testing.assert_allclose(q.std["B"].to_numpy().ravel(), std, rtol=1e-8)


def test_draws_and_the_log_evidence_are_the_closed_form():
    """Independent draws, as nothing but Gaussian latents is unknown: exact Monte Carlo errors."""
    _, mean, cov = closed_form(EACH)
    draws = 2000
    idata = pac.sample(
        model=regression(cov=EACH), draws=draws, tune=0, chains=1, cores=1, random_seed=1,
        progressbar=False, compute_convergence_checks=False,
    )  # fmt: skip
    B = idata.posterior["B"].to_numpy().reshape(draws, -1)
    z = (B.mean(axis=0) - mean) / np.sqrt(np.diag(cov) / draws)
    assert np.abs(z).max() < 4.5
    # (n − 1) S S⁻¹ has a Wishart distribution: its log determinant is asymptotically normal.
    log_ratio = np.linalg.slogdet(np.cov(B.T))[1] - np.linalg.slogdet(cov)[1]
    assert abs(log_ratio) < 4.5 * np.sqrt(2.0 * B.shape[1] / draws)
    # Negative control: the covariance of independent entries is another one.
    apart = np.linalg.slogdet(closed_form(np.diag(np.diag(ONE)))[2])[1]
    assert abs(apart - np.linalg.slogdet(cov)[1]) > 9.0 * np.sqrt(2.0 * B.shape[1] / draws)


def test_arithmetic_alone_gives_the_precision():
    kind, rows, cols = MultivariateNormal(P), *np.tril_indices(P)
    params = {f"entry_{p}": Y[:, p] for p in range(P)}
    params |= {f"cov_{i}_{j}": EACH[:, i, j] for i, j in zip(rows, cols, strict=True)}
    y, lam, log_peak = kind.as_vectors(params)
    np.testing.assert_array_equal(y, Y.T)
    np.testing.assert_allclose(np.moveaxis(lam, -1, 0), np.linalg.inv(EACH), rtol=1e-12)
    np.testing.assert_allclose(log_peak, kind.log_density(Y[:, 0], y, params), rtol=1e-12)


def test_what_moves_a_covariance_is_a_hyperparameter():
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        pm.MvNormal("y", b * np.ones(2), cov=pm.math.exp(b) * np.eye(2), observed=Y[:, :2])
    assert not pac.recognize(model).model.blocks
