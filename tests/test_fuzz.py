"""The fuzzer runs, finds nothing on a few dozen models, and finds what is made wrong on purpose."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from mpmath import mp

import pymc_augconj as pac
from fuzz import reading
from fuzz.__main__ import main
from fuzz.chains import low_states, relaxed, sample_chain
from fuzz.comparison import Outcome, compare_densities, guarded
from fuzz.grammar import random_model
from fuzz.importance import importance_sample
from fuzz.moments import compare_moments
from fuzz.reference import Reference
from pymc_augconj.api.native_step import AugmentedGibbs
from pymc_augconj.api.updates import EllipticalUpdate, SliceUpdate
from pymc_augconj.likelihoods.bernoulli_logit import BernoulliLogit
from pymc_augconj.likelihoods.contract import lift
from pymc_augconj.linalg.linear_map import DenseMap


@pytest.fixture(autouse=True)
def logging_again():
    """Let other tests see messages, which the command disables."""
    yield
    logging.disable(logging.NOTSET)


# The package and PyTensor may warn of what random models do far from any data.
pytestmark = pytest.mark.filterwarnings("ignore")

HEADER = "import numpy as np, pymc as pm, pytensor.tensor as pt\n"
REGRESSION = (
    HEADER
    + """
X = np.array([[1.0, 2e-9], [-0.5, 1e-9], [2.0, -3e-9], [0.3, 1.5e-9]])
with pm.Model() as model:
    beta = pm.Normal("beta", 0.0, np.array([1.0, {scale}]), shape=2)
    pm.Bernoulli("y", logit_p=X @ beta, observed=np.array([1, 0, 1, 1]))
"""
)
SMALL = (
    HEADER
    + """
with pm.Model() as model:
    b = pm.Normal("b", 1.0, 2.0)
    pm.Bernoulli("y", logit_p=b * np.array([1.0, -0.5, 2.0]), observed=np.array([1, 0, 0]))
"""
)


SCALED = (
    HEADER
    + """
with pm.Model() as model:
    s = pm.HalfNormal("s", 1.0)
    b = pm.Normal("b", 0.0, s)
    pm.Bernoulli("y", logit_p=b * np.array([1.0, -0.5, 2.0]), observed=np.array([1, 0, 0]))
"""
)
FLOORED = (
    HEADER
    + """
with pm.Model() as model:
    b = pm.Normal("b", 0.0, 20.0)
    p = pt.maximum(1e-7, pt.minimum(pm.math.sigmoid(b * np.array([1.0, 3.0])), 1.0 - 1e-7))
    pm.Bernoulli("y", p=p, observed=np.array([1, 0]))
