"""A variable may have any name: no internal name is in the way of it."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac

N = 6
RNG = np.random.default_rng(3)
X = RNG.standard_normal((N, 1))
Y = RNG.standard_normal(N)


def model_of(name):
    """The variable ``name`` in a design, a covariance, a mean and an unused prediction."""
    with pm.Model() as model:
        d = pm.StudentT(name, nu=5, mu=0, sigma=1)
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=pm.math.exp(0.1 * d)))
        f = gp.prior("f", X=X)
        b = pm.Normal("b", d, 1)
        c = pm.Normal("c", b, 1, shape=N)
        pm.Laplace("y", d * X[:, 0] + b + f + c * pm.math.exp(0.2 * d), 0.5, observed=Y)
        pm.Normal("unused", c[0] + d, 1)
    return model, gp


@pytest.fixture(scope="module")
def results():
    """Return what every use of the model gives, whatever the variable is called."""

    def of(name):
        model, gp = model_of(name)
        drawn = pac.sample(
            3,
            tune=2,
            chains=1,
            cores=1,
            model=model,
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        )
        fit = pac.fit("cavi", model=model, max_iter=1000, progressbar=False)
        new = pac.predict(fit, gp, X[:2] + 0.1, model=model).predictions["f_mean"]
        return [drawn.posterior["c"].values, drawn.posterior[name].values, fit.objective, new]

    return of


@pytest.fixture(scope="module")
def expected(results):
    return results("slope")


@pytest.mark.parametrize("name", ["direction", "weights", "innovation:b", "latent:c"])
def test_any_name_will_do(results, expected, name):
    for found, same in zip(results(name), expected, strict=True):
        np.testing.assert_array_equal(found, same)


def test_a_name_that_results_need_is_refused():
    model, gp = model_of("f_u")
    with pytest.raises(pac.AugmentationError, match=r"'f_u' of the model.*rename it"):
        pac.fit("vgp", model=model, gp=gp, inducing=3, progressbar=False)
