"""Processes on full grids are found in the model, and sampled as the user's process."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac
from pymc_augconj.latents.by_grid import GridSolver
from pymc_augconj.latents.joint import LatentPriors
from pymc_augconj.python_mode import python_mode
from pymc_augconj.recognition.latents import normal

cov = pm.gp.cov
GRID = (4, 3, 5)


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch):
    monkeypatch.setattr(normal, "_FEWEST", 5)
    monkeypatch.setattr(GridSolver, "multiplications", classmethod(_nothing))


def _nothing(cls, blocks, groups):
    return 0.0 if cls.fits(blocks, groups) else np.inf


def inputs():
    rng = np.random.default_rng(0)
    return [np.sort(rng.uniform(0.0, 3.0, n))[:, None] for n in GRID]


def a_model(observed=None, mean=None):
    """With some cells that are not observed."""
    rng, n = np.random.default_rng(1), int(np.prod(GRID))
    observed = np.arange(n) if observed is None else observed
    with pm.Model(coords={"cell": np.arange(n)}) as model:
        ls, eta = pm.LogNormal("ls", -0.5, 0.5, shape=2), pm.HalfNormal("eta", 1, initval=0.7)
        kernels = [eta**2 * cov.ExpQuad(1, ls[0]), cov.Matern52(1, ls[1]), cov.Matern32(1, 0.9)]
        gp = pm.gp.LatentKron(mean_func=mean or pm.gp.mean.Zero(), cov_funcs=kernels)
        f = gp.prior("f", inputs(), dims="cell")
        level = pm.Normal("level", 0, 2)
        eta = (level + f)[observed]
        pm.Poisson("y", pm.math.exp(eta), observed=rng.poisson(1.5, observed.size))
    return model


SOME = np.r_[np.arange(0, 60, 2), [7, 7, 11]]


@pytest.mark.parametrize("observed", [None, SOME])
def test_the_values_are_those_of_the_model(observed):
    model = a_model(observed, mean=pm.gp.mean.Constant(0.3))
    with model:
        read = pac.recognize()
    block = next(b for b in read.model.blocks if b.kind == "kronecker")
    assert (block.name, block.value_name, block.grid) == ("f", "f_rotated_", GRID)
    assert block.form == "GP on a grid (whitened)"
    point = {**read.start, **{p: read.probes[0][p] for p in ("ls_log__", "eta_log__")}}
    v = np.random.default_rng(2).standard_normal(60)
    prior = LatentPriors(read.model, [point]).at(point)
    u = next(b for b in prior.blocks if b.block is block).scale(v)
    names = "ls_log__", "eta_log__", "f_rotated_"
    graph = model.replace_rvs_by_values([model["f"]])[0]
    inputs = [value for value in model.value_vars if value.name in names]
    values = {**point, "f_rotated_": v}
    f = pm.pytensorf.compile(inputs, graph, mode=python_mode())(*[values[i.name] for i in inputs])
    np.testing.assert_allclose(0.3 + u, f, rtol=1e-10, atol=1e-12)


def test_other_uses_of_the_whitened_values_are_no_grid():
    with a_model() as model:
        pm.Normal("z", model["f_rotated_"][0], 1.0, observed=0.3)
        read = pac.recognize()
    assert all(block.kind != "kronecker" for block in read.model.blocks)
