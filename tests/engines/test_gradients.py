"""Gradients of converged bounds against differences of re-converged ones."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_augconj as pac
from pymc_augconj.engines.variational.ascent import climb
from pymc_augconj.engines.variational.bound import (
    BoundFamily,
    CoordinateAscent,
    VariationalGaussian,
    bound_gradient,
)

N = 30
RNG = np.random.default_rng(0)
X, GROUP, Z = RNG.uniform(-3.0, 3.0, (N, 1)), RNG.integers(0, 4, N), RNG.normal(size=(N, 2))
WAVE = np.sin(2.0 * X[:, 0])
NOISE, COUNTS = 0.3 * RNG.standard_t(3, size=N), RNG.poisson(np.exp(WAVE))


def kernel_mean_and_likelihood():
    ls, amp = pm.InverseGamma("ls", 5, 5), pm.HalfNormal("amp", 2)
    nu, sigma, mu = pm.Gamma("nu", 5, 1), pm.HalfNormal("sigma", 1), pm.Normal("mu", 0, 1)
    slope, tau = pm.HalfNormal("slope", 1), pm.HalfNormal("tau", 1)
    mean = pm.gp.mean.Linear(coeffs=slope)
    cov = amp**2 * pm.gp.cov.Matern52(1, ls=ls)
    f = pm.gp.Latent(mean_func=mean, cov_func=cov).prior("f", X=X)
    b0 = pm.Normal("b0", mu, tau)
    pm.StudentT("y", nu=nu, mu=b0 + f, sigma=sigma, observed=WAVE + NOISE)


def scaled_latent():
    ls, amp = pm.InverseGamma("ls", 5, 5), pm.HalfNormal("amp", 2)
    f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls)).prior("f", X=X, reparameterize=False)
    pm.Bernoulli("y", logit_p=amp * f, observed=WAVE + NOISE > 0)


def weight_space():
    ls, tau, alpha = pm.InverseGamma("ls", 5, 5), pm.HalfNormal("tau", 1), pm.HalfNormal("alpha", 2)
    gp = pm.gp.HSGP(m=[6], c=1.5, cov_func=pm.gp.cov.Matern52(1, ls=ls))
    group, beta = pm.Normal("group", 0, tau, shape=4), pm.Normal("beta", 0, 1, shape=2)
    eta = gp.prior("f", X=X) + group[GROUP] + Z @ beta
    pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=alpha, observed=COUNTS)


def merged_rows():
    ls, b = pm.InverseGamma("ls", 5, 5), pm.HalfNormal("b", 1, shape=2)
    f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls)).prior("f", X=X[:6])
    pm.Laplace("y", mu=f[np.arange(N) % 6], b=b[np.arange(N) % 2], observed=WAVE)


def two_outputs():
    ls = pm.InverseGamma("ls", 5, 5)
    f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls)).prior("f", X=X[:8], n_outputs=2)
    pm.Normal("y", mu=f[0] - 0.5 * f[1], sigma=0.4, observed=WAVE[:8])


def correlated_effects():
    tau = pm.HalfNormal("tau", 1, shape=2)
    chol = pt.diag(tau) @ np.array([[1.0, 0.0], [-0.6, 0.8]])
    b = pm.MvNormal("b", mu=np.zeros(2), chol=chol, shape=(4, 2))
    pm.Normal("y", mu=b[GROUP, 0] + b[GROUP, 1] * Z[:, 0], sigma=0.4, observed=WAVE)


def flat_level():
    ls, tau, amp = pm.InverseGamma("ls", 5, 5), pm.HalfNormal("tau", 1), pm.HalfNormal("amp", 2)
    f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls)).prior("f", X=X)
    group, beta = pm.Normal("group", pm.Flat("level"), tau, shape=4), pm.Normal("beta", 0, 1e6)
    pm.StudentT("y", nu=4, mu=amp * (f + group[GROUP] + Z[:, 0] * beta), sigma=0.4, observed=WAVE)


def flat_coefficients():
    slope, sigma = pm.HalfNormal("slope", 1), pm.HalfNormal("sigma", 1)
    b = pm.Flat("b", shape=2)
    mu = slope * b[0] + Z @ b + pm.Normal("group", 0, slope, shape=4)[GROUP]
    pm.StudentT("y", nu=4, mu=mu, sigma=sigma, observed=WAVE)


MODELS = [
    flat_coefficients,
    flat_level,
    kernel_mean_and_likelihood,
    scaled_latent,
    weight_space,
    merged_rows,
    two_outputs,
    correlated_effects,
]


@pytest.mark.parametrize("rule", [CoordinateAscent, VariationalGaussian])
@pytest.mark.parametrize("write", MODELS)
def test_gradient_agrees_with_differences(write, rule):
    with pm.Model() as model:
        write()
    recognition = pac.recognize(model)
    lgm = recognition.model
    family = BoundFamily(lgm, rule(), [recognition.start, *recognition.probes])
    if write is weight_space:
        assert family.preferred.name == "weight"
    point = {name: np.asarray(value) for name, value in recognition.start.items()}
    point |= {h.value_name: point[h.value_name] + np.array(0.1) for h in lgm.hyperparameters}
    bound = family.at(point)
    found = climb(bound, max_iter=500, tol=1e-10)
    assert found.converged
    gradient = bound_gradient(bound, found.evaluation)
    start = found.evaluation.h, found.evaluation.lam

    def value(name, where, shift):
        moved = np.array(point[name], dtype=float)
        moved[where] += shift
        at = family.at({**point, name: moved})
        return climb(at, start, max_iter=500, tol=1e-10).evaluation.bound

    step = 1e-4
    for h in lgm.hyperparameters:
        slope = np.broadcast_to(gradient.get(h.value_name, 0.0), h.shape)
        for where in np.ndindex(h.shape):
            up, down = (value(h.value_name, where, sign * step) for sign in (1.0, -1.0))
            expected = (up - down) / (2.0 * step)
            assert slope[where] == pytest.approx(expected, rel=1e-5, abs=1e-5), h.name
