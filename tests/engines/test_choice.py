"""Which sites are held where there is an auxiliary variable too."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from scipy.special import expit

import pymc_augconj as pac
from pymc_augconj.engines.gibbs.choice import choose_held

X = np.random.default_rng(1).standard_normal((200, 2))


def regression(likelihood):
    with pm.Model() as model:
        likelihood(pm.Normal("a", 0, 5) + pm.math.dot(X, pm.Normal("b", 0, 2, shape=2)))
    return model


def classes(shift, rows=slice(None)):
    y = np.random.default_rng(2).random(200) < expit(X @ [1.0, -0.5] + shift)
    return lambda eta: pm.Bernoulli("y", logit_p=eta, observed=y[rows].astype(int))


RARE = np.random.default_rng(3).binomial(500, expit(X @ [0.5, -0.5] - 5.0))


def mixed(eta):
    classes(-5.0)(eta)
    pm.StudentT("z", nu=4, mu=eta, sigma=1, observed=X[:, 0])


def hierarchy(eta):
    deviations = pm.Normal("d", 0, pm.HalfNormal("tau", 1), shape=3)
    classes(-5.0)(eta + deviations[np.arange(200) % 3])


CHOICES = {
    "rare classes": (classes(-5.0), ("y",)),
    "common classes": (classes(0.0), ("y",)),
    "two classes in all": (lambda eta: classes(0.0, slice(2))(eta[:2]), ()),
    "rare counts": (lambda eta: pm.Binomial("y", 500, logit_p=eta, observed=RARE), ("y",)),
    "beside a Student-t": (mixed, ()),
    "with a scale to learn": (hierarchy, ()),
    "large counts with a parameter to learn": (
        lambda eta: pm.NegativeBinomial(
            "y", mu=pm.math.exp(eta), alpha=pm.HalfNormal("alpha", 1), observed=300 + RARE
        ),
        ("y",),
    ),
    "with a parameter to learn": (
        lambda eta: pm.NegativeBinomial(
            "y", mu=pm.math.exp(eta), alpha=pm.HalfNormal("alpha", 1), observed=RARE
        ),
        (),
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_sites_are_held_where_auxiliary_variables_know_too_much(name):
    likelihood, expected = CHOICES[name]
    model = regression(likelihood)
    assert pac.AugmentedGibbs(model=model).held == expected
    assert pac.AugmentedGibbs(model=model, sites="augmented").held == ()
    assert ("held sites" in str(pac.recognize(model))) == bool(expected)


@pytest.mark.parametrize(("groups", "held"), [(40, ()), (90, ("y",))])
def test_observations_that_are_summed_keep_their_auxiliary_variables(groups, held):
    with pm.Model() as model:
        u = pm.Normal("u", shape=groups)
        classes(0.0)(u[np.arange(200) % groups])
    assert pac.AugmentedGibbs(model=model).held == held


def test_a_process_keeps_its_auxiliary_variables():
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0)).prior("f", X=X)
        classes(-5.0)(f)
    found = pac.recognize(model)
    assert choose_held(found.model, found.start) == ()
