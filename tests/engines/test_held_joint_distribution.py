"""The step with held sites leaves the posterior invariant; see :mod:`.test_joint_distribution`."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

STANDARD_ERRORS = 5.0
CHAINS = 100
X5 = np.linspace(0.0, 1.0, 5)[:, None]
DESIGN = np.random.default_rng(20_260_801).normal(size=(10, 2))


def reals(name, size):
    return pm.Data(f"{name} data", np.zeros(size))


def counts(name, size):
    return pm.Data(f"{name} data", np.zeros(size, dtype="int64"))


def gp_prior(name, ls, eta=1.0, mean=None, **kwargs):
    options = {} if mean is None else {"mean_func": mean}
    cov = eta**2 * pm.gp.cov.ExpQuad(1, ls=ls)
    return pm.gp.Latent(cov_func=cov, **options).prior(name, X=X5, **kwargs)


def poisson_whitened():
    """An intercept and a GP with a learned kernel, merged rows, in observation space."""
    ls, eta, b0 = pm.InverseGamma("ls", 5, 3), pm.HalfNormal("eta", 0.7), pm.Normal("b0", 0.5, 0.5)
    f = gp_prior("f", ls, eta)
    index = np.array([0, 1, 2, 3, 4, 4, 1])
    pm.Poisson("y", mu=pm.math.exp((b0 + f)[index]), observed=counts("y", 7))


def poisson_centred():
    """A learned mean, centred; the kernel is fixed but for that."""
    c = pm.Normal("c", 0.5, 0.5)
    f = gp_prior("f", 0.5, 0.8, mean=pm.gp.mean.Constant(c), reparameterize=False)
    pm.Poisson("y", mu=pm.math.exp(f), observed=counts("y", 5))


def poisson_by_weights():
    """More observations than coefficients; their scale learned."""
    tau = pm.HalfNormal("tau", 0.5)
    beta, b0 = pm.Normal("beta", 0, tau, shape=2), pm.Normal("b0", 0.5, 0.5)
    mu = pm.math.exp(b0 + pm.math.dot(DESIGN, beta))
    pm.Poisson("y", mu=mu, observed=counts("y", 10))


def poisson_by_dense_weights():
    """A GP that is seen more often than it has values, in weight space."""
    ls = pm.InverseGamma("ls", 5, 3)
    f = gp_prior("f", ls, 0.7)
    weights = np.random.default_rng(3).dirichlet(np.ones(5), size=30)
    pm.Poisson("y", mu=pm.math.exp(pm.math.dot(weights, f)), observed=counts("y", 30))


MODELS = [poisson_whitened, poisson_centred, poisson_by_weights, poisson_by_dense_weights]


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_the_step_keeps_the_joint_distribution(joint_distribution, build):
    z = joint_distribution(build, seed=1).z_scores(CHAINS)
    wrong = {label: value for label, value in z.items() if abs(value) > STANDARD_ERRORS}
    assert not wrong
