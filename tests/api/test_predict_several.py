"""Predictions of observed variables with several predictors, against formulas of their draws."""

from __future__ import annotations

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats
from scipy.special import log_softmax, logsumexp, softmax

import pymc_augconj as pac

X, NEW = np.array([[0.0], [0.7], [1.5]]), np.array([[0.3], [2.0]])
REAL, COUNTS, CLASSES = np.array([0.3, -0.5, 1.2]), np.array([0, 2, 5]), np.array([0, 2, 1])
S = 40
RNG = np.random.default_rng(8)

exp = pm.math.exp


def process(name, ls=0.8, **kwargs):
    """A process that is a free variable itself, so that any draws will do."""
    gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
    return gp, gp.prior(name, X=X, reparameterize=False, **kwargs)


def draws(**values):
    return az.from_dict({"posterior": {name: value[None] for name, value in values.items()}})


class Two:
    """Two processes with other latents and a hyperparameter, drawn at random."""

    def __init__(self, observe):
        with pm.Model() as self.model:
            self.scale = pm.HalfNormal("scale")
            (self.gp_f, f), (self.gp_g, g) = process("f"), process("g", 0.5)
            self.observe(observe, f, g, pm.Normal("b"))
        self.values = {name: RNG.standard_normal((S, len(X))) for name in "fg"}
        self.values |= {"b": RNG.standard_normal(S), "scale": RNG.uniform(0.5, 1.5, S)}
        self.tree = draws(**self.values)
        rng = np.random.default_rng(5)
        self.f, self.g = (self.predict(gp, rng)[gp.f.name].values[0] for gp in self.gps)

    def observe(self, observe, f, g, b):
        observe(f * self.scale + b, g - 0.5 * f, self.scale)

    @property
    def gps(self):
        return [self.gp_f, self.gp_g]

    def predict(self, gp, rng, **kwargs):
        return pac.predict(
            self.tree, gp, NEW, model=self.model, random_seed=rng, **kwargs
        ).predictions

    def of_y(self, **kwargs):
        return self.predict(self.gps, np.random.default_rng(5), kind="y", **kwargs)

    @property
    def eta(self):
        """The predictors at the new inputs, each (draws, inputs)."""
        scale, b = self.values["scale"][:, None], self.values["b"][:, None]
        return self.f * scale + b, self.g - 0.5 * self.f


def mixture(mean, var):
    return mean.mean(axis=0), np.sqrt(var.mean(axis=0) + mean.var(axis=0))


def test_a_normal_with_its_scale():
    two = Two(lambda mu, eta, scale: pm.Normal("y", mu, exp(eta), observed=REAL))
    found = two.of_y(ynew=[0.4, -1.0], quantile=[0.1, 0.9])
    mu, sigma = two.eta[0], np.exp(two.eta[1])
    mean, std = mixture(mu, sigma**2)
    np.testing.assert_allclose(found["y_mean"], mean, rtol=1e-12)
    np.testing.assert_allclose(found["y_std"], std, rtol=1e-12)
    terms = stats.norm.logpdf([0.4, -1.0], mu, sigma)
    log_density = logsumexp(terms, axis=0) - np.log(S)
    np.testing.assert_allclose(found["y_log_density"], log_density, rtol=1e-12)
    for level, quantile in zip((0.1, 0.9), found["y_quantile"].values, strict=True):
        np.testing.assert_allclose(stats.norm.cdf(quantile, mu, sigma).mean(axis=0), level)
    # Negative control: without what g has of f.
    assert abs(mixture(mu, np.exp(2.0 * two.g))[1] / std - 1.0).max() > 0.05


def test_a_density_without_formulas():
    """Counts, of which mean and quantiles are sums, with a parameter that is a hyperparameter."""
    two = Two(
        lambda eta, size, scale: pm.NegativeBinomial(
            "y", mu=exp(eta), alpha=scale * pm.math.log1pexp(size), observed=COUNTS
        )
    )
    found = two.of_y(ynew=2, quantile=0.5)
    mu = np.exp(two.eta[0])
    alpha = two.values["scale"][:, None] * np.logaddexp(0.0, two.eta[1])
    mean, std = mixture(mu, mu + mu**2 / alpha)
    np.testing.assert_allclose(found["y_mean"], mean, rtol=1e-6)
    np.testing.assert_allclose(found["y_std"], std, rtol=1e-5)
    y = np.arange(2000)[:, None, None]
    probability = stats.nbinom.pmf(y, alpha, alpha / (alpha + mu)).mean(axis=1)
    np.testing.assert_allclose(found["y_log_density"], np.log(probability[2]), rtol=1e-9)
    median = np.argmax(probability.cumsum(axis=0) >= 0.5, axis=0)
    np.testing.assert_array_equal(found["y_quantile"][0], median)