"""
)


def compared(text: str) -> Outcome:
    return guarded(text, compare_densities)


@pytest.mark.slow
def test_a_dozen_models_are_read_right(capsys):
    assert main(["--models", "10", "--seed", "20000", "--small"]) == 0, capsys.readouterr().out
    assert main(["--models", "2", "--seed", "20000"]) == 0, capsys.readouterr().out


@pytest.mark.slow
def test_a_few_small_models_are_sampled_right(capsys):
    assert main(["--models", "2", "--seed", "20000", "--moments"]) == 0, capsys.readouterr().out


def test_the_same_seed_gives_the_same_program():
    assert random_model(7) == random_model(7) != random_model(8)


def test_a_program_that_is_right_is_read():
    assert compared(REGRESSION.format(scale="3e9")).kind == "read"
    assert guarded(SMALL, compare_moments).kind == "read"


# -- negative controls ----------------------------------------------------------------------------


def misread(monkeypatch, **changes):
    """Let every reading be changed after the package has checked it."""
    plain = reading.read_model

    def read(*arguments, **options):
        recognition = plain(*arguments, **options)
        model = recognition.model
        changed = {name: change(getattr(model, name)) for name, change in changes.items()}
        return replace(recognition, model=replace(model, **changed))

    monkeypatch.setattr(reading, "read_model", read)


class Changed:
    """A function of the point with another value."""

    def __init__(self, function, change):
        self.function, self.change, self.names = function, change, function.names

    def __call__(self, point):
        return self.change(self.function(point), point)


def test_a_dropped_tiny_column_is_found(monkeypatch):
    def drop(A, point):
        dense = A.dense()
        return DenseMap(np.where(np.abs(dense) < 1e-8, 0.0, dense))

    misread(monkeypatch, maps=lambda maps: tuple(Changed(read, drop) for read in maps))
    # With a prior of that unit the column does nothing.
    assert compared(REGRESSION.format(scale="1e-6")).kind == "read"
    found = compared(REGRESSION.format(scale="3e9"))
    assert found.kind == "mismatch"
    assert "'y'" in found.detail


def test_a_shifted_offset_is_found(monkeypatch):
    misread(monkeypatch, offset=lambda offset: Changed(offset, lambda x, _: x + 1e-8))
    assert compared(REGRESSION.format(scale="3e9")).kind == "mismatch"


def test_a_forgotten_factor_of_the_prior_is_found(monkeypatch):
    assert compared(SCALED).kind == "read"

    def without_jacobian(value, point):
        return value - point["s_log__"]

    misread(monkeypatch, log_prior=lambda f: Changed(f, without_jacobian))
    found = compared(SCALED)
    assert found.kind == "mismatch"
    assert "hyperparameters" in found.detail


def test_a_floor_that_is_not_read_is_found(monkeypatch):
    logit = lift(BernoulliLogit())
    misread(monkeypatch, sites=lambda sites: tuple(replace(s, likelihood=logit) for s in sites))
    assert compared(FLOORED).kind == "mismatch"


def test_a_wrong_site_is_found_by_moments_alone(monkeypatch):
    monkeypatch.setattr(BernoulliLogit, "sites", lambda self, y, omega, params: (y - 0.3, omega))
    assert compared(SMALL).kind == "read"
    # The compiled loop has draws of its own, and held sites are none of the likelihood's.
    monkeypatch.setattr(AugmentedGibbs, "prepare", lambda self, recorded, steps: False)
    monkeypatch.setattr("fuzz.moments.AugmentedGibbs", partial(AugmentedGibbs, sites="augmented"))
    found = guarded(SMALL, compare_moments)
    assert found.kind == "mismatch"
    assert "standard errors" in found.detail


# -- chains ---------------------------------------------------------------------------------------


def sampled(text: str, steps: int = 60) -> Outcome:
    return guarded(text, lambda model: sample_chain(model, steps=steps))


def test_a_chain_whose_update_accepts_everything_is_found(monkeypatch):
    assert sampled(SCALED).kind == "sampled"
    walked = SliceUpdate.__call__

    def accept(self, target, start, rng, tune):
        # Right during tuning, and afterwards no matter what the density says.
        return walked(self, target, start, rng, tune) if tune else start + 1.0

    monkeypatch.setattr(SliceUpdate, "__call__", accept)
    monkeypatch.setattr(EllipticalUpdate, "__call__", accept)
    found = sampled(SCALED)
    assert found.kind == "fallen", found
    assert "slice sampling" in found.detail


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda point, stats: point.update(b=np.array(np.nan)), "not finite"),
        (lambda point, stats: stats.update(model_logp=np.inf), "not finite"),
        (lambda point, stats: stats.update(model_logp=stats["model_logp"] + 1e-3), "mismatch"),
    ],
)
def test_wrong_states_of_a_chain_are_found(monkeypatch, change, kind):
    plain = pac.AugmentedGibbs.step

    def step(self, point):
        point, (stats,) = plain(self, point)
        change(point, stats)
        return point, [stats]

    monkeypatch.setattr(pac.AugmentedGibbs, "step", step)
    assert sampled(SCALED, steps=4).kind == kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (pac.NotPositiveDefiniteError("no Cholesky factor"), "stopped"),
        (pac.RecognitionError("the model was misread"), "misread"),
        (np.linalg.LinAlgError("Eigenvalues did not converge"), "traceback"),
    ],
)
def test_the_end_of_a_chain_is_told(monkeypatch, error, kind):
    def stop(self, point):
        raise error

    monkeypatch.setattr(pac.AugmentedGibbs, "step", stop)
    assert sampled(SCALED, steps=4).kind == kind


def test_low_states_are_those_below_a_level_that_was_reached():
    level = np.zeros(100)
    assert low_states(level, 50).size == 0
    dip, early, climb = level.copy(), level.copy(), level.copy()
    dip[70:72] = -60.0
    early[30:] = -1e9  # and never back
    climb[:80] = -60.0
    np.testing.assert_array_equal(low_states(dip, 50), [70, 71])
    np.testing.assert_array_equal(low_states(early, 50), np.arange(50, 100))
    assert low_states(climb, 50).size == 0


def test_slice_sampling_leaves_an_impossible_state_and_stays_in_a_wide_one():
    """Of a funnel: fifteen latents of a large standard deviation have a low density, rightly."""
    with pm.Model() as model:
        s = pm.LogNormal("s", 0.0, 3.0)
        pm.Normal("x", 0.0, s, shape=15)
    rng, reference = np.random.default_rng(0), Reference(model)

    def state(log_s: float, x: float) -> dict:
        return {"s_log__": np.array(log_s), "x": x * rng.standard_normal(15)}

    chain = [state(log_s, np.exp(log_s)) for log_s in rng.normal(0.0, 3.0, 20)]
    wide, impossible = state(4.0, np.exp(4.0)), state(0.0, np.exp(4.0))
    assert reference.log_density(wide) < reference.log_density(state(0.0, 1.0)) - 50.0
    climbs = [
        relaxed(point, chain, reference, rng) - reference.log_density(point)
        for point in (wide, impossible)
    ]
    assert climbs[0] < 25.0 < 500.0 < climbs[1]


def test_wild_models_are_of_scales_that_do_not_go_together():
    texts = [random_model(seed, wild=True) for seed in range(40)]
    assert texts[7] == random_model(7, wild=True) != random_model(7)
    numbers = [
        abs(float(x)) for x in re.findall(r"(?<![\w.])\d+\.?\d*(?:e[-+]?\d+)?", "".join(texts))
    ]
    assert min(x for x in numbers if x > 0.0) < 1e-8
    assert max(numbers) > 1e8
    assert any("rho" in text and "0.0, 3.0" in text for text in texts)


def test_other_errors_than_the_packages_are_told_from_refusals(monkeypatch):
    def fail(*_, **__):
        raise KeyError("inside")

    monkeypatch.setattr(reading, "read_model", fail)
    assert compared(SMALL).kind == "traceback"
    assert compared(HEADER + "model = None.missing\n").kind == "invalid"


# -- the reference --------------------------------------------------------------------------------


def test_tolerances_come_from_rounding():
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1.0)
        # Loses half of the digits at 1e-8, and all of them beyond 1e-16.
        pm.Potential("difference", pt.log((1.0 + x) - 1.0))
    reference = Reference(model)
    stable, unstable = (reference({"x": np.array(at)})["difference"] for at in (0.3, 1e-8))
    assert stable.tolerance[0] < 1e-10
    assert stable.is_tight.all()
    assert not unstable.disagrees(np.log([1e-8])).any()
    assert unstable.disagrees(np.log([2e-8])).any() == unstable.is_tight.all()


def test_a_factor_of_constants_has_the_rounding_of_its_matrix():
    """The smallest pivot of a Hilbert matrix has an error of the largest entry's, not its own."""
    n, f = 8, np.array([1.0, -2.0, 1.5, 0.3, -0.7, 0.2, 1.1, -0.4])
    K = 1.0 / (np.arange(n)[:, None] + np.arange(n) + 1.0)
    with pm.Model() as model:
        pm.MvNormal("f", np.zeros(n), cov=K)
    (density,) = Reference(model)({"f": f}, carefully=True).values()
    with mp.workdps(50):
        M, x = mp.matrix(K.tolist()), mp.matrix(f.tolist())
        log_det, square = mp.log(mp.det(M)), (x.T * mp.lu_solve(M, x))[0]
        exact = float(-(n * mp.log(2 * mp.pi) + log_det + square) / 2)
    assert 0.0 < abs(density.value[0] - exact) <= density.tolerance[0] < 1e-2 * abs(exact)


