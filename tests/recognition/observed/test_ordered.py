"""Cumulative logit models, by the closed form of their density."""

from __future__ import annotations

import mpmath
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_augconj as pac

N = 600
RNG = np.random.default_rng(0)
Y, GROUP = RNG.integers(4, size=N), RNG.integers(5, size=N)


def by_hand(eta, cut):
    """Probabilities of the classes as packages of formulas write them."""
    eta, sigmoid = eta[:, None], pm.math.sigmoid
    inner = sigmoid(cut[1:] - eta) - sigmoid(cut[:-1] - eta)
    return pt.concatenate([sigmoid(cut[0] - eta), inner, 1 - sigmoid(cut[-1] - eta)], axis=-1)


WRITTEN = {
    "by PyMC": lambda eta, cut: pm.OrderedLogistic("y", eta, cut, observed=Y),
    "by hand": lambda eta, cut: pm.Categorical("y", p=by_hand(eta, cut), observed=Y),
    "probit": lambda eta, cut: pm.OrderedProbit("y", eta, cut, observed=Y),
    "backwards": lambda eta, cut: pm.Categorical("y", p=by_hand(eta, cut)[:, ::-1], observed=Y),
}


def read(name):
    with pm.Model() as model:
        cut = pm.Normal(
            "cut", 0, 2, shape=3, initval=[-1.0, 0.3, 1.5],
            transform=pm.distributions.transforms.ordered,
        )  # fmt: skip
        WRITTEN[name](pm.Normal("a", 0, pm.HalfNormal("sd"), shape=5)[GROUP], cut)
    (site,) = pac.recognize(model).model.sites
    return site.likelihood


@pytest.mark.parametrize("name", ["by PyMC", "by hand"])
def test_every_spelling_has_the_density_of_many_digits(name):
    likelihood = read(name)
    assert likelihood.cutpoints == ("cut_0", "cut_1", "cut_2")
    # Classes in turn, and some that are none.
    y = np.concatenate([np.arange(N) % 4, [-1.0, 4.0]])
    eta = np.concatenate([np.linspace(-30.0, 30.0, N), np.zeros(2)])
    for values in [(-1.0, 0.3, 1.5), (-4.0, -3.999, 8.0)]:
        params = dict(zip(likelihood.cutpoints, map(np.array, values), strict=True))
        found = likelihood.log_density(y, eta[None], params)
        assert np.all(found[N:] == -np.inf)
        bounds = [-mpmath.inf, *map(mpmath.mpf, values), mpmath.inf]
        with mpmath.workdps(50):
            sigma = [
                [1 / (1 + mpmath.exp(-(bounds[int(k) + j] - mpmath.mpf(e)))) for j in (0, 1)]
                for k, e in zip(y[:N], eta[:N], strict=True)
            ]
            expected = [float(mpmath.log(above - below)) for below, above in sigma]
        # 1 + a number is rounded, and its logarithm taken.
        np.testing.assert_allclose(found[:N], expected, rtol=1e-12, atol=4.0 * np.finfo(float).eps)
        # Of few rows PyMC's formula is taken, unless a probability is lost in rounding.
        some = np.array([0, 1, 2, 3, N - 1])
        far = likelihood.log_density(np.arange(N) % 4, np.full((1, N), -60.0), params)
        few = likelihood.log_density(y[some], np.full((1, 5), -60.0), params)
        np.testing.assert_allclose(few, far[some], rtol=1e-12)


@pytest.mark.parametrize("name", ["probit", "backwards"])
def test_other_densities_are_as_they_are_read(name):
    assert read(name).cutpoints == ()


def test_where_exponentials_overflow_it_is_the_density_that_was_read():
    likelihood = read("by PyMC")
    params = dict(zip(likelihood.cutpoints, map(np.array, (-1.0, 0.3, 1.5)), strict=True))
    y, eta = np.arange(N) % 4, np.where(np.arange(N) % 8 < 4, -800.0, 800.0)
    found = likelihood.log_density(y, eta[None], params)
    np.testing.assert_array_equal(found[:8], likelihood.log_density(y[:8], eta[None, :8], params))


def test_what_is_kept_belongs_to_the_observations_and_cutpoints_asked_for():
    rng, likelihood = np.random.default_rng(1), read("by PyMC")
    low, high = ((x, x + 0.7, x + 2.0) for x in (-1.0, -0.4))
    whole, other = rng.integers(4, size=(2, 2 * N)).astype(float)
    part = whole[:N]
    for y, values in ((whole, low), (part, low), (part, high), (whole, low), (other, low)):
        params = dict(zip(likelihood.cutpoints, map(np.array, values), strict=True))
        eta = rng.normal(size=(1, y.size))
        few = np.split(np.arange(y.size), y.size // 100)
        expected = [likelihood.log_density(y[own], eta[:, own], params) for own in few]
        found = likelihood.log_density(y, eta, params)
        np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-10)
