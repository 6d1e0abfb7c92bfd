"""Vectors of hyperparameters whose entries are independent given everything else."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_augconj as pac
from pymc_augconj.recognition.recognizer import read_model

M, COPIES = 12, 3
GROUP = np.repeat(np.arange(M), COPIES)
Y = np.random.default_rng(1).normal(size=M * COPIES)


def effects():
    return pm.Normal("u", 0, 1, shape=M)


def slopes():
    a = pm.LogNormal("a", 0, 0.5, shape=M)
    pm.Bernoulli("y", logit_p=a[GROUP] * (effects()[GROUP] - 0.3), observed=Y > 0)


def scales_of_groups():
    u = pm.Normal("u", 0, pm.HalfNormal("a", pm.HalfNormal("s", 1), shape=M))
    pm.Poisson("y", pm.math.exp(u[GROUP]), observed=(Y > 0).astype(int))


def noises_of_groups():
    a = pm.Gamma("a", 2, 2, shape=M)
    pm.StudentT("y", nu=4, mu=effects()[GROUP], sigma=a[GROUP], observed=Y)


def first_entry_of_all():
    a = pm.Gamma("a", 2, 2, shape=M)
    pm.Normal("y", effects()[GROUP], a[GROUP] + a[0], observed=Y)


def neighbours():
    a = pm.Gamma("a", 2, 2, shape=M)
    pm.Normal("y", effects()[GROUP], a[GROUP] * a[(GROUP + 1) % M], observed=Y)


def ordered():
    transform = pm.distributions.transforms.ordered
    a = pm.Normal("a", 0, 1, shape=M, transform=transform, initval=np.linspace(-1, 1, M))
    pm.Normal("y", effects()[GROUP], pm.math.exp(a[GROUP]), observed=Y)


def simplex():
    a = pm.Dirichlet("a", np.ones(M))
    pm.Normal("y", effects()[GROUP], a[GROUP], observed=Y)


def beyond_a_threshold():
    # Dependence that no test point shows.
    a = pm.Normal("a", 0, 1, shape=M)
    scale = pt.exp(a[GROUP] + pt.switch(a[0] > 30.0, a[1], 0.0))
    pm.Normal("y", effects()[GROUP], scale, observed=Y)


def entries_of(build):
    with pm.Model() as model:
        build()
    found = read_model(model)
    (hyper,) = (h for h in found.model.hyperparameters if h.name == "a")
    return model, found, hyper


@pytest.mark.parametrize("build", [slopes, scales_of_groups, noises_of_groups])
def test_terms_of_each_entry_add_up_to_the_log_density(build):
    model, found, hyper = entries_of(build)
    rng = np.random.default_rng(2)
    old = {name: value + rng.normal(size=value.shape) for name, value in found.start.items()}
    moved = rng.normal(size=M)
    log_density = model.compile_logp()
    before = hyper.entries(old)
    for j in (0, 5, M - 1):
        x = old[hyper.value_name].copy()
        x[j] = moved[j]
        new = {**old, hyper.value_name: x}
        change = hyper.entries(new) - before
        assert np.flatnonzero(change).tolist() == [j]
        np.testing.assert_allclose(change[j], log_density(new) - log_density(old), rtol=1e-9)


@pytest.mark.parametrize("build", [first_entry_of_all, neighbours, ordered, simplex])
def test_dependent_entries_are_none(build):
    assert entries_of(build)[2].entries is None


def test_a_dependence_that_was_missed_stops_a_chain():
    _, found, hyper = entries_of(beyond_a_threshold)
    old = {**found.start, hyper.value_name: np.full(M, 31.0)}
    new = {**found.start, hyper.value_name: np.full(M, 32.0)}
    hyper.entries.check(found.start, found.start, np.arange(M) < 6)
    with pytest.raises(pac.RecognitionError, match=r"'a'.*independent given the other variables"):
        hyper.entries.check(old, new, np.arange(M) == 1)