def test_a_difference_from_a_mean_has_the_means_rounding():
    with pm.Model() as model:
        m = pm.Normal("m", 0.0, 1.0)
        b = pm.Normal("b", m, 1.0)
        pm.Normal("y", 1e9 * b, 1.0, observed=0.0)
    reference = Reference(model)
    at_zero = reference({"m": np.array(0.0), "b": np.array(0.0)})["y"]
    beside = reference({"m": np.array(0.3), "b": np.array(0.0)})["y"]
    assert at_zero.tolerance[0] < 1e-10
    # m + (b − m) is 5e-17 where b is zero, and 1e9 times as much in the predictor.
    assert not beside.disagrees(beside.value - 0.5 * 5e-8**2).any()
    assert beside.disagrees(beside.value - 0.5 * 1e-4**2).any()


def test_single_precision_of_a_constant_is_never_overlooked():
    with pm.Model() as model:
        pm.Normal("x", 0.0, 2.0, shape=2)
    at = {"x": np.zeros(2)}
    exact = np.full(2, -np.log(2.0 * np.sqrt(2.0 * np.pi)))
    assert not any(Reference(model, i)(at)["x"].disagrees(exact).any() for i in range(50))


def test_single_precision_is_not_lost_in_the_stable_form():
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1.0)
        # log Γ(3) is computed in single precision, and the logarithm at 1e-8 is unstable.
        pm.Potential("both", pt.gammaln(pt.constant(np.float32(3.0))) + pt.log(1 - pt.sigmoid(x)))
    for at in (1.0, 30.0):
        found = Reference(model)({"x": np.array(at)})["both"]
        assert not found.disagrees(np.log(2.0) - np.logaddexp(0.0, [at])).any()
        assert found.is_tight.all()
        assert found.disagrees(np.log(2.0) + 1e-3 - np.logaddexp(0.0, [at])).all()


