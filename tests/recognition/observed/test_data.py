"""``pm.Data``: what ``pm.set_data`` changes after recognition is honoured, or refused."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

from pymc_augconj.engines.gibbs.sampler import GibbsSampler
from pymc_augconj.errors import DataError

N = 8
RNG = np.random.default_rng(6)
X = RNG.standard_normal((N, 2))
BINARY = RNG.integers(0, 2, N)
GROUP = np.array([0, 2, 1, 1, 0, 2, 2, 0])


def set_values(reading, **data):
    """Set data, and read the model's log density again with a new sampler, as a new chain does."""
    pm.set_data(data, model=reading.pymc_model)
    r = reading.recognition
    reading.sampler = GibbsSampler(r.model, reading.sampler.chain.plan, r.start, r.probes)
    return reading.verify()


@pytest.fixture
def process_reading(read):
    with pm.Model(coords={"obs": np.arange(N), "feature": ["a", "b"]}) as model:
        inputs = pm.Data("X", X, dims=("obs", "feature"))
        cov = pm.gp.cov.ExpQuad(2, ls=pm.InverseGamma("ls", 5, 5))
        f = pm.gp.Latent(cov_func=cov).prior("f", X=inputs, dims="obs")
        shift = pm.Data("shift", np.zeros(N), dims="obs")
        observed = pm.Data("Y", BINARY, dims="obs")
        pm.Bernoulli("y", logit_p=f + shift, observed=observed, dims="obs")
    return read(model)


@pytest.fixture
def regression_reading(read):
    with pm.Model() as model:
        design, group = pm.Data("X", X), pm.Data("group", GROUP)
        eta = design @ pm.Normal("beta", 0, 1, shape=2) + pm.Normal("a", 0, 1, shape=3)[group]
        z = pm.HalfNormal("s", 1) * pm.Normal("z", 0, 1, shape=3)
        pm.Binomial("y", n=pm.Data("n", np.full(N, 5)), logit_p=eta + z[group], observed=BINARY)
    return read(model)


def test_observations_inputs_and_offsets(process_reading):
    (site,) = process_reading.lgm.sites
    start = process_reading.recognition.start
    K = process_reading.lgm.blocks[0].scale(start)
    set_values(process_reading, Y=1 - BINARY, shift=np.arange(N, dtype=float), X=2 * X)
    np.testing.assert_array_equal(site.y(start), 1 - BINARY)
    np.testing.assert_array_equal(process_reading.lgm.offset(start), np.arange(N))
    assert np.abs(process_reading.lgm.blocks[0].scale(start) - K).max() > 0.1


def test_designs_and_indices_are_read_again(regression_reading):
    reading = regression_reading
    start = reading.recognition.start
    set_values(reading, X=-X, group=GROUP[::-1].copy())
    beta, a, z = (
        reading.lgm.maps[[b.name for b in reading.lgm.blocks].index(n)](start)
        for n in ("beta", "a", "z")
    )
    np.testing.assert_allclose(beta.matrix, -X)
    np.testing.assert_array_equal(a.index, GROUP[::-1])
    np.testing.assert_array_equal(z.index, GROUP[::-1])


def test_structure_may_become_another(regression_reading):
    """A design of one entry a row is a selection; whatever the data make it is read anew."""
    one_entry = np.eye(2)[BINARY]
    reading = set_values(regression_reading, X=one_entry)
    kinds = {b.name: m.kind for b, m in zip(reading.lgm.blocks, reading.lgm.maps, strict=True)}
    assert kinds["beta"] == "selection"


def test_same_data_are_not_read_again(regression_reading):
    maps = regression_reading.lgm.maps
    start = regression_reading.recognition.start
    assert all(m(start) is m(start) for m in maps if not m.names)


INFINITE = np.where(np.arange(N) == 3, np.inf, 0.0)
MISSING = np.where(np.arange(2 * N).reshape(N, 2) == 5, np.nan, X)
BAD = {
    "Y": (np.full(N, 2), r"'y' \(Bernoulli\): expected 0 or 1, found 2 at position 0"),
    "shift": (INFINITE, r"distribution of 'y' \('shift'\) has the value inf at position \(3,\)"),
    "X": (MISSING, r"covariance of 'f' \('X'\) has the value nan at position \(2, 1\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_data_are_refused_at_every_reading(name, process_reading):
    """The check of the observations is what every chain starts with."""
    value, sentence = BAD[name]
    pm.set_data({name: value}, model=process_reading.pymc_model)
    for _ in range(2):
        with pytest.raises(DataError, match=sentence):
            process_reading.lgm.sites[0].y(process_reading.recognition.start)


def test_parameters_are_checked_with_the_observations(regression_reading):
    pm.set_data({"n": np.zeros(N, dtype=int)}, model=regression_reading.pymc_model)
    with pytest.raises(DataError, match="an integer from 0 to n = 0, found 1"):
        regression_reading.lgm.sites[0].y(regression_reading.recognition.start)


def test_another_number_of_observations_is_refused(process_reading):
    # No pm.set_data of one array alone: it would refuse the dims itself.
    coords = {"obs": np.arange(N + 1)}
    data = {"X": np.zeros((N + 1, 2)), "Y": np.zeros(N + 1, int), "shift": np.zeros(N + 1)}
    pm.set_data(data, coords=coords, model=process_reading.pymc_model)
    with pytest.raises(DataError, match=r"'y': expected 8 observations.*found 9.*again"):
        process_reading.lgm.sites[0].y(process_reading.recognition.start)


def test_a_chain_says_that_the_number_of_observations_changed(regression_reading):
    reading = regression_reading
    data = {"X": X[2:], "group": GROUP[2:], "n": np.full(N - 2, 5)}
    pm.set_data(data, model=reading.pymc_model)
    r = reading.recognition
    with pytest.raises(DataError, match=r"expected shape .* as when the model was recognised"):
        GibbsSampler(r.model, reading.sampler.chain.plan, r.start, r.probes)


def test_another_number_of_inputs_is_refused(regression_reading):
    regression_reading.pymc_model["X"].set_value(np.zeros((N, 3)))
    with pytest.raises(DataError, match=r"'X': expected shape \(8, 2\).*found \(8, 3\).*again"):
        regression_reading.lgm.sites[0].y(regression_reading.recognition.start)


def test_missing_observations_are_refused(read):
    with pm.Model() as model:
        observed = pm.Data("Y", RNG.standard_normal(N))
        pm.Normal("y", pm.Normal("b", 0, 1), 1, observed=observed)
    reading = read(model)
    pm.set_data({"Y": np.where(np.arange(N) == 2, np.nan, 0.0)}, model=model)
    with pytest.raises(DataError, match="'y' has the value nan at position 2: expected finite"):
        reading.lgm.sites[0].y(reading.recognition.start)
