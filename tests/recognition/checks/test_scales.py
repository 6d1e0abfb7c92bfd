"""Priors of scales far apart, and autoregressions that may be explosive."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_augconj as pac

N = 40
COUNTS = np.random.default_rng(3).poisson(20.0, N)


@pytest.mark.parametrize(("step", "start"), [(1.0, 2.0), (1e-3, 1e5), (1e-4, 1e6)])
def test_walks_whose_start_is_wider_than_their_steps(step, start, read):
    """τ₀ + τ has no digit of τ₀; log|Q| = Σ log τ₀ + (n − 1) log τ does."""
    with pm.Model() as model:
        sd, init = pm.HalfNormal("sd", step), pm.Normal.dist(0, [start, 2.0 * start])
        z = pm.GaussianRandomWalk("z", sigma=sd, init_dist=init, shape=(2, N))
        pm.Normal("y", z, 1.0, observed=np.ones((2, N)))
    reading = read(model)
    (block,) = reading.lgm.blocks
    point = reading.points(1)[0]
    prior, _ = reading.innovations(point)
    (at,) = prior.blocks
    expected = np.log(2.0 * start**2) + 2 * (N - 1) * point["sd_log__"]
    assert at.log_det_scale() == pytest.approx(expected, rel=1e-12)
    slopes = block.scale_pullback(point, at.log_det_slopes())
    assert slopes["sd_log__"] == pytest.approx(-4.0 * (N - 1), rel=1e-12)
    v = np.random.default_rng(5).standard_normal(2 * N)
    steps = np.diff(at.scale(v).reshape(2, N), axis=1) / np.exp(point["sd_log__"])
    np.testing.assert_allclose(steps, v.reshape(2, N)[:, 1:], atol=1e-3)


def stacked():
    return pt.stack([pm.Normal("b0", 0, 0.1), pm.Normal("b1", 1, 0.1)])


AUTOREGRESSIONS = {
    "coefficients that are stacked": (stacked, N),
    "near a unit root": (lambda: pm.Normal("rho", [0, 1.0], 0.1), 74),
    "long": (lambda: pm.Normal("rho", [0, 1.0], 0.1), 400),
}


@pytest.mark.parametrize("name", AUTOREGRESSIONS)
def test_autoregressions_near_a_unit_root(name):
    coefficients, length = AUTOREGRESSIONS[name]
    with pm.Model() as model:
        init, s = pm.Normal.dist(3, 1), pm.HalfNormal("s", 0.1)
        f = pm.AR("f", coefficients(), sigma=s, constant=True, init_dist=init, shape=length)
        pm.TruncatedNormal("unrelated", 0, 0.1, lower=-1, upper=1)
        pm.Poisson("y", pt.exp(f[:N]), observed=COUNTS)
    assert "f" in {block.name for block in pac.recognize(model).model.blocks}
