"""Flat coefficients without a proper posterior are refused, and no others are."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

from pymc_augconj import RecognitionError, fit, recognize, sample
from pymc_augconj.recognition.recognizer import read_model

N = 60
RNG = np.random.default_rng(0)
X = RNG.normal(size=N)
GROUP = np.arange(N) % 5
BINARY = (RNG.random(N) < 0.5).astype(int)
COUNTS = RNG.poisson(2.0, N)
WIDE = RNG.normal(size=(N, N + 1))
YEARS = 2000.0 + np.arange(N)


def flat(name, **shape):
    return pm.Flat(name, **shape)


def normal(eta, observed=X, sigma=1.0):
    pm.Normal("y", eta, sigma, observed=observed)


def bernoulli(eta, observed):
    pm.Bernoulli("y", logit_p=eta, observed=observed)


def poisson(eta, observed):
    pm.Poisson("y", pm.math.exp(eta), observed=observed)


def classes(eta):
    pm.Categorical("y", logit_p=eta, observed=GROUP % 3)


def softmax(intercepts):
    return intercepts + X[:, None] * pm.Normal("b", shape=3)


IMPROPER = {
    "two intercepts": (
        lambda: normal(flat("a") + flat("b")),
        "'a' and 'b' .Flat.*the same in some direction; give one of them a prior",
    ),
    "an intercept and every group": (
        lambda: normal(flat("a") + flat("b", shape=5)[GROUP]),
        "'b' and 'a'",
    ),
    "a group without data": (
        lambda: normal(flat("b", shape=6)[GROUP]),
        "'b' at position 5 .Flat.*no observation that depends on it",
    ),
    "more columns than data": (lambda: normal(WIDE @ flat("b", shape=N + 1)), "'b'"),
    "separated": (lambda: bernoulli(flat("a") + flat("b") * X, X > 0.3), "'a' and 'b'.*separated"),
    "ones alone": (lambda: bernoulli(flat("a"), np.ones(N)), "'a' .*separated.*give it a prior"),
    "a group of ones": (
        lambda: bernoulli(flat("a") + flat("b") * (GROUP == 0), np.where(GROUP == 0, 1, BINARY)),
        "'b' .Flat",
    ),
    "a group of zeros": (
        lambda: poisson(flat("b", shape=5)[GROUP], np.where(GROUP == 2, 0, COUNTS)),
        "'b' at position 2",
    ),
    "classes with a common shift": (lambda: classes(softmax(flat("a", shape=3))), "'a' .Flat"),
    "no trials": (
        lambda: pm.Binomial("y", np.where(GROUP == 1, 0, 9), logit_p=flat("b", shape=5)[GROUP],
                            observed=np.where(GROUP == 1, 0, COUNTS)),
        "'b' at position 1",
    ),
}  # fmt: skip

PROPER = {
    "groups": lambda: normal(flat("b", shape=5)[GROUP]),
    "as many as data": lambda: normal(flat("b", shape=N)),
    "overlap": lambda: bernoulli(flat("a") + flat("b") * X, BINARY),
    "one of the other class": lambda: bernoulli(
        flat("a") + flat("b") * X, (np.sort(X)[30] < X) ^ (np.arange(N) == X.argmax())
    ),
    "separated by a normal slope": lambda: bernoulli(flat("a") + pm.Normal("b") * X, X > 0.3),
    "counts": lambda: poisson(flat("b", shape=5)[GROUP], COUNTS),
    "heavy tails": lambda: pm.StudentT("y", 3, mu=flat("a") + flat("b") * X, sigma=1, observed=X),
    "the mean of effects": lambda: normal(pm.Normal("e", flat("m"), 1.0, shape=5)[GROUP]),
    "far from zero": lambda: normal(flat("a") + flat("b") * YEARS + flat("c") * YEARS**2),
    "large numbers": lambda: normal(flat("a") + flat("b") * X, 1e9 * X, 1e9),
    "small numbers": lambda: normal(flat("a") + flat("b") * 1e-9 * X, 1e-9 * X, 1e-9),
    "classes with a reference": lambda: classes(
        softmax(pm.math.concatenate([np.zeros(1), flat("a", shape=2)]))
    ),
    "ordered": lambda: pm.OrderedLogistic(
        "y", eta=flat("b") * X, cutpoints=np.array([-1.0, 1.0]), observed=GROUP % 3
    ),
    "zero at the initial point": lambda: normal(flat("a") * pm.Normal("s")),
}


@pytest.mark.parametrize("case", IMPROPER)
def test_an_improper_posterior_is_refused(case):
    build, names = IMPROPER[case]
    with pm.Model() as model:
        build()
    with pytest.raises(RecognitionError, match=names):
        recognize(model)


@pytest.mark.parametrize("case", PROPER)
def test_a_proper_posterior_is_not(case):
    with pm.Model() as model:
        PROPER[case]()
    recognize(model)


def test_many_observations_are_looked_at_in_parts():
    """Separated but for one observation, of thousands that the first linear programs leave out."""
    x = np.linspace(-1.0, 1.0, 20_001)
    y = (x > 0.0).astype(int)
    for at, proper in ((None, False), (3, True)):
        if at is not None:
            y[at] = 1
        with pm.Model() as model:
            bernoulli(flat("a") + flat("b") * x, y)
        if proper:
            recognize(model)
        else:
            with pytest.raises(RecognitionError, match="separated"):
                recognize(model)


def test_nothing_is_sampled_or_fitted_but_parts_of_the_data_are_read():
    """Where data are in chunks the model holds some of them, which may all be of one class."""
    with pm.Model() as model:
        bernoulli(flat("a"), np.ones(N))
    for call in (lambda: fit("vgp", progressbar=False), lambda: sample(10, progressbar=False)):
        with model, pytest.raises(RecognitionError, match="separated"):
            call()
    read_model(model)
