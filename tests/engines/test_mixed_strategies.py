"""One model with a part of the latents under held sites and a part whose sites are drawn."""

from __future__ import annotations

from functools import cache

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.special import expit

import pymc_augconj as pac
from pymc_augconj.api.updates import SliceUpdate
from pymc_augconj.engines.gibbs.choice import choose_held
from pymc_augconj.engines.gibbs.held_sites import HeldSites
from pymc_augconj.engines.gibbs.sampler import GibbsSampler
from pymc_augconj.plan import make_plan

X = np.array([[0.0], [1.0]])
Y, Z = np.array([1.9, -0.6]), np.array([0.4, -0.8])
R, STD = 2.0, 1.5
SCALE = "eta_log__"


def build(*, tied: bool = False):
    """Two values of a mean, which bounds see too, and two of a log precision."""
    with pm.Model() as model:
        eta = pm.LogNormal("eta", 0, 0.7)
        f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=X)
        g = pm.Normal("g", 0, STD, shape=2)
        pm.Normal("y", f, tau=R * pm.math.sigmoid(g), observed=Y)
        eta = f + g if tied else f
        pm.Uniform("z", eta - 1.2, eta + 1.2, observed=Z)
    return model


@cache
def exact():
    """Return first and second moments of (log η, f, g) by importance sampling from the prior."""
    rng, count = np.random.default_rng(0), 150_000
    log_eta, g = 0.7 * rng.normal(size=count), STD * rng.normal(size=(count, 2))
    K = np.exp(-0.5 * (X - X.T) ** 2)
    f = np.exp(log_eta)[:, None] * (rng.normal(size=(count, 2)) @ np.linalg.cholesky(K).T)
    weight = np.prod(stats.norm.pdf(Y, f, (R * expit(g)) ** -0.5), axis=1)
    weight *= np.all(np.abs(Z - f) < 1.2, axis=1)
    weight /= weight.sum()
    assert 1.0 / np.sum(weight**2) > 6_000.0
    values = np.column_stack([log_eta, f, g])
    return weight @ values, weight @ values**2


def largest_z_score(recognition, held, *, wrong: bool = False) -> float:
    model, start, probes = recognition.model, recognition.start, recognition.probes
    sites = HeldSites(model, held, [SCALE], probes)
    sampler = GibbsSampler(model, make_plan(model, held), start, probes, 1, sites)
    assert [part.tilted is None for part in sampler.parts] == [False, True]
    if wrong:
        sampler.parts[0].tilted._by_row = lambda etas, point=None: np.zeros(etas.shape)
    rng, update = np.random.default_rng(1), SliceUpdate(1)
    updates = {"collapsed f": lambda target, x, rng: update(target, x, rng, tune=False)}
    point, draws = sampler.dispersed(rng, start), np.empty((400, 5))
    for row in draws:
        point, _ = sampler.step(rng, point, updates)
        f = sampler.chain.latent_values(point, sampler.priors.at(point).blocks)
        row[:] = [point[SCALE], *np.concatenate(list(f.values()))]
    found = []
    for x, first, second in zip(draws.T, *exact(), strict=True):
        for values, expected in ((x, first), (x**2, second)):
            effective = float(az.ess(values[None]))
            assert wrong or effective > 100.0
            found.append(abs(values.mean() - expected) / (values.std() / np.sqrt(effective)))
    return max(found)


@pytest.fixture(scope="module")
def recognition():
    return pac.recognize(build())


def test_a_mixture_has_the_posterior(recognition):
    held = choose_held(recognition.model, recognition.start, "auto", recognition.probes)
    assert held == ("z",)
    assert largest_z_score(recognition, held) < 5.0


def test_a_mixture_that_took_the_sites_for_the_density_would_not(recognition):
    assert largest_z_score(recognition, ("z",), wrong=True) > 5.0


def test_a_held_site_that_ties_the_groups_has_them_held():
    found = pac.recognize(build(tied=True))
    assert choose_held(found.model, found.start, "auto", found.probes) == ("y", "z")
