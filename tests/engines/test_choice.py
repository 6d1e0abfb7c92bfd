"""Which sites are held where there is an auxiliary variable too."""

from __future__ import annotations

from functools import partial

import numpy as np
import pymc as pm
import pytest
from scipy.special import expit

import pymc_augconj as pac
from pymc_augconj.engines.gibbs import choice
from pymc_augconj.engines.gibbs.choice import choose_held

X = np.random.default_rng(1).standard_normal((200, 2))


def regression(likelihood):
    with pm.Model() as model:
        likelihood(pm.Normal("a", 0, 5) + pm.math.dot(X, pm.Normal("b", 0, 2, shape=2)))
    return model


def classes(shift):
    y = np.random.default_rng(2).random(200) < expit(X @ [1.0, -0.5] + shift)
    return lambda eta: pm.Bernoulli("y", logit_p=eta, observed=y.astype(int))


def separated(eta):
    pm.Bernoulli("y", logit_p=eta, observed=(X[:, 0] > 0.1).astype(int))


def trials(eta):
    pm.Binomial("y", 3, logit_p=eta, observed=np.arange(eta.type.shape[0]) % 4)


RARE = np.random.default_rng(3).binomial(500, expit(X @ [0.5, -0.5] - 5.0))


def mixed(eta):
    classes(-5.0)(eta)
    pm.StudentT("z", nu=4, mu=eta, sigma=1, observed=X[:, 0])


def probits(eta):
    pm.Bernoulli("y", p=pm.math.invprobit(eta), observed=np.arange(200) % 2)


def hierarchy(eta, scales=1, observed=None):
    for k in range(scales):
        deviations = pm.Normal(f"d{k}", 0, pm.HalfNormal(f"tau{k}", 1), shape=3)
        eta = eta + deviations[np.arange(200) // (k + 1) % 3]
    (observed or classes(0.0))(eta)


CHOICES = {
    "rare classes": (classes(-5.0), ("y",)),
    "common classes": (classes(0.0), ("y",)),
    "many known groups": (
        lambda eta: classes(0.0)(eta + pm.Normal("u", shape=60)[np.arange(200) % 60]),
        (),
    ),
    "separated classes": (separated, ("y",)),
    "three trials": (trials, ("y",)),
    "eleven columns": (
        lambda eta: classes(0.0)(eta + sum(pm.Normal(f"c{k}") * X[:, 0] ** k for k in range(8))),
        ("y",),
    ),
    "rare counts": (lambda eta: pm.Binomial("y", 500, logit_p=eta, observed=RARE), ("y",)),
    "beside a Student-t": (mixed, ()),
    "with a scale to learn": (hierarchy, ("y",)),
    "with a scale of many groups": (
        lambda eta: classes(0.0)(
            eta + pm.Normal("u", 0, pm.HalfNormal("s", 2), shape=60)[np.arange(200) % 60]
        ),
        (),
    ),
    "trials with a scale to learn": (partial(hierarchy, observed=trials), ("y",)),
    "with many scales to learn": (partial(hierarchy, scales=4), ()),
    "probits with many scales": (partial(hierarchy, scales=4, observed=probits), ("y",)),
    "logistic noise": (
        partial(hierarchy, observed=lambda eta: pm.Logistic("y", eta, 0.5, observed=X[:200, 0])),
        ("y",),
    ),
    "Matérn noise beside classes": (
        lambda eta: (classes(0.0)(eta), pac.MaternNoise("z", 1.5, eta, 0.5, observed=X[:, 0])),
        ("z",),
    ),
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
        ("y",),
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
        trials(u[np.arange(200) % groups])
    assert pac.AugmentedGibbs(model=model).held == held


def test_large_processes_keep_their_auxiliary_variables(monkeypatch):
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0)).prior("f", X=X)
        classes(0.0)(f)
    found = pac.recognize(model)
    assert choose_held(found.model, found.start) == ("y",)
    monkeypatch.setattr(choice, "_MANY_LATENTS", 199)
    assert choose_held(found.model, found.start) == ()


def test_large_crossed_effects_keep_their_auxiliary_variables():
    """Their latents are drawn by factor; those of fewer levels are drawn at once."""
    rng = np.random.default_rng(5)
    for levels, held in ((300, ()), (40, ("y",))):
        with pm.Model() as model:
            u, w = (pm.Normal(k, 0, pm.HalfNormal(f"sd {k}"), shape=levels) for k in "uw")
            eta = u[rng.integers(levels, size=2000)] + w[rng.integers(levels, size=2000)]
            trials(eta)
        found = pac.recognize(model)
        assert choose_held(found.model, found.start) == held


def test_a_factor_that_is_zero_at_the_start():
    """All rows are equal there, and nowhere else."""
    with pm.Model() as model:
        b, k = pm.Normal("b", 0, pm.HalfNormal("s", 1)), pm.StudentT("k", nu=5, mu=0, sigma=0.4)
        classes(0.0)(k * (X[:, 0] * b))
    assert pac.AugmentedGibbs(model=model).held == ("y",)