def classes(observe):
    with pm.Model() as model:
        gp, F = process("F", n_outputs=3)
        observe(F.T + pm.Normal("c", shape=3))
    values = {"F": RNG.standard_normal((S, 3, len(X))), "c": RNG.standard_normal((S, 3))}
    tree = draws(**values)

    def predict(**kwargs):
        return pac.predict(tree, gp, NEW, model=model, random_seed=3, **kwargs).predictions

    eta = np.swapaxes(predict()["F"].values[0], 1, 2) + values["c"][:, None]
    return predict, eta


def test_probabilities_of_classes():
    predict, eta = classes(lambda F: pm.Categorical("y", logit_p=F, observed=CLASSES))
    found = predict(kind="y", ynew=[2, 0])
    probability = softmax(eta, axis=-1).mean(axis=0)
    assert found["y_probability"].dims == ("y_dim_0", "y_class")
    np.testing.assert_allclose(found["y_probability"], probability, rtol=1e-12)
    np.testing.assert_allclose(found["y_log_density"], np.log(probability[[0, 1], [2, 0]]))
    with pytest.raises(pac.AugmentationError, match=r"ynew \(Categorical\).*found 3"):
        predict(kind="y", ynew=3)


def test_classes_by_another_link():
    def observe(F):
        odds = pm.math.log1pexp(F)
        pm.Categorical("y", p=odds / odds.sum(axis=1)[:, None], observed=CLASSES)

    predict, eta = classes(observe)
    odds = np.logaddexp(0.0, eta)
    probability = (odds / odds.sum(axis=-1, keepdims=True)).mean(axis=0)
    np.testing.assert_allclose(predict(kind="y")["y_probability"], probability, rtol=1e-9)


def test_an_approximation_is_drawn_from():
    with pm.Model() as model:
        gp, F = process("F", n_outputs=2)
        logits = pt.concatenate([F.T, pt.zeros((len(X), 1))], axis=1)
        pm.Categorical("y", logit_p=logits, observed=CLASSES)
    fit = pac.fit("vgp", model=model, progressbar=False)
    # At old inputs the new values are the old ones but for the jitter of 1e-6.
    found = pac.predict(fit, gp, X, kind="y", model=model, random_seed=1).predictions
    F = np.swapaxes(fit.sample(random_seed=1).posterior["F"].values[0], 1, 2)
    logits = np.concatenate([F, np.zeros((*F.shape[:2], 1))], axis=-1)
    expected = np.exp(log_softmax(logits, axis=-1)).mean(axis=0)
    np.testing.assert_allclose(found["y_probability"], expected, atol=1e-3)


def wins(mean, std, size=400_000):
    """Return how often each of independent normal predictors, (K, P), is the largest."""
    eta = mean + std * np.random.default_rng(0).standard_normal((size, *np.shape(mean)))
    return np.stack([(eta.argmax(axis=1) == k).mean(axis=0) for k in range(len(mean))])


