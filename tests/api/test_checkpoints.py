"""A chain that goes on from a written state makes the draws that it would have made."""

from __future__ import annotations

import pickle

import numpy as np
import pymc as pm
import pytest

from pymc_augconj.api import native_step
from pymc_augconj.api.checkpoints import CHECKPOINT, Checkpoints
from pymc_augconj.api.native_step import AugmentedGibbs
from pymc_augconj.api.sparsify import SparseGibbs, sparsified

rng = np.random.default_rng(3)
X = np.linspace(0.0, 3.0, 12)[:, None]
GROUP, Y = np.repeat(np.arange(6), 4), rng.normal(0.5, 1.0, 24)
COUNTS, CLASSES = rng.poisson(2.0, 12), rng.integers(2, size=12)


def groups():
    """Of the compiled loop."""
    tau, nu = pm.HalfNormal("tau", 1.0), pm.Exponential("nu", 0.2)
    a = pm.Normal("a", 0.0, tau, shape=6)
    pm.Bernoulli("y", logit_p=a[GROUP], observed=Y > 0.0)
    pm.StudentT("y2", nu=1.0 + nu, mu=a[GROUP], sigma=0.8, observed=Y)


def process(observe):
    ls, scale = pm.InverseGamma("ls", 5, 5), pm.HalfNormal("scale", 1.0)
    gp = pm.gp.Latent(cov_func=scale**2 * pm.gp.cov.Matern52(1, ls=ls))
    observe(gp.prior("f", X=X))
    return gp


def classified():
    process(lambda f: pm.Bernoulli("y", logit_p=f, observed=CLASSES))


def counted():
    """Of held sites."""
    process(lambda f: pm.Poisson("y", pm.math.exp(f), observed=COUNTS))


def noisy():
    """Exact sites scaled by a hyperparameter, and a variable that is drawn forward."""
    process(lambda f: pm.Normal("y", f, pm.HalfNormal("sigma", 1.0), observed=Y[:12]))
    pm.Normal("new", 0.0, 1.0)


def slopes():
    """A vector whose entries are updated at once, and rates that move with a level."""
    z, alpha = pm.Normal("z", 0.0, 1.0, shape=6), pm.Gamma("alpha", 2.0, 0.5)
    b = pm.LogNormal("b", 0.0, 0.5, shape=4)
    pm.Bernoulli("y", logit_p=z[:, None] * b, observed=Y.reshape(6, 4) > 0.0)
    pm.NegativeBinomial("n", mu=pm.math.exp(z), alpha=alpha, observed=COUNTS[:6])


STEPS, TUNE = 46, 34
CASES = {
    "loop": (groups, {}),
    "nuts": (classified, {"hyper_sampler": "nuts"}),
    "elliptical": (noisy, {"hyper_sampler": "elliptical"}),
    "held": (counted, {}),
    "slopes": (slopes, {}),
}


def steps_of(step, start, saved=()):
    """Return the points and statistics of a chain, by PyMC's calls."""
    step.checkpoints = Checkpoints(0.0, dict(saved))
    step.setup_chain(np.random.default_rng(7).spawn(3)[2], TUNE, STEPS - TUNE)
    point, made = start, []
    for i in range(STEPS):
        if i == TUNE:
            step.stop_tuning()
        point, (stats,) = step.step(point)
        made.append(({k: np.array(v) for k, v in point.items()}, stats))
    return made


@pytest.mark.parametrize("name", CASES)
def test_goes_on_as_before(name, monkeypatch):
    define, options = CASES[name]
    with pm.Model() as model:
        define()
    start = model.initial_point()

    def make():
        step = AugmentedGibbs(model=model, **options)
        if name == "loop":
            monkeypatch.setattr(native_step, "_FEWEST", 1)
            monkeypatch.setattr(native_step, "_FIRST", 3)
            monkeypatch.setattr(native_step, "_SECONDS", 1e-9)
            assert step.prepare(None, STEPS)
        return step

    check(make, start)


def test_goes_on_through_inducing_points():
    with pm.Model() as model:
        gp = process(lambda f: pm.Poisson("y", pm.math.exp(f), observed=COUNTS))
    found = sparsified(model, gp, X[::3], None, None)
    start = found.model.initial_point()
    check(lambda: SparseGibbs(model=found.model, sparsified=found), start)


def check(make, start):
    step = make()
    whole = steps_of(step, start)
    states = {i + 1: stats[CHECKPOINT] for i, (_, stats) in enumerate(whole) if CHECKPOINT in stats}
    assert STEPS in states
    at = min(n for n in states if n >= 29)
    again = steps_of(step, start, {2: states[at]})
    for (point, stats), (new, new_stats) in zip(whole[at:], again[at:], strict=True):
        for key, value in point.items():
            np.testing.assert_array_equal(new[key], value)
        for key in stats.keys() - {CHECKPOINT, "warning"}:
            np.testing.assert_array_equal(new_stats[key], stats[key], err_msg=key)


@pytest.mark.parametrize("lost", ["rng", "learned"])
def test_a_state_that_lacks_something_is_noticed(lost):
    """Negative control."""
    with pm.Model() as model:
        counted()
    start, step = model.initial_point(), AugmentedGibbs(model=model)
    whole = steps_of(step, start)
    early, late = (pickle.loads(whole[i][1][CHECKPOINT]) for i in (14, 28))
    late.state[lost] = early.state[lost]
    again = steps_of(step, start, {2: pickle.dumps(late)})
    assert np.abs(again[-1][0]["f_rotated_"] - whole[-1][0]["f_rotated_"]).max() > 1e-6
