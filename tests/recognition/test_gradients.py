"""Derivatives with respect to hyperparameters agree with finite differences."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

N = 6
RNG = np.random.default_rng(10)
X = RNG.standard_normal((N, 2))
BINARY = RNG.integers(0, 2, N)
GROUP = np.array([0, 2, 1, 1, 0, 2])


def observe(eta):
    pm.Bernoulli("y", logit_p=eta, observed=BINARY)


def scaled_process():
    ls, eta = pm.InverseGamma("ls", 5, 5, shape=2), pm.HalfNormal("eta", 2)
    cov = eta**2 * pm.gp.cov.Matern52(2, ls=ls)
    mean = pm.gp.mean.Constant(pm.Gamma("c", 2, 1))
    f = pm.gp.Latent(mean_func=mean, cov_func=cov).prior("f", X=X)
    observe(pm.Gamma("amplitude", 2, 1) * f + pm.Exponential("shift", 1) * X[:, 0])


def other_form():
    ls = pm.Uniform("ls", 0.5, 2)
    cov = pm.gp.cov.ExpQuad(2, ls=ls)
    c = pm.Normal("c", pm.HalfNormal("m", 1), pm.HalfNormal("s", 1))
    mean = pm.gp.mean.Constant(c)
    observe(pm.gp.Latent(mean_func=mean, cov_func=cov).prior("f", X=X, reparameterize=False))


def hierarchy():
    tau = pm.HalfCauchy("tau", 1, shape=3)
    mu = pm.Normal("mu", 0, pm.HalfNormal("s", 1))
    alpha = pm.Normal("alpha", mu, tau, shape=3)
    pm.Exponential("z", tau[0], observed=[1.0, 2.0])
    pm.Potential("p", -(tau[1] ** 2))
    observe(alpha[GROUP] + X @ (pm.Normal("beta", 0, 1, shape=2) * pm.HalfNormal("lam", 1)))


def correlated_effects():
    sd = pm.HalfNormal.dist(1, shape=2)
    chol, _, _ = pm.LKJCholeskyCov("L", n=2, eta=2, sd_dist=sd, compute_corr=True)
    b = pm.MvNormal("b", mu=np.zeros(2), chol=chol, shape=(3, 2))
    root = pt.linalg.cholesky(pt.eye(N) + pm.HalfNormal("s", 1))
    f = pm.MvNormal("f", mu=np.zeros(N), chol=root)
    observe(b[GROUP, 0] + b[GROUP, 1] * X[:, 0] + f)


def equal_eigenvalues():
    ls = pm.InverseGamma("ls", 5, 5)
    triangle = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])
    covs = [pm.gp.cov.ExpQuad(X.shape[1], ls=ls)(points) for points in (triangle, X[:2])]
    observe(pm.KroneckerNormal("f", np.ones(N), covs=covs, sigma=pm.HalfNormal("s", 1), shape=N))


MODELS = [scaled_process, other_form, hierarchy, correlated_effects, equal_eigenvalues]


@pytest.fixture(params=MODELS, ids=lambda build: build.__name__)
def reading(request, read):
    with pm.Model() as model:
        request.param()
    return read(model)


def compare(found, expected):
    assert set(found) >= {name for name, slope in expected.items() if np.any(slope != 0.0)}
    for name, slope in found.items():
        assert slope.shape == expected[name].shape
        np.testing.assert_allclose(slope, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def names_of(reading):
    return [h.value_name for h in reading.lgm.hyperparameters]


def test_log_prior(reading, numerical_gradient):
    for point in reading.points(2):
        expected = numerical_gradient(
            lambda p: float(reading.lgm.log_prior(p)), point, names_of(reading)
        )
        compare(reading.lgm.log_prior_gradient(point), expected)


def test_scales_of_the_blocks(reading, numerical_gradient):
    for block in reading.lgm.blocks:
        for point in reading.points(2):
            weights = RNG.standard_normal(block.scale(point).shape)
            expected = numerical_gradient(
                lambda p, block=block, G=weights: float((G * block.scale(p)).sum()),
                point,
                names_of(reading),
            )
            found = block.scale_pullback(point, weights)
            assert set(found) == set(block.scale.names)
            compare(found, expected)


def test_predictor_at_fixed_innovations(reading, numerical_gradient):
    point = reading.points(1)[0]
    innovations = {b.name: RNG.standard_normal(b.total_size) for b in reading.lgm.blocks}
    weights = RNG.standard_normal(reading.lgm.n_rows)
    expected = numerical_gradient(
        lambda p: float(weights @ reading.lgm.predictor(p, innovations)), point, names_of(reading)
    )
    compare(reading.lgm.predictor_pullback(point, innovations, weights), expected)


def test_nothing_to_differentiate(read):
    with pm.Model() as model:
        observe(pm.Normal("b", 0, 1, shape=N))
    lgm = read(model).lgm
    start = {"b": np.zeros(N)}
    assert lgm.log_prior_gradient(start) == {}
    assert lgm.blocks[0].scale_pullback(start, np.ones(N)) == {}
    assert lgm.predictor_pullback(start, {"b": np.zeros(N)}, np.ones(N)) == {}
