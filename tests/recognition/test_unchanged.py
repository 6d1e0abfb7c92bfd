"""Reading a model leaves the model as it was."""

from __future__ import annotations

import io
from contextlib import suppress

import numpy as np
import pymc as pm
import pytensor
import pytest

import pymc_augconj as pac

N = 6
X = np.linspace(0.0, 3.0, N)[:, None]
Y = np.array([0.3, -0.4, 1.2, 0.1, -1.0, 0.6])


def process(name, ls=1.0):
    return pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls)).prior(name, X=X)


def learned_kernel_and_noise():
    f = process("f", pm.InverseGamma("ls", 5, 10))
    pm.StudentT("y", nu=pm.Gamma("nu", 2, 0.1), mu=f, sigma=pm.HalfNormal("s"), observed=Y)


def noise_of_a_process():
    # The second process is none of the latents: its graph is read unchanged.
    pm.Normal("y", mu=process("f"), sigma=pm.math.exp(process("g", 2.0)), observed=Y)


def noise_of_covariates():
    sigma = pm.math.exp(X[:, 0] * pm.Normal("slope") / 2.0 - 1.0)
    pm.Laplace("y", mu=process("f") + pm.Normal("b0"), b=sigma, observed=Y)


def density_alone():
    mu = pm.Deterministic("mu", pm.math.exp(process("f") + pm.Normal("b0")))
    pm.Gamma("y", mu=mu, sigma=mu * pm.HalfNormal("s"), observed=np.exp(Y))


def density_of_two_predictors():
    pm.SkewNormal(
        "y", mu=process("f"), sigma=1.0, alpha=pm.math.exp(pm.Normal("a", shape=N)), observed=Y
    )


def probability():
    p = pm.Deterministic("p", 1 / (1 + pm.math.exp(-process("f") / np.sqrt(2.0))))
    pm.Bernoulli("y", p=p, observed=Y > 0)


def custom():
    b = pm.HalfNormal("b")
    pm.CustomDist(
        "y", process("f"), b, logp=lambda y, f, b: -abs(y - f) / b - pm.math.log(2 * b), observed=Y
    )


def written(model):
    """Return the graphs of everything in the model, as text."""
    text = io.StringIO()
    variables = [*model.basic_RVs, *model.deterministics, *model.potentials]
    pytensor.dprint([*variables, model.logp()], file=text)
    return text.getvalue()


BUILDS = (
    learned_kernel_and_noise,
    noise_of_a_process,
    noise_of_covariates,
    density_alone,
    density_of_two_predictors,
    probability,
    custom,
)


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.__name__)
def test_reading_leaves_the_model_as_it_was(build):
    with pm.Model() as model:
        build()
    before = written(model)
    outcomes = []
    for _ in range(2):
        try:
            outcomes.append(str(pac.recognize(model)))
        except pac.AugmentationError as error:
            outcomes.append(str(error))
        assert written(model) == before
    assert outcomes[0] == outcomes[1]
    # As a step for some of the variables reads it.
    with suppress(pac.AugmentationError):
        pac.recognize(model, vars=model.free_RVs[:1])
    assert written(model) == before
