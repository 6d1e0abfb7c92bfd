"""The small and middle-sized models that most people write, on simulated data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm

__all__ = ["MODELS"]

#: Builders by name.
MODELS: dict[str, Callable[[], pm.Model]] = {}


def _model(name: str) -> Callable[[Callable[[], pm.Model]], Callable[[], pm.Model]]:
    def register(build: Callable[[], pm.Model]) -> Callable[[], pm.Model]:
        MODELS[name] = build
        return build

    return register


def _effects(name: str, mu, sigma, size: int, *, centred: bool):
    """Return group effects in either parametrisation."""
    if centred:
        return pm.Normal(name, mu, sigma, shape=size)
    return pm.Deterministic(name, mu + sigma * pm.Normal(f"{name}_raw", 0.0, 1.0, shape=size))


# Rubin (1981).
_EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
_ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def _eight_schools(*, centred: bool) -> pm.Model:
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0)
        theta = _effects("theta", mu, tau, 8, centred=centred)
        pm.Normal("y", theta, _ERRORS, observed=_EFFECTS)
    return model


@_model("eight schools, centred")
def _eight_schools_centred() -> pm.Model:
    return _eight_schools(centred=True)


@_model("eight schools, non-centred")
def _eight_schools_non_centred() -> pm.Model:
    return _eight_schools(centred=False)


def _counties(rng: np.random.Generator, groups: int = 85, rows: int = 919):
    """Return the group of each row, unbalanced as the counties of the radon data are."""
    shares = rng.gamma(0.8, size=groups)
    extra = rng.choice(groups, rows - groups, p=shares / shares.sum())
    return np.sort(np.concatenate([np.arange(groups), extra]))


def _varying_intercepts(*, centred: bool) -> pm.Model:
    rng = np.random.default_rng(1)
    county = _counties(rng)
    floor = rng.binomial(1, 0.17, county.size).astype(float)
    alpha = rng.normal(1.5, 0.35, 85)
    y = alpha[county] - 0.65 * floor + 0.75 * rng.standard_normal(county.size)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0.0, 10.0), pm.HalfNormal("tau", 2.0)
        a = _effects("alpha", mu, tau, 85, centred=centred)
        b = pm.Normal("beta", 0.0, 10.0)
        sigma = pm.HalfNormal("sigma", 2.0)
        pm.Normal("y", a[county] + b * floor, sigma, observed=y)
    return model


@_model("varying intercepts, centred")
def _varying_intercepts_centred() -> pm.Model:
    return _varying_intercepts(centred=True)


@_model("varying intercepts, non-centred")
def _varying_intercepts_non_centred() -> pm.Model:
    return _varying_intercepts(centred=False)


def _varying_slopes(*, centred: bool) -> pm.Model:
    rng = np.random.default_rng(2)
    county = _counties(rng)
    x = rng.standard_normal(county.size)
    alpha, beta = rng.normal(1.5, 0.35, 85), rng.normal(-0.6, 0.3, 85)
    y = alpha[county] + beta[county] * x + 0.75 * rng.standard_normal(county.size)
    with pm.Model() as model:
        mu_a, mu_b = pm.Normal("mu_a", 0.0, 10.0), pm.Normal("mu_b", 0.0, 10.0)
        tau_a, tau_b = pm.HalfNormal("tau_a", 2.0), pm.HalfNormal("tau_b", 2.0)
        a = _effects("alpha", mu_a, tau_a, 85, centred=centred)
        b = _effects("beta", mu_b, tau_b, 85, centred=centred)
        sigma = pm.HalfNormal("sigma", 2.0)
        pm.Normal("y", a[county] + b[county] * x, sigma, observed=y)
    return model


@_model("varying slopes, centred")
def _varying_slopes_centred() -> pm.Model:
    return _varying_slopes(centred=True)


@_model("varying slopes, non-centred")
def _varying_slopes_non_centred() -> pm.Model:
    return _varying_slopes(centred=False)


@_model("five groups of twenty")
def _five_groups() -> pm.Model:
    # Within each group y falls with x, over all it rises: Simpson's paradox.
    rng = np.random.default_rng(3)
    group = np.repeat(np.arange(5), 20)
    x = rng.standard_normal(100) + 2.0 * group
    y = 3.0 * group - 0.7 * x + 0.5 * rng.standard_normal(100)
    with pm.Model() as model:
        mu_a, mu_b = pm.Normal("mu_a", 0.0, 10.0), pm.Normal("mu_b", 0.0, 2.0)
        tau_a, tau_b = pm.HalfNormal("tau_a", 5.0), pm.HalfNormal("tau_b", 1.0)
        a = pm.Normal("alpha", mu_a, tau_a, shape=5)
        b = pm.Normal("beta", mu_b, tau_b, shape=5)
        sigma = pm.HalfNormal("sigma", 2.0)
        pm.Normal("y", a[group] + b[group] * x, sigma, observed=y)
    return model


@_model("logistic regression")
def _logistic() -> pm.Model:
    rng = np.random.default_rng(4)
    X = rng.standard_normal((2000, 6))
    beta = np.array([0.5, -1.0, 0.3, 0.0, 0.8, -0.2])
    y = rng.random(2000) < 1.0 / (1.0 + np.exp(-X @ beta))
    with pm.Model() as model:
        b = pm.Normal("beta", 0.0, 2.5, shape=6)
        pm.Bernoulli("y", logit_p=X @ b, observed=y)
    return model


@_model("crossed effects, Bernoulli")
def _crossed() -> pm.Model:
    rng = np.random.default_rng(5)
    rows = 2000
    first, second = rng.integers(50, size=rows), rng.integers(40, size=rows)
    eta = 0.3 + 0.8 * rng.standard_normal(50)[first] + 0.6 * rng.standard_normal(40)[second]
    y = rng.random(rows) < 1.0 / (1.0 + np.exp(-eta))
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 2.0)
        tau_a, tau_b = pm.HalfNormal("tau_a", 1.0), pm.HalfNormal("tau_b", 1.0)
        a = pm.Normal("a", 0.0, tau_a, shape=50)
        b = pm.Normal("b", 0.0, tau_b, shape=40)
        pm.Bernoulli("y", logit_p=mu + a[first] + b[second], observed=y)
    return model


@_model("negative binomial with group effects")
def _counts() -> pm.Model:
    rng = np.random.default_rng(6)
    group = rng.integers(30, size=600)
    x = rng.standard_normal(600)
    mean = np.exp(1.0 + 0.5 * rng.standard_normal(30)[group] + 0.4 * x)
    y = rng.poisson(mean * rng.gamma(3.0, 1.0 / 3.0, size=600))
    with pm.Model() as model:
        mu, beta = pm.Normal("mu", 0.0, 2.0), pm.Normal("beta", 0.0, 1.0)
        tau, alpha = pm.HalfNormal("tau", 1.0), pm.Gamma("alpha", 2.0, 0.5)
        a = pm.Normal("a", 0.0, tau, shape=30)
        eta = mu + a[group] + beta * x
        pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=alpha, observed=y)
    return model


@_model("correlated slopes (LKJ)")
def _correlated() -> pm.Model:
    rng = np.random.default_rng(7)
    groups = 40
    group = np.repeat(np.arange(groups), 10)
    x = rng.standard_normal(group.size)
    effects = rng.multivariate_normal([1.0, -0.5], [[0.5, -0.2], [-0.2, 0.3]], size=groups)
    y = effects[group, 0] + effects[group, 1] * x + 0.6 * rng.standard_normal(group.size)
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov(
            "chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0, shape=2)
        )
        mu = pm.Normal("mu", 0.0, 5.0, shape=2)
        z = pm.Normal("z", 0.0, 1.0, shape=(groups, 2))
        b = pm.Deterministic("b", mu + z @ chol.T)
        sigma = pm.HalfNormal("sigma", 2.0)
        pm.Normal("y", b[group, 0] + b[group, 1] * x, sigma, observed=y)
    return model


@_model("measurement error")
def _measurement_error() -> pm.Model:
    rng = np.random.default_rng(8)
    n = 100
    true = rng.normal(1.0, 1.5, n)
    seen = true + 0.5 * rng.standard_normal(n)
    y = 0.5 + 1.2 * true + 0.4 * rng.standard_normal(n)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0.0, 5.0), pm.HalfNormal("tau", 3.0)
        x = pm.Normal("x", mu, tau, shape=n)
        a, b = pm.Normal("a", 0.0, 5.0), pm.Normal("b", 0.0, 5.0)
        sigma = pm.HalfNormal("sigma", 2.0)
        pm.Normal("seen", x, 0.5, observed=seen)
        pm.Normal("y", a + b * x, sigma, observed=y)
    return model


@_model("spline")
def _spline() -> pm.Model:
    from scipy.interpolate import BSpline

    rng = np.random.default_rng(9)
    n, size, degree = 300, 20, 3
    x = np.sort(rng.uniform(0.0, 1.0, n))
    inner = np.linspace(0.0, 1.0, size - degree + 1)
    knots = np.r_[[0.0] * degree, inner, [1.0] * degree]
    basis = BSpline.design_matrix(x, knots, degree).toarray()
    y = np.sin(6.0 * x) + 0.5 * x + 0.3 * rng.standard_normal(n)
    with pm.Model() as model:
        a, tau = pm.Normal("a", 0.0, 2.0), pm.HalfNormal("tau", 2.0)
        w = pm.Normal("w", 0.0, tau, shape=size)
        sigma = pm.HalfNormal("sigma", 1.0)
        pm.Normal("y", a + basis @ w, sigma, observed=y)
    return model


@_model("HSGP of 50 basis functions")
def _hsgp() -> pm.Model:
    rng = np.random.default_rng(10)
    x = np.sort(rng.uniform(-5.0, 5.0, 400))[:, None]
    y = np.sin(1.5 * x[:, 0]) + 0.3 * x[:, 0] + 0.4 * rng.standard_normal(400)
    with pm.Model() as model:
        ls, eta = pm.InverseGamma("ls", 5.0, 5.0), pm.HalfNormal("eta", 2.0)
        cov = eta**2 * pm.gp.cov.Matern52(1, ls=ls)
        f = pm.gp.HSGP(m=[50], c=1.5, cov_func=cov).prior("f", X=x)
        sigma = pm.HalfNormal("sigma", 1.0)
        pm.Normal("y", f, sigma, observed=y)
    return model


@_model("zero-sum effects")
def _zero_sum() -> pm.Model:
    rng = np.random.default_rng(11)
    group = rng.integers(20, size=400)
    effects = rng.normal(0.0, 0.7, 20)
    y = 1.0 + (effects - effects.mean())[group] + 0.5 * rng.standard_normal(400)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0.0, 5.0), pm.HalfNormal("tau", 2.0)
        a = pm.ZeroSumNormal("a", sigma=tau, shape=20)
        sigma = pm.HalfNormal("sigma", 2.0)
        pm.Normal("y", mu + a[group], sigma, observed=y)
    return model


def _groups_of_counts(seed: int):
    """Return a generator, groups, a covariate, and predictors of 400 observations."""
    rng = np.random.default_rng(seed)
    group, x = rng.integers(20, size=400), rng.standard_normal(400)
    return rng, group, x, 0.6 * rng.standard_normal(20)[group] + 0.4 * x


def _predictor(group, x, *, size: int = 20):
    """Return an intercept, group effects and a slope."""
    mu, b, tau = pm.Normal("mu", 0.0, 2.0), pm.Normal("b", 0.0, 1.0), pm.HalfNormal("tau", 1.0)
    return mu + pm.Normal("a", 0.0, tau, shape=size)[group] + b * x


@_model("beta outcomes")
def _beta() -> pm.Model:
    rng, group, x, eta = _groups_of_counts(12)
    mean = 1.0 / (1.0 + np.exp(-eta))
    y = np.clip(rng.beta(8.0 * mean, 8.0 * (1.0 - mean)), 1e-6, 1.0 - 1e-6)
    with pm.Model() as model:
        nu = pm.Gamma("nu", 2.0, 0.2)
        pm.Beta("y", mu=pm.math.sigmoid(_predictor(group, x)), nu=nu, observed=y)
    return model


@_model("ordinal outcomes")
def _ordinal() -> pm.Model:
    rng, group, x, eta = _groups_of_counts(13)
    y = np.digitize(eta + rng.logistic(size=400), [-1.0, 0.0, 1.5])
    with pm.Model() as model:
        b, tau = pm.Normal("b", 0.0, 1.0), pm.HalfNormal("tau", 1.0)
        a = pm.Normal("a", 0.0, tau, shape=20)
        ordered = pm.distributions.transforms.ordered
        start = np.array([-1.0, 0.0, 1.0])
        cuts = pm.Normal("cuts", 0.0, 2.0, shape=3, transform=ordered, initval=start)
        pm.OrderedLogistic("y", eta=a[group] + b * x, cutpoints=cuts, observed=y)
    return model


@_model("gamma outcomes")
def _gamma() -> pm.Model:
    rng, group, x, eta = _groups_of_counts(14)
    y = rng.gamma(3.0, np.exp(eta) / 3.0)
    with pm.Model() as model:
        alpha, mean = pm.Gamma("alpha", 2.0, 0.5), pm.math.exp(_predictor(group, x))
        pm.Gamma("y", alpha=alpha, beta=alpha / mean, observed=y)
    return model


@_model("zero-inflated counts")
def _zero_inflated() -> pm.Model:
    rng, group, x, eta = _groups_of_counts(15)
    y = np.where(rng.random(400) < 0.3, 0, rng.poisson(np.exp(1.0 + eta)))
    with pm.Model() as model:
        psi, rate = pm.Beta("psi", 2.0, 2.0), pm.math.exp(_predictor(group, x))
        pm.ZeroInflatedPoisson("y", psi=psi, mu=rate, observed=y)
    return model


@_model("censored outcomes")
def _censored() -> pm.Model:
    rng, group, x, eta = _groups_of_counts(16)
    y = np.clip(eta + 0.7 * rng.standard_normal(400), -1.0, 1.0)
    with pm.Model() as model:
        noise = pm.Normal.dist(_predictor(group, x), pm.HalfNormal("sigma", 1.0))
        pm.Censored("y", noise, lower=-1.0, upper=1.0, observed=y)
    return model


@_model("two groups, Student-t")
def _two_groups() -> pm.Model:
    rng = np.random.default_rng(17)
    which = np.repeat([0, 1], [42, 47])
    y = np.where(which, 100.0, 101.5) + rng.standard_t(3.0, 89) * np.where(which, 1.2, 1.8)
    with pm.Model() as model:
        mu = pm.Normal("mu", y.mean(), 2.0 * y.std(), shape=2)
        sigma = pm.Uniform("sigma", 0.1, 10.0, shape=2)
        nu = pm.Exponential("nu_less_one", 1.0 / 29.0) + 1.0
        pm.StudentT("y", nu=nu, mu=mu[which], sigma=sigma[which], observed=y)
    return model


@_model("binomial regression")
def _binomial() -> pm.Model:
    rng = np.random.default_rng(18)
    x = rng.standard_normal(60)
    y = rng.binomial(25, 1.0 / (1.0 + np.exp(0.5 - 0.8 * x)))
    with pm.Model() as model:
        a, b = pm.Normal("a", 0.0, 2.0), pm.Normal("b", 0.0, 2.0)
        pm.Binomial("y", n=25, logit_p=a + b * x, observed=y)
    return model


@_model("rats")
def _rats() -> pm.Model:
    # As many litters, ages and priors as the growth curves of Gelfand et al. (1990).
    rng = np.random.default_rng(19)
    rat, age = np.repeat(np.arange(30), 5), np.tile(np.arange(8.0, 37.0, 7.0) - 22.0, 30)
    slope, weight = rng.normal(6.2, 0.5, 30), rng.normal(242.0, 14.0, 30)
    y = weight[rat] + slope[rat] * age + 6.0 * rng.standard_normal(rat.size)
    with pm.Model() as model:
        mu_a, mu_b = pm.Normal("mu_a", 200.0, 100.0), pm.Normal("mu_b", 0.0, 10.0)
        tau_a, tau_b = pm.HalfNormal("tau_a", 30.0), pm.HalfNormal("tau_b", 2.0)
        a = pm.Normal("alpha", mu_a, tau_a, shape=30)
        b = pm.Normal("beta", mu_b, tau_b, shape=30)
        pm.Normal("y", a[rat] + b[rat] * age, pm.HalfNormal("sigma", 20.0), observed=y)
    return model


@_model("seeds")
def _seeds() -> pm.Model:
    # 21 plates of two kinds of seed and root, as in Crowder (1978).
    rng = np.random.default_rng(20)
    seed, root = np.repeat([0, 1], [11, 10]), np.arange(21) % 2
    n = rng.integers(4, 82, size=21)
    eta = -0.55 + 0.1 * seed + 1.3 * root - 0.8 * seed * root + 0.3 * rng.standard_normal(21)
    y = rng.binomial(n, 1.0 / (1.0 + np.exp(-eta)))
    with pm.Model() as model:
        a, tau = pm.Normal("a", 0.0, 2.0, shape=4), pm.HalfNormal("tau", 1.0)
        plate = pm.Normal("plate", 0.0, tau, shape=21)
        eta = a[0] + a[1] * seed + a[2] * root + a[3] * seed * root + plate
        pm.Binomial("y", n=n, logit_p=eta, observed=y)
    return model


@_model("groups with own noise")
def _own_noise() -> pm.Model:
    rng = np.random.default_rng(21)
    group = np.repeat(np.arange(8), 15)
    y = rng.normal(0.0, 1.0, 8)[group] + rng.gamma(3.0, 0.3, 8)[group] * rng.standard_normal(120)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0.0, 5.0), pm.HalfNormal("tau", 2.0)
        sigma = pm.HalfNormal("sigma", 2.0, shape=8)
        pm.Normal("y", pm.Normal("a", mu, tau, shape=8)[group], sigma[group], observed=y)
    return model


@_model("radon, varying slopes")
def _radon() -> pm.Model:
    # 175 coefficients: of 85 counties two each, and five of all.
    rng = np.random.default_rng(22)
    county = _counties(rng)
    uranium, floor = rng.standard_normal(85)[county], rng.binomial(1, 0.17, county.size)
    winter = rng.binomial(1, 0.5, county.size)
    X = np.column_stack([np.ones(county.size), floor, uranium, uranium * floor, winter])
    a, b = rng.normal(0.0, 0.3, 85), rng.normal(0.0, 0.25, 85)
    y = X @ [1.5, -0.65, 0.4, -0.1, 0.1] + a[county] + b[county] * floor
    y = y + 0.7 * rng.standard_normal(county.size)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 5.0, shape=5)
        tau_a, tau_b = pm.HalfNormal("tau_a", 1.0), pm.HalfNormal("tau_b", 1.0)
        a = pm.Normal("a", 0.0, tau_a, shape=85)
        b = pm.Normal("b", 0.0, tau_b, shape=85)
        eta = X @ beta + a[county] + b[county] * floor
        pm.Normal("y", eta, pm.HalfNormal("sigma", 2.0), observed=y)
    return model
