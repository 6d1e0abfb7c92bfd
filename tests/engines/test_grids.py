"""Steps of processes on grids leave the posterior invariant: joint distribution tests."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac
from pymc_augconj.engines.gibbs.held_sites import HeldSites
from pymc_augconj.latents import by_grid
from pymc_augconj.latents.by_grid import GridPosterior, GridSolver
from pymc_augconj.recognition.latents import normal

STANDARD_ERRORS = 5.0
CHAINS, FEWER, STEPS = 40, 12, 5
X = [np.array([[0.0], [0.4], [1.0]]), np.array([[0.0], [0.5]])]
# Some cells are not observed, one twice.
CELLS = np.array([0, 1, 3, 3, 5])
cov = pm.gp.cov


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch):
    def multiplications(cls, blocks, groups):
        return 0.0 if cls.fits(blocks, groups) else np.inf

    monkeypatch.setattr(normal, "_FEWEST", 5)
    # Fewer are coefficients.
    monkeypatch.setattr(by_grid, "_MOST_COLUMNS", 2)
    monkeypatch.setattr(GridSolver, "multiplications", classmethod(multiplications))


def a_grid(scale=1.0):
    ls, eta = pm.InverseGamma("ls", 5, 3), pm.HalfNormal("eta", 0.7)
    b0 = pm.Normal("b0", 0.5, 0.5)
    gp = pm.gp.LatentKron(cov_funcs=[eta**2 * cov.Matern52(1, ls), cov.ExpQuad(1, 0.8)])
    return b0 + scale * gp.prior("f", X)


def counts(name, size):
    return pm.Data(f"{name} data", np.zeros(size, dtype="int64"))


def poisson_of_some_cells():
    pm.Poisson("y", pm.math.exp(a_grid()[CELLS]), observed=counts("y", 5))


def normal_of_some_cells():
    y = pm.Data("y data", np.ones(5))
    pm.Normal("y", a_grid(1.5)[CELLS], pm.Gamma("sigma", 4, 4), observed=y)


def normal_of_noisy_values():
    """With noise of a deviation that is learned, one value of which has two rows."""
    e = pm.Normal("e", 0.0, pm.Gamma("spread", 4, 6), shape=4)[[0, 1, 2, 2, 3]]
    y = pm.Data("y data", np.ones(5))
    pm.Normal("y", a_grid(1.5)[CELLS] + e, pm.Gamma("sigma", 4, 4), observed=y)


def poisson_of_noisy_values():
    """With noise of a known deviation, multiplied by a scale that is learned."""
    e = pm.Normal("e", 0.0, 0.4, shape=5)
    eta = pm.Gamma("scale", 8, 10) * (a_grid()[CELLS] + e)
    pm.Poisson("y", pm.math.exp(eta), observed=counts("y", 5))


def normal_of_two_multiples():
    """The second multiple is one where a chain starts, as the first is everywhere."""
    f = a_grid()[CELLS]
    for name, scale in {"y": 1.0, "z": pm.Gamma("scale", 4, 4)}.items():
        pm.Normal(name, scale * f, 0.5, observed=np.ones(5))


def wrong_ones(joint, chains=CHAINS):
    assert joint.step._solver is GridSolver
    z = joint.z_scores(chains, STEPS)
    return {label: value for label, value in z.items() if abs(value) > STANDARD_ERRORS}


@pytest.mark.slow
def test_exact_sites_keep_the_joint_distribution(joint_distribution):
    assert not wrong_ones(joint_distribution(normal_of_noisy_values, seed=1))


@pytest.mark.parametrize("build", [poisson_of_some_cells, poisson_of_noisy_values])
def test_held_sites_and_trajectories_keep_the_joint_distribution(
    build, joint_distribution, monkeypatch
):
    monkeypatch.setattr(HeldSites, "fit_badly", True)
    assert not wrong_ones(joint_distribution(build, seed=2))


def test_noise_that_is_not_given_the_others_does_not(joint_distribution, monkeypatch):
    monkeypatch.setattr(by_grid._Noise, "mean", lambda self, *_: np.zeros(4))
    assert wrong_ones(joint_distribution(normal_of_noisy_values, seed=4))


def test_a_wrong_completion_does_not(joint_distribution, monkeypatch):
    """What completes the precisions is drawn around other values than the latents."""
    augment = GridSolver.augment

    def shifted(self, *args):
        augment(self, *args)
        self._z += 3.0

    monkeypatch.setattr(GridSolver, "augment", shifted)
    assert wrong_ones(joint_distribution(normal_of_some_cells, seed=3))


def test_wrong_coordinates_do_not(joint_distribution, monkeypatch):
    solve = GridPosterior.solve
    monkeypatch.setattr(GridPosterior, "solve", lambda *args: 1.5 * solve(*args))
    assert wrong_ones(joint_distribution(poisson_of_some_cells, seed=6), FEWER)


def test_rows_of_different_multiples_have_no_common_one():
    with pm.Model() as model:
        normal_of_two_multiples()
    assert pac.AugmentedGibbs(model=model)._solver is not GridSolver