def test_digits_of_subnormal_numbers_are_never_overlooked():
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1.0)
        pm.Potential("rounded", pt.log(pt.exp(x)))
        pm.Potential("exact", 1.0 * x)
    at = {"x": np.array(-740.3)}
    rounded = np.log(np.exp(at["x"]))
    assert abs(rounded - at["x"]) > 1e-4
    for seed in range(50):
        found = Reference(model, seed)(at)
        assert not found["rounded"].disagrees(at["x"]).any()
        assert not found["exact"].disagrees(rounded).any()
        assert found["exact"].disagrees(at["x"] - 0.1).all()


def test_importance_sampling_agrees_with_the_closed_form():
    """In two units that no one matrix of covariances holds."""
    units = np.array([1.0, 1e-9])
    with pm.Model() as model:
        b = pm.Normal("b", units, 2.0 * units, shape=2)
        pm.Normal("y", b / units, 1.0, observed=np.array([[0.3, 0.3], [1.7, 1.7]]))
    rng = np.random.default_rng(0)
    # Precision ¼ + 2, mean (¼ + 0.3 + 1.7) / 2.25.
    weighted = importance_sample(model, rng.normal(0.0, 1.0, (100, 2)) * units, rng)
    mean, error = weighted.mean(weighted.draws / units)
    assert weighted.effective > 1000
    assert np.all(np.abs(mean - 1.0) < 5.0 * error)
    square, error = weighted.mean((weighted.draws / units - 1.0) ** 2)
    assert np.all(np.abs(square - 1.0 / 2.25) < 5.0 * error)
