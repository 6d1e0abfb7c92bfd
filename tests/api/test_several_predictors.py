"""Models of several predictors through the public functions."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from scipy.special import expit

import pymc_augconj as pac

N, K = 8, 3
X = np.linspace(0.0, 1.0, N)[:, None]
RNG = np.random.default_rng(0)
Y = np.sin(5.0 * X[:, 0]) + RNG.normal(size=N) * np.exp(X[:, 0] - 1.0)
LABELS = RNG.integers(0, K, N)
COUNTS = RNG.multinomial(5, [0.2, 0.3, 0.5], size=N)


def process(name, scale, **options):
    cov = scale**2 * pm.gp.cov.Matern32(1, ls=0.4)
    return pm.gp.Latent(cov_func=cov).prior(name, X=X, **options)


def heteroscedastic():
    r = pm.Gamma("r", 2.0, 0.2)
    f, g = process("f", 1.0), process("g", 1.5)
    pm.Normal("y", f, tau=r * pm.math.sigmoid(g), observed=Y)


def log_link():
    pm.Normal("y", process("f", 1.0), sigma=pm.math.exp(process("g", 0.5)), observed=Y)


def classes(write):
    def build():
        write(process("F", 1.5, n_outputs=K).T)

    return build


MODELS = {
    "heteroscedastic": heteroscedastic,
    "log link": log_link,
    "categorical": classes(lambda F: pm.Categorical("y", logit_p=F, observed=LABELS)),
    "multinomial": classes(
        lambda F: pm.Multinomial("y", 5, pm.math.softmax(F, axis=-1), observed=COUNTS)
    ),
    "logistic-softmax": classes(lambda F: pac.LogisticSoftmax("y", F, observed=LABELS)),
    "robust-max": classes(lambda F: pac.RobustMax("y", F, epsilon=0.05, observed=LABELS)),
}
HELD = ("log link", "robust-max")


def model_of(name):
    with pm.Model() as model:
        MODELS[name]()
    return model


@pytest.mark.parametrize("name", MODELS)
def test_fit_and_its_draws(name):
    model = model_of(name)
    (site,) = pac.recognize(model).model.sites
    assert site.likelihood.can_augment == (name not in HELD)
    fit = pac.fit("vgp", model=model, progressbar=False)
    assert fit.converged
    tree = fit.sample(500, log_likelihood=True)
    assert tree["log_likelihood"]["y"].shape[2:] == (N,)
    # The bound is the mean of log p(y, u) − log q(u), of which the normaliser of q is left out.
    stats = tree["sample_stats"]
    log_ratio = (stats["log_p"] - stats["log_q"]).values
    divergence = float(fit.log_evidence - log_ratio.mean())
    assert abs(log_ratio.std()) < 3.0
    log_normalizer = fit._posterior.log_normalizer
    assert divergence == pytest.approx(log_normalizer, abs=5.0 * log_ratio.std() / np.sqrt(500))
    assert tree["observed_data"]["y"].shape == model["y"].type.shape
    np.testing.assert_array_equal(tree["observed_data"]["y"], model.rvs_to_values[model["y"]].data)


@pytest.mark.parametrize("name", ["heteroscedastic", "logistic-softmax"])
def test_coordinate_ascent_is_below_the_variational_gaussian(name):
    model = model_of(name)
    bounds = [
        pac.fit(method, model=model, progressbar=False).log_evidence for method in ("cavi", "vgp")
    ]
    assert bounds[0] < bounds[1]


@pytest.mark.parametrize("name", ["categorical", "multinomial"])
def test_coordinate_ascent_of_the_softmax_is_refused(name):
    with pytest.raises(pac.AugmentationError, match=r"'y'.*no bound.*LogisticSoftmax"):
        pac.fit("cavi", model=model_of(name), progressbar=False)


def test_draws_of_the_noise_follow_the_data():
    """More noise to the right, in draws as in the data; the same draws for the same seed."""
    rng, n = np.random.default_rng(1), 60
    x = np.linspace(0.0, 1.0, n)[:, None]
    y = rng.normal(size=n) * np.where(x[:, 0] < 0.5, 0.1, 1.0)
    with pm.Model() as model:
        r = pm.Gamma("r", 2.0, 0.02)
        gp = pm.gp.Latent(cov_func=4.0 * pm.gp.cov.Matern32(1, ls=0.3))
        g = gp.prior("g", X=x)
        pm.Normal("y", pm.Normal("level"), tau=r * pm.math.sigmoid(g), observed=y)
    options = {"draws": 100, "tune": 80, "chains": 1, "random_seed": 3, "progressbar": False}
    trees = [pac.sample(model=model, **options) for _ in range(2)]
    posterior = trees[0]["posterior"]
    tau = posterior["r"].values[..., None] * expit(posterior["g"].values)
    std = np.sqrt(1.0 / tau).mean(axis=(0, 1))
    assert 0.06 < std[: n // 2 - 5].mean() < 0.2
    assert 0.6 < std[n // 2 + 5 :].mean() < 1.6
    np.testing.assert_array_equal(posterior["g"], trees[1]["posterior"]["g"])