@pytest.mark.parametrize("inducing", [None, X[:2]], ids=["dense", "inducing"])
@pytest.mark.parametrize("outputs", [True, False], ids=["outputs", "processes"])
def test_robust_max_of_an_approximation_is_integrated(outputs, inducing):
    with pm.Model() as model:
        scale = np.ones(3)
        if outputs:
            pairs = [process("F", n_outputs=3)]
            F = pairs[0][1]
        else:
            pairs, scale = [process(name) for name in "abc"], np.array([1.0, -2.0, 0.5])
            F = pt.stack([factor * f for factor, (_, f) in zip(scale, pairs, strict=True)])
        shift = np.array([0.0, 0.3, -0.2])
        pac.RobustMax("y", F.T + shift, epsilon=0.05, observed=CLASSES)
    gps = [gp for gp, _ in pairs]
    if inducing is not None:
        inducing = {gp.f.name: inducing for gp in gps}
    fit = pac.fit("vgp", model=model, gp=gps, inducing=inducing, progressbar=False)
    moments = [pac.predict(fit, gp, NEW, model=model).predictions for gp in gps]

    def moment(end):
        pairs = zip(moments, gps, strict=True)
        return np.concatenate([np.atleast_2d(f[f"{gp.f.name}_{end}"]) for f, gp in pairs])

    mean, std = moment("mean"), moment("std")
    largest = wins(scale[:, None] * mean + shift[:, None], np.abs(scale)[:, None] * std)

    def predict(seed=1, **kwargs):
        return pac.predict(fit, gps, NEW, kind="y", model=model, random_seed=seed, **kwargs)

    found = predict(ynew=[2, 0]).predictions
    probability = found["y_probability"]
    assert probability.dims == ("y_dim_0", "y_class")
    np.testing.assert_allclose(probability.sum("y_class"), 1.0, rtol=1e-9)
    np.testing.assert_allclose(probability.T, 0.025 + (0.95 - 0.025) * largest, atol=0.004)
    np.testing.assert_allclose(found["y_log_density"], np.log(probability.values[[0, 1], [2, 0]]))
    np.testing.assert_array_equal(predict(seed=2).predictions["y_probability"], probability)
    # A probability of mistakes for each new input.
    other = predict(params={"epsilon": [0.2, 0.05]}).predictions["y_probability"].values
    exact = (probability.values[0] - 0.025) / (0.95 - 0.025)
    np.testing.assert_allclose(other[0], 0.1 + (0.8 - 0.1) * exact)
    np.testing.assert_array_equal(other[1], probability[1])
    with pytest.raises(pac.AugmentationError, match=r"ynew \(Categorical\).*found 3"):
        predict(ynew=3)


def test_robust_max_with_an_intercept_is_drawn():
    predict, eta = classes(lambda F: pac.RobustMax("y", F, epsilon=0.05, observed=CLASSES))
    won = np.eye(3)[eta.argmax(axis=-1)].mean(axis=0)
    found = predict(kind="y", params={"epsilon": [0.2, 0.05]})["y_probability"]
    wrong = np.array([[0.1], [0.025]])
    np.testing.assert_allclose(found, wrong + (1.0 - 3.0 * wrong) * won)


def test_robust_max_of_an_approximation_with_an_intercept_is_drawn():
    with pm.Model() as model:
        gp, F = process("F", n_outputs=3)
        pac.RobustMax("y", F.T + pm.Normal("c", shape=3), epsilon=0.05, observed=CLASSES)
    fit = pac.fit("vgp", model=model, progressbar=False)
    found = pac.predict(fit, [gp], X, kind="y", model=model, random_seed=1).predictions
    posterior = fit.sample(random_seed=1).posterior
    eta = np.swapaxes(posterior["F"].values[0], 1, 2) + posterior["c"].values[0][:, None]
    won = np.eye(3)[eta.argmax(axis=-1)].mean(axis=0)
    np.testing.assert_allclose(found["y_probability"], 0.025 + (0.95 - 0.025) * won, atol=0.01)


def normal(mu, eta, scale):
    pm.Normal("y", mu, exp(eta), observed=REAL)


def slopes(mu, eta, scale):
    pm.Normal("y", np.array([1.0, 2.0, 3.0]) * mu, exp(eta), observed=REAL)


def shares(mu, eta, scale):
    pm.Dirichlet("y", exp(pm.math.stack([mu, eta], axis=-1)), observed=np.full((3, 2), 0.5))


REFUSED = {
    "vectors": (shares, lambda t: {"gp": t.gps}, "expected observations that are numbers"),
    "one of two": (normal, lambda t: {"gp": t.gp_f}, r"gp: expected all the processes.*gp=\["),
    "one of two in a list": (
        normal,
        lambda t: {"gp": [t.gp_f]},
        r"contribution of 'g'.*pass it too",
    ),
    "values of processes": (normal, lambda t: {"gp": t.gps, "kind": "f"}, "predict each process"),
    "an offset": (normal, lambda t: {"gp": t.gps, "offset": 1.0}, "offset: expected none"),
    "parameters": (normal, lambda t: {"gp": t.gps, "params": {"n": 3}}, "params: .*got .'n'"),
    "coefficients": (slopes, lambda t: {"gp": t.gps}, "predictor 1 of 'y'.*differs between"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    observe, arguments, sentence = REFUSED[case]
    two = Two(observe)
    with pytest.raises(pac.AugmentationError, match=sentence):
        two.predict(**{"rng": 1, "kind": "y", **arguments(two)})
