"""Which sites are held where there is an auxiliary variable too."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from scipy.special import expit

import pymc_augconj as pac
from pymc_augconj.engines.gibbs.choice import choose_held, share_of_information

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
X = np.random.default_rng(1).standard_normal((200, 2))


@pytest.mark.parametrize(("y", "n"), [(3, 200), (40, 80), (0, 5)])
def test_the_share_is_that_of_the_formula(y, n):
    """One latent: precision of the posterior over precision given ω, at the VGP's fixed point."""
    mean0, std0 = -0.5, 1.7
    with pm.Model() as model:
        f = pm.Normal("f", mean0, std0, shape=1)
        pm.Binomial("y", n=n, logit_p=f, observed=np.array([y]))
    with pm.Model() as larger:
        # So that there are fewer latents than observations.
        f = pm.Normal("f", mean0, std0)
        pm.Binomial("y", n=n, logit_p=f + np.zeros(1), observed=np.array([y]))
    m, v = 0.0, 1.0
    for _ in range(500):
        p = expit(m + np.sqrt(v) * NODES)
        curvature = n * WEIGHTS @ (p * (1.0 - p))
        slope = y - n * WEIGHTS @ p
        precision = 1.0 / std0**2 + curvature
        m += 0.5 * (slope - (m - mean0) / std0**2) / precision
        v = 0.5 * v + 0.5 / precision
    c = np.sqrt(m**2 + v)
    expected = (1.0 + std0**2 * curvature) / (1.0 + std0**2 * n * np.tanh(c / 2.0) / (2.0 * c))
    for written in (model, larger):
        found = pac.recognize(written)
        share = share_of_information(found.model, found.start)
        # The sites are taken close to the fixed point, not at it.
        assert share == pytest.approx(expected, rel=0.03)


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
    "few common classes": (lambda eta: classes(0.0, slice(25))(eta[:25]), ()),
    "rare counts": (lambda eta: pm.Binomial("y", 500, logit_p=eta, observed=RARE), ("y",)),
    "beside a Student-t": (mixed, ()),
    "with a scale to learn": (hierarchy, ()),
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


def test_a_process_keeps_its_auxiliary_variables():
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0)).prior("f", X=X)
        classes(-5.0)(f)
    found = pac.recognize(model)
    assert choose_held(found.model, found.start) == ()
