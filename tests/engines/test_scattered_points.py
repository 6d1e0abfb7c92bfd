"""Steps by an incomplete factor leave the posterior invariant: joint distribution tests."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac
from pymc_augconj.latents import by_neighbours
from pymc_augconj.latents.by_neighbours import IncompletePosterior, IncompleteSolver

STANDARD_ERRORS = 5.0
CHAINS, FEWER, STEPS = 15, 10, 5
X = np.random.default_rng(0).uniform(size=(9, 2))
# A point has no observation, another has two.
ROWS = np.r_[0:8, 3]


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch):
    suits = IncompleteSolver.pattern

    def multiplications(cls, blocks, groups):
        return 0.0 if suits(blocks, groups) is not None else np.inf

    monkeypatch.setattr(IncompleteSolver, "multiplications", classmethod(multiplications))


def a_process():
    ls, eta = pm.InverseGamma("ls", 5, 3), pm.HalfNormal("eta", 0.7)
    cov = eta**2 * pm.gp.cov.Matern32(2, ls=ls)
    f = pac.Vecchia("f", X=X, cov_func=cov, neighbours=2)
    return (pm.Normal("b0", 0.5, 0.5) + f)[ROWS]


def binary():
    y = pm.Data("y data", np.zeros(ROWS.size, dtype="int64"))
    pm.Bernoulli("y", logit_p=a_process(), observed=y)


def counts():
    y = pm.Data("y data", np.zeros(ROWS.size, dtype="int64"))
    pm.Poisson("y", pm.math.exp(a_process()), observed=y)


def wrong_ones(joint, chains=CHAINS):
    assert joint.step._solver is IncompleteSolver
    z = joint.z_scores(chains, STEPS)
    return {label: value for label, value in z.items() if abs(value) > STANDARD_ERRORS}


@pytest.mark.parametrize("observe", [pytest.param(binary, marks=pytest.mark.slow), counts])
def test_steps_keep_the_joint_distribution(observe, joint_distribution):
    assert not wrong_ones(joint_distribution(observe, seed=1))


def test_steps_with_a_rough_border_keep_it_too(joint_distribution, monkeypatch):
    monkeypatch.setattr(by_neighbours, "_CLOSE", np.inf)
    assert not wrong_ones(joint_distribution(counts, seed=3))


def test_other_numbers_do_not(joint_distribution, monkeypatch):
    solve = IncompletePosterior.solve
    monkeypatch.setattr(IncompletePosterior, "solve", lambda *args: 0.6 * solve(*args))
    assert wrong_ones(joint_distribution(counts, seed=2), FEWER)
