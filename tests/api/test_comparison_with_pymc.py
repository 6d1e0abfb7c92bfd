"""A chain stops where its log density is not PyMC's; where it is, nothing is noticed."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from scipy.stats import norm

import pymc_augconj as pac
from pymc_augconj.api import step as step_module
from pymc_augconj.latents.dense import DiagonalPrior
from pymc_augconj.likelihoods.bernoulli_logit import BernoulliLogit
from pymc_augconj.recognition.checks.checks import WholeDensity

N = 6
RNG = np.random.default_rng(19)
X = RNG.standard_normal((N, 1))
BINARY = np.array([0, 1, 1, 0, 1, 1])
REAL = RNG.standard_normal(N)


def process(**kwargs):
    scale = pm.HalfNormal("scale", 1)
    cov = scale**2 * pm.gp.cov.Matern52(1, ls=pm.InverseGamma("ls", 5, 5))
    return pm.gp.Latent(cov_func=cov).prior("f", X=X, **kwargs)


def logit():
    pm.Bernoulli("y", logit_p=process() + pm.Normal("b", 0, 5), observed=BINARY)


def two_observed():
    u = pm.Normal("u", pm.Normal("m", 0, 1), pm.HalfNormal("s", 1), shape=N)
    pm.StudentT("z", nu=4, mu=u, sigma=pm.HalfNormal("noise", 2), observed=REAL)
    pm.Bernoulli("y", logit_p=u, observed=BINARY)


def not_whitened():
    pm.Laplace("y", mu=process(reparameterize=False), b=2, observed=REAL)


def large_units():
    design = X * [[1e9, 1e-9]]
    beta = pm.Normal("beta", 0, [3e-9, 3e9], shape=2)
    sigma = 10.0 ** np.linspace(-6, 9, N)
    pm.Normal("y", design @ beta, sigma, observed=1e3 * REAL)


def missing():
    values = np.ma.masked_array(REAL, np.arange(N) < 2)
    with pytest.warns(pm.exceptions.ImputationWarning):
        pm.StudentT("y", nu=5, mu=process(), sigma=0.3, observed=values)


def left_to_pymc():
    k = pm.Bernoulli("k", 0.5)
    pm.Bernoulli("y", logit_p=pm.Normal("b", 0, 1, shape=2)[k] + process(), observed=BINARY)


MODELS = [logit, two_observed, not_whitened, large_units, missing, left_to_pymc]


def chain(build, n_steps=12, seed=3):
    """Return the points of a chain, step by step."""
    with pm.Model() as model:
        build()
        step = pac.AugmentedGibbs()
    step.setup_chain(np.random.default_rng(seed), n_steps, 0)
    point, points = model.initial_point(), []
    for _ in range(n_steps):
        point, _ = step.step(point)
        points.append(point)
    return points


@pytest.fixture
def compared(monkeypatch):
    """The differences found, and the tolerance's largest part."""
    found = []
    check = WholeDensity.check

    def recorded(self, point, ours, sampler, where):
        check(self, point, ours, sampler, where)
        theirs = sum(float(np.sum(term)) for term in self._density(point))
        found.append((abs(ours - theirs), abs(theirs)))

    monkeypatch.setattr(WholeDensity, "check", recorded)
    return found


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_the_log_density_of_a_chain_is_pymcs(build, compared):
    chain(build)
    assert len(compared) == 3  # steps 1, 3 and 10
    # What PyTensor computes in single precision is of some 1e-7.
    assert all(difference <= 1e-6 * (1.0 + size) for difference, size in compared)


def test_a_truncated_normal_is_not_stopped():
    """PyMC has the √2 of Φ in single precision, which moves this density by 2e-5."""
    rng = np.random.default_rng(10)
    x = rng.uniform(-2, 2, 800)
    y = 0.5 + 1.2 * x + rng.standard_normal(800)
    x, y = x[y > 0][:400], y[y > 0][:400]

    def build():
        b, s = pm.Normal("b", 0, 2, shape=2), pm.HalfNormal("s", 1)
        pm.TruncatedNormal("y", b[0] + b[1] * x, s, lower=0, observed=y)

    chain(build, seed=10)


def test_draws_do_not_depend_on_the_comparison(monkeypatch):
    found = chain(two_observed)
    monkeypatch.setattr(step_module, "_COMPARED", frozenset())
    for a, b in zip(found, chain(two_observed), strict=True):
        for name, value in a.items():
            np.testing.assert_array_equal(value, b[name])


def scaled(cls, name, factor):
    """Multiply a method's result by a number after the model was read."""
    right = getattr(cls, name)
    return lambda patch: patch.setattr(
        cls, name, lambda self, *args: factor * right(self, *args), raising=True
    )


WRONG = {
    "likelihood": (scaled(BernoulliLogit, "log_density", 1.0 + 1e-3), "observed variable 'y'"),
    "prior": (scaled(DiagonalPrior, "log_det_scale", 1.5), "the prior"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_another_log_density_stops_the_chain(mistake, monkeypatch):
    break_it, what = WRONG[mistake]
    with pm.Model() as model:
        two_observed()
        step = pac.AugmentedGibbs()
    step.setup_chain(np.random.default_rng(3), 5, 0)
    break_it(monkeypatch)
    with pytest.raises(pac.RecognitionError, match=rf"^{what}.*step 1.*misread.*NUTS"):
        step.step(model.initial_point())


class NoSites:
    site_log_densities = staticmethod(lambda point: {})
    rounding = staticmethod(lambda point: 0.0)


def test_where_the_data_are_impossible_nothing_is_called_misread():
    with pm.Model() as model:
        pm.Bernoulli("y", p=pm.math.sigmoid(pm.Normal("b", 0, 1)), observed=[0])
    density = WholeDensity(model)
    with pytest.raises(pac.RecognitionError, match=r"finite log density here.*PyMC's.*initvals="):
        density.check({"b": np.array(1e9)}, -np.inf, NoSites, "here")


def test_a_difference_far_below_the_density_is_seen():
    """Observations have log densities of 1e8 and of one."""
    scales = 1e-2 ** np.arange(4)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", b, scales, observed=np.zeros(4))
    density = WholeDensity(model)
    ours = norm.logpdf(0.01) + norm.logpdf(0.01, scale=scales).sum()
    assert ours < -1e7
    density.check({"b": np.asarray(0.01)}, ours, NoSites(), "here")
    for error in (1e-4, -1e-4):
        with pytest.raises(pac.RecognitionError, match="here"):
            density.check({"b": np.asarray(0.01)}, ours + error, NoSites(), "here")
