"""Likelihoods without an augmentation: fits against brute force, and refusals."""

from __future__ import annotations

import pickle

import numpy as np
import pymc as pm
import pytest
from scipy.special import gamma as gamma_of
from scipy.special import logsumexp, ndtr
from scipy.stats import norm, truncnorm

import pymc_augconj as pac
from pymc_augconj.engines.ep import fit as ep_fit
from pymc_augconj.engines.variational.ascent import climb
from pymc_augconj.engines.variational.bound import BoundFamily, VariationalGaussian, bound_gradient

QUIET = {"progressbar": False}
X = np.array([[0.0], [0.4], [1.0]])
Xnew = np.array([[-0.3], [0.2], [0.9]])
LS, MEAN = 0.5, 0.6
exp, invlogit = pm.math.exp, pm.math.invlogit
ordered = pm.distributions.transforms.ordered


def gamma(f, n):
    alpha = pm.Exponential("alpha", 0.5)
    pm.Gamma("y", alpha=alpha, beta=alpha / exp(f), observed=np.array([0.7, 2.5, 0.4])[:n])


def classes(f, n):
    cutpoints = pm.Normal("c", [-1.0, 1.0], 1.0, transform=ordered, initval=[-0.8, 1.1])
    pm.OrderedLogistic("y", eta=f, cutpoints=cutpoints, observed=np.array([2, 0, 1])[:n])


def fractions(f, n):
    nu = pm.Gamma("nu", 3, 0.3)
    pm.Beta("y", mu=invlogit(f), nu=nu, observed=np.array([0.7, 0.2, 0.45])[:n])


def survival(f, n):
    pm.Weibull("y", pm.HalfNormal("a", 2), exp(f), observed=np.array([0.7, 2.5, 0.4])[:n])


def censored(f, n):
    """Tobit: of three values one is known, one lies below 0 and one above 1.2."""
    base = pm.Normal.dist(f, pm.HalfNormal("s", 1))
    pm.Censored("y", base, lower=0.0, upper=1.2, observed=np.array([0.0, 0.8, 1.2])[:n])


def right_censored(f, n):
    times, seen = np.array([0.7, 2.5, 0.4])[:n], np.array([False, True, True])[:n]
    base = pm.Weibull.dist(pm.HalfNormal("a", 2), exp(f))
    upper = np.where(seen, np.inf, times)
    pm.Censored("y", base, lower=None, upper=upper, observed=times)


COUNTS = np.array([3, 0, 2])
MODELS = {
    "Poisson, log": lambda f, n: pm.Poisson(
        "y", np.array([1.0, 2.5, 0.5])[:n] * exp(f), observed=COUNTS[:n]
    ),
    "Poisson, square": lambda f, n: pm.Poisson("y", 0.5 * (1.4 + f) ** 2, observed=COUNTS[:n]),
    "zero-inflated Poisson": lambda f, n: pm.ZeroInflatedPoisson(
        "y", psi=pm.Beta("psi", 2, 1), mu=exp(f), observed=COUNTS[:n]
    ),
    "Gamma": gamma,
    "ordered logistic": classes,
    "Beta": fractions,
    "Weibull": survival,
    "censored on both sides": censored,
    "right-censored times": right_censored,
}


def write(name, n=3, ls=LS):
    with pm.Model() as model:
        cov = 0.8**2 * pm.gp.cov.Matern32(1, ls=ls)
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(MEAN), cov_func=cov)
        MODELS[name](gp.prior("f", X=X[:n], jitter=0.0), n)
    return model, gp


def brute_force(model, n):
    """log p(y), and the posterior's mean and variances of f, by quadrature over whitened f."""
    recognition = pac.recognize(model)
    lgm, point = recognition.model, recognition.start
    (site,) = lgm.sites
    r = np.sqrt(3.0) * np.abs(X[:n] - X[:n].T) / LS
    chol = np.linalg.cholesky(0.64 * (1.0 + r) * np.exp(-r))
    axis = np.linspace(-6.5, 6.5, 81)
    v = np.stack([part.ravel() for part in np.meshgrid(*[axis] * n, indexing="ij")])
    f = chol @ v
    # What the site sees is the process with its offset.
    offset = np.asarray(lgm.offset(point))
    density = site.likelihood.log_density(
        site.y(point)[:, None],
        (offset[:, None] + f)[None],
        {name: x[:, None] if x.ndim else x for name, x in site.params(point).items()},
    )
    log_mass = density.sum(axis=0) + norm.logpdf(v).sum(axis=0) + n * np.log(axis[1] - axis[0])
    evidence = logsumexp(log_mass)
    mass = np.exp(log_mass - evidence)
    mean = f @ mass
    return evidence, MEAN + mean, ((f - mean[:, None]) ** 2) @ mass


@pytest.mark.parametrize("name", MODELS)
def test_one_observation(name):
    """With one site EP is exact, and the bound lies below."""
    model, _ = write(name, 1)
    evidence, mean, var = brute_force(model, 1)
    ep = pac.fit("ep", model=model, hyper="fixed", tol=1e-9, **QUIET)
    qp = pac.fit("qp", model=model, hyper="fixed", tol=1e-9, **QUIET)
    vgp = pac.fit("vgp", model=model, hyper="fixed", **QUIET)
    assert ep.log_evidence == pytest.approx(evidence, abs=1e-7)
    np.testing.assert_allclose(ep.mean["f"], mean, atol=1e-6)
    np.testing.assert_allclose(ep.std["f"] ** 2, var, rtol=1e-6)
    np.testing.assert_allclose(qp.mean["f"], ep.mean["f"], atol=1e-6)
    assert np.all(qp.std["f"] <= ep.std["f"] + 1e-9)
    assert evidence - 0.1 < vgp.log_evidence <= evidence + 1e-9


@pytest.mark.parametrize("name", MODELS)
def test_three_observations(name):
    model, _ = write(name)
    evidence, mean, var = brute_force(model, 3)
    ep = pac.fit("ep", model=model, hyper="fixed", tol=1e-8, **QUIET)
    vgp = pac.fit("vgp", model=model, hyper="fixed", **QUIET)
    assert ep.converged
    assert vgp.converged
    # EP's known bias is in third cumulants of the tilted distributions, here of order 0.1.
    assert ep.log_evidence == pytest.approx(evidence, abs=0.01)
    np.testing.assert_allclose(ep.mean["f"], mean, atol=0.01)
    np.testing.assert_allclose(ep.std["f"] ** 2, var, rtol=0.05)
    assert evidence - 0.2 < vgp.log_evidence < evidence
    # The mean of the closest Gaussian is not the posterior's, but near it.
    np.testing.assert_allclose(vgp.mean["f"], mean, atol=0.1)


def differences(value, point, name):
    step = 5e-3
    found = np.zeros(point[name].shape)
    for where in np.ndindex(found.shape):
        for steps, weight in ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12)):
            moved = point[name].copy()
            moved[where] += steps * step
            found[where] += weight * value({**point, name: moved}) / step
    return found


@pytest.mark.parametrize(
    "name",
    [
        "Gamma",
        "ordered logistic",
        "zero-inflated Poisson",
        "censored on both sides",
        "right-censored times",
    ],
)
def test_gradients_by_the_parameters_of_a_density(name):
    recognition = pac.recognize(write(name)[0])
    model, points = recognition.model, [recognition.start, *recognition.probes]
    point = {key: np.asarray(value, dtype=float) for key, value in recognition.start.items()}
    vgp = BoundFamily(model, VariationalGaussian(), points)
    ep = ep_fit.EPFamily(model, points, 1.0)

    def bound(at):
        return climb(vgp.at(at), max_iter=400, tol=1e-9).evaluation

    def propagate(at):
        return ep_fit._climb(ep.at(at), max_iter=400, tol=1e-10).evaluation

    gradients = (
        (bound_gradient(vgp.at(point), bound(point)), lambda at: bound(at).bound),
        (ep_fit._gradient(ep.at(point), propagate(point)), lambda at: propagate(at).bound),
    )
    for gradient, value in gradients:
        for hyper in model.hyperparameters:
            expected = differences(value, point, hyper.value_name)
            np.testing.assert_allclose(gradient[hyper.value_name], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["vgp", "ep"])
def test_cutpoints_are_learned(method):
    """They stay in order, and evidence times prior is larger than where it started."""
    model, _ = write("ordered logistic")
    start = pac.fit(method, model=model, hyper="fixed", **QUIET)
    found = pac.fit(method, model=model, hyper="map", **QUIET)
    assert found.converged
    assert found.theta["c"][0] < found.theta["c"][1]
    prior = norm.logpdf(start.theta["c"], [-1.0, 1.0]).sum()
    assert found.objective > start.log_evidence + prior
    np.testing.assert_allclose(
        found.objective, found.log_evidence + norm.logpdf(found.theta["c"], [-1.0, 1.0]).sum()
    )


# -- several observations of each value -------------------------------------------------------


@pytest.mark.parametrize("method", ["vgp", "ep"])
def test_observations_of_two_axes_are_those_of_one(method):
    """The same fit, gradient steps included, and the same predictions."""
    y = np.array([[0.7, 0.9], [2.5, 1.8], [0.4, 0.2]])
    found = []
    for flat in (False, True):
        with pm.Model():
            b0, alpha = pm.Normal("b0", 0, 1), pm.Exponential("alpha", 0.5)
            gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern32(1, ls=LS))
            f = b0 + gp.prior("f", X=X)
            rate = exp(-f[np.repeat(np.arange(3), 2)]) if flat else exp(-f)[:, None]
            pm.Gamma("y", alpha=alpha, beta=alpha * rate, observed=y.ravel() if flat else y)
            fit = pac.fit(method, **QUIET)
            found.append((fit, pac.predict(fit, gp, Xnew, kind="y").predictions))
    (fit, predicted), (flat_fit, flat_predicted) = found
    assert set(fit.mean) == {"b0", "f"}
    assert fit.log_evidence == pytest.approx(flat_fit.log_evidence, abs=1e-8)
    assert fit.theta["alpha"] == pytest.approx(flat_fit.theta["alpha"], rel=1e-6)
    np.testing.assert_allclose(fit.mean["f"], flat_fit.mean["f"], atol=1e-6)
    np.testing.assert_allclose(predicted["y_mean"], flat_predicted["y_mean"], rtol=1e-6)


def test_an_intercept_beside_cutpoints_is_integrated_out():
    """A constant with a normal prior is part of the process's covariance."""
    fits = []
    for apart in (True, False):
        with pm.Model() as model:
            cov = 0.64 * pm.gp.cov.Matern32(1, ls=LS)
            cov = cov if apart else cov + pm.gp.cov.Constant(1.5**2)
            eta = pm.gp.Latent(cov_func=cov).prior("f", X=X, jitter=0.0)
            eta = pm.Normal("b0", 0, 1.5) + eta if apart else eta
            pm.OrderedLogistic("y", eta=eta, cutpoints=[-1.0, 1.0], observed=[2, 0, 1])
        fits.append(pac.fit("ep", model=model, tol=1e-9, **QUIET))
    apart, together = fits
    assert set(apart.mean) == {"b0", "f"}
    assert apart.log_evidence == pytest.approx(together.log_evidence, abs=1e-7)
    np.testing.assert_allclose(apart.mean["f"] + apart.mean["b0"], together.mean["f"], atol=1e-6)


# -- engines that need more -------------------------------------------------------------------


def fit_cavi(model):
    pac.fit("cavi", model=model, **QUIET)


REFUSING = {
    "step": lambda model: pac.AugmentedGibbs(model=model, sites="augmented"),
    "sample": lambda model: pac.sample(model=model, sites="augmented", **QUIET),
    "cavi": fit_cavi,
    "augment": pac.augment,
}


@pytest.mark.parametrize("engine", REFUSING)
def test_engines_that_need_an_augmentation_refuse(engine):
    model, _ = write("Poisson, log")
    sentence = (
        r"'y'.*Poisson with log link.*no conjugate augmentation: use .*pac\.sample .*samples this "
        r"very model exactly, and pac\.fit with method \"vgp\", \"ep\", \"qp\" or \"svi\""
    )
    with pytest.raises(pac.UnknownLikelihoodError, match=sentence):
        REFUSING[engine](model)


def test_a_posterior_of_two_signs_is_warned_of():
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.Matern32(1, ls=LS)).prior("f", X=X)
        pm.Poisson("y", f**2, observed=COUNTS)
    sentence = "'y': the prior mean of its predictor is zero.*mean_func"
    with pytest.warns(RuntimeWarning, match=sentence):
        pac.fit("vgp", model=model, hyper="fixed", **QUIET)


# -- predictions ------------------------------------------------------------------------------


def test_predictions_of_a_square_link_are_exact():
    model, gp = write("Poisson, square")
    fit = pac.fit("ep", model=model, hyper="fixed", **QUIET)
    with model:
        latent = pac.predict(fit, gp, Xnew).predictions
        y = np.array([0.0, 2.0, 7.0])
        found = pac.predict(fit, gp, Xnew, kind="y", ynew=y).predictions
    mean, std = 1.4 + latent["f_mean"].values, latent["f_std"].values
    eta = mean[:, None] + std[:, None] * np.linspace(-9, 9, 4001)
    weights = norm.pdf(np.linspace(-9, 9, 4001)) * 18 / 4000
    rate = 0.5 * eta**2
    expected = (weights * rate).sum(axis=1)
    np.testing.assert_allclose(found["y_mean"], expected, rtol=1e-9)
    second = (weights * (rate + rate**2)).sum(axis=1)
    np.testing.assert_allclose(found["y_std"] ** 2, second - expected**2, rtol=1e-9)
    density = np.exp(y[:, None] * np.log(rate) - rate) / np.array([1.0, 2.0, 5040.0])[:, None]
    np.testing.assert_allclose(np.exp(found["y_log_density"]), density @ weights, rtol=1e-9)


def test_predictions_of_a_probit_link_are_exact():
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern32(1, ls=LS))
        p = pm.math.invprobit(gp.prior("f", X=X))
        pm.Bernoulli("y", p=p, observed=[1, 0, 1])
        fit = pac.fit("ep", model=model, hyper="fixed", **QUIET)
        latent = pac.predict(fit, gp, Xnew).predictions
        found = pac.predict(fit, gp, Xnew, kind="y").predictions
    expected = ndtr(latent["f_mean"] / np.sqrt(1.0 + latent["f_std"] ** 2))
    # PyMC has the √2 of Φ as a number of single precision.
    np.testing.assert_allclose(found["y_mean"], expected, rtol=1e-8)


@pytest.mark.parametrize("name", ["Gamma", "ordered logistic", "Beta", "zero-inflated Poisson"])
def test_predictions_through_pymcs_density(name):
    """From a Gaussian by quadrature, and from its draws: the same within their standard error."""
    model, gp = write(name)
    fit = pac.fit("vgp", model=model, hyper="fixed", **QUIET)
    y = (
        np.array([1.0, 0.0, 2.0])
        if name in ("ordered logistic", "zero-inflated Poisson")
        else (np.array([0.3, 0.6, 0.9]))
    )
    draws, seeds = 80, range(8)
    with model:
        found = pac.predict(fit, gp, Xnew, kind="y", ynew=y, quantile=[0.5]).predictions
        sampled = [
            pac.predict(
                fit.sample(draws, random_seed=seed), gp, Xnew, kind="y", ynew=y, random_seed=seed
            ).predictions
            for seed in seeds
        ]
    assert np.isfinite(found["y_mean"]).all()
    assert np.isfinite(found["y_quantile"]).all()
    for read in (lambda p: p["y_mean"].values, lambda p: np.exp(p["y_log_density"].values)):
        values = np.array([read(prediction) for prediction in sampled])
        error = values.std(axis=0, ddof=1) / np.sqrt(len(seeds))
        # With 7 degrees of freedom, 8 standard errors are exceeded once in ten thousand times.
        assert np.all(np.abs(values.mean(axis=0) - read(found)) < 8.0 * error)


@pytest.mark.parametrize("method", ["vgp", "ep"])
def test_bounds_that_nothing_reaches_leave_gp_regression(method):
    fits = []
    for bounded in (True, False):
        with pm.Model():
            f = pm.gp.Latent(cov_func=pm.gp.cov.Matern32(1, ls=LS)).prior("f", X=X)
            y, sigma = np.array([0.3, -1.0, 0.8]), 0.3
            if bounded:
                pm.Censored("y", pm.Normal.dist(f, sigma), lower=-9.0, upper=9.0, observed=y)
            else:
                pm.Normal("y", f, sigma, observed=y)
            fits.append(pac.fit(method, tol=1e-9, **QUIET))
    assert fits[0].log_evidence == pytest.approx(fits[1].log_evidence, abs=1e-8)
    np.testing.assert_allclose(fits[0].mean["f"], fits[1].mean["f"], atol=1e-7)
    np.testing.assert_allclose(fits[0].std["f"], fits[1].std["f"], rtol=1e-6)


def test_predictions_of_a_censored_normal_are_exact():
    """Without the censoring y* is normal, and y is y* clipped."""
    model, gp = write("censored on both sides")
    fit = pac.fit("ep", model=model, hyper="fixed", **QUIET)
    ynew, levels = np.array([0.0, 0.5, 1.2]), [0.01, 0.5, 0.99]
    with model:
        latent = pac.predict(fit, gp, Xnew).predictions
        found = pac.predict(fit, gp, Xnew, kind="y", ynew=ynew, quantile=levels).predictions
    law = norm(latent["f_mean"].values, np.hypot(latent["f_std"].values, fit.theta["s"]))
    a, b = ((bound - law.mean()) / law.std() for bound in (0.0, 1.2))
    below, above = ndtr(a), ndtr(-b)
    between, slope = 1.0 - below - above, norm.pdf(a) - norm.pdf(b)
    mean = 1.2 * above + law.mean() * between + law.std() * slope
    second = norm.pdf(a) * a - norm.pdf(b) * b
    squares = 1.44 * above + law.mean() ** 2 * between + 2.0 * law.mean() * law.std() * slope
    squares += law.var() * (between + second)
    # Counts of probability are good to 1e-7.
    np.testing.assert_allclose(found["y_mean"], mean, rtol=1e-7)
    np.testing.assert_allclose(found["y_std"], np.sqrt(squares - mean**2), rtol=1e-6)
    expected = [law.cdf(0.0)[0], law.pdf(0.5)[1], law.sf(1.2)[2]]
    np.testing.assert_allclose(np.exp(found["y_log_density"]), expected, rtol=1e-7)
    quantiles = [np.clip(law.ppf(level), 0.0, 1.2) for level in levels]
    np.testing.assert_allclose(found["y_quantile"], quantiles, rtol=1e-6, atol=1e-12)


def test_predictions_of_times_that_nothing_will_censor():
    """The bounds of old times are not those of new ones."""
    model, gp = write("right-censored times")
    fit = pac.fit("vgp", model=model, hyper="fixed", **QUIET)
    with model:
        with pytest.raises(pac.AugmentationError, match="parameter 'upper' of 'y' differs"):
            pac.predict(fit, gp, Xnew, kind="y")
        latent = pac.predict(fit, gp, Xnew).predictions
        free = pac.predict(fit, gp, Xnew, kind="y", params={"upper": np.inf}).predictions
        clipped = pac.predict(fit, gp, Xnew, kind="y", params={"upper": 0.5}).predictions
    expected = np.exp(latent["f_mean"] + 0.5 * latent["f_std"] ** 2) * gamma_of(
        1 + 1 / fit.theta["a"]
    )
    np.testing.assert_allclose(free["y_mean"], expected, rtol=1e-6)
    assert (clipped["y_mean"] < np.minimum(0.5, free["y_mean"])).all()
    drawn = fit.sample(50, random_seed=1)
    with model:
        some = pac.predict(drawn, gp, Xnew, kind="y", params={"upper": 0.5}).predictions
    assert np.isfinite(some["y_std"]).all()
    assert (np.abs(some["y_mean"] - clipped["y_mean"]) < 0.1).all()


def test_quantiles_without_a_distribution_function_are_refused():
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern32(1, ls=LS))
        pm.SkewNormal("y", mu=gp.prior("f", X=X), sigma=1, alpha=2, observed=[0.3, 0.1, 1.0])
        fit = pac.fit("ep", model=model, hyper="fixed", **QUIET)
        with pytest.raises(pac.AugmentationError, match="no distribution function of SkewNormal"):
            pac.predict(fit, gp, Xnew, kind="y", quantile=[0.5])


def test_approximations_can_be_pickled():
    model, _ = write("Gamma")
    fit = pac.fit("vgp", model=model, hyper="fixed", **QUIET)
    again = pickle.loads(pickle.dumps(fit))
    np.testing.assert_array_equal(again.mean["f"], fit.mean["f"])


def test_exposures_are_given_at_new_inputs():
    model, gp = write("Poisson, log")
    fit = pac.fit("ep", model=model, hyper="fixed", **QUIET)
    exposure = 4.0
    with model:
        with pytest.raises(pac.AugmentationError, match="parameter 'exposure' of 'y' differs"):
            pac.predict(fit, gp, Xnew, kind="y")
        latent = pac.predict(fit, gp, Xnew).predictions
        found = pac.predict(fit, gp, Xnew, kind="y", params={"exposure": exposure}).predictions
    expected = exposure * np.exp(latent["f_mean"] + 0.5 * latent["f_std"] ** 2)
    np.testing.assert_allclose(found["y_mean"], expected, rtol=1e-12)


def test_an_exposure_may_be_an_offset_too():
    """The same model, and an exposure of zero where nothing can be counted."""
    exposure, fits = np.array([1.0, 2.5, 0.5]), []
    for mu in (lambda f: exposure * exp(f), lambda f: exp(np.log(exposure) + f)):
        with pm.Model() as model:
            f = pm.gp.Latent(cov_func=pm.gp.cov.Matern32(1, ls=LS)).prior("f", X=X)
            pm.Poisson("y", mu(f), observed=COUNTS)
        fits.append(pac.fit("vgp", model=model, hyper="fixed", **QUIET))
    assert fits[0].log_evidence == pytest.approx(fits[1].log_evidence, abs=1e-8)
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.Matern32(1, ls=LS)).prior("f", X=X)
        pm.Poisson("y", exposure * np.array([1.0, 0.0, 1.0]) * exp(f), observed=COUNTS)
    fit = pac.fit("vgp", model=model, hyper="fixed", **QUIET)
    np.testing.assert_allclose([fit.h[1], fit.lam[1]], 0.0, atol=1e-8)


@pytest.mark.parametrize("kind", ["Truncated", "Censored"])
def test_moments_of_atoms_and_edges(kind):
    """Where no density integrates to one, against closed forms given f."""
    lower, upper, sigma = -0.3, 0.9, 0.4
    y = np.random.default_rng(0).uniform(lower, upper, 3)
    with pm.Model():
        gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern32(1, ls=LS))
        f = gp.prior("f", X=X)
        getattr(pm, kind)("y", pm.Normal.dist(f, sigma), lower=lower, upper=upper, observed=y)
        fit = pac.fit("vgp", **QUIET)
        found = pac.predict(fit, gp, Xnew, "y").predictions
        latent = pac.predict(fit, gp, Xnew).predictions
        draws = fit.sample(100, random_seed=1)
        of_draws = pac.predict(draws, gp, Xnew, "y", random_seed=2).predictions
        drawn = pac.predict(draws, gp, Xnew, random_seed=2).predictions["f"].values[0]

    def moments(f):
        below, above = (lower - f) / sigma, (upper - f) / sigma
        inside = truncnorm(below, above, f, sigma)
        if kind == "Truncated":
            return inside.mean(), inside.var() + inside.mean() ** 2
        mass, low, high = ndtr(above) - ndtr(below), ndtr(below), ndtr(-above)
        square = mass * (inside.var() + inside.mean() ** 2)
        square += low * lower**2 + high * upper**2
        return mass * inside.mean() + low * lower + high * upper, square

    z = np.linspace(-7.0, 7.0, 141)
    weights = norm.pdf(z) / norm.pdf(z).sum()
    f = latent["f_mean"].values[:, None] + latent["f_std"].values[:, None] * z
    mean, square = (part @ weights for part in moments(f))
    # What p = 1e-8 leaves out.
    np.testing.assert_allclose(found["y_mean"], mean, atol=1e-6)
    np.testing.assert_allclose(found["y_std"], np.sqrt(square - mean**2), atol=1e-6)
    mean, square = (part.mean(axis=0) for part in moments(drawn))
    np.testing.assert_allclose(of_draws["y_mean"], mean, atol=1e-5)
    np.testing.assert_allclose(of_draws["y_std"], np.sqrt(square - mean**2), atol=1e-5)


@pytest.mark.parametrize("nu", [1.5, 0.8])
def test_moments_that_do_not_exist_are_told(nu):
    """The variance of a truncated y is infinite, or the mean of an untruncated one."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (20, 1))
    with pm.Model():
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        f = gp.prior("f", X=X)
        heavy, y = pm.StudentT.dist(nu=nu, mu=f, sigma=0.5), np.abs(rng.normal(size=20))
        if nu > 1.0:
            pm.Truncated("y", heavy, lower=0, observed=y)
        else:
            pm.StudentT("y", nu=nu, mu=f, sigma=0.5, observed=y)
        fit = pac.fit("vgp", **QUIET)
        with pytest.warns(RuntimeWarning, match=r"NaN at 5 of 5 inputs"):
            y = pac.predict(fit, gp, X[:5], "y", quantile=[0.5]).predictions
    assert np.isnan(y["y_mean"]).all()
    assert np.isfinite(y["y_quantile"]).all()


def test_a_density_that_rounding_makes_infinite_far_out():
    """PyMC's log probability of a count above a hurdle is +∞ where its mean has underflowed."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 1))
    y = rng.poisson(1.5, size=30) * (rng.random(30) < 0.6)
    with pm.Model():
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=X)
        pm.HurdlePoisson("y", psi=0.6, mu=exp(f), observed=y)
        vgp, ep = (pac.fit(method, **QUIET) for method in ("vgp", "ep"))
    assert ep.converged
    assert vgp.log_evidence < ep.log_evidence < vgp.log_evidence + 0.1
    assert float(np.abs(vgp.mean["f"] - ep.mean["f"]).max()) < 0.1


@pytest.mark.parametrize(
    ("amplitude", "observe"),
    [
        (5.0, lambda f: pm.OrderedLogistic("y", eta=f, cutpoints=[-1.0, 1.0], observed=[0, 1, 2])),
        (30.0, lambda f: pm.ZeroInflatedPoisson("y", psi=0.7, mu=exp(f), observed=[0, 1, 4])),
        (30.0, lambda f: pm.Beta("y", mu=invlogit(f), nu=5.0, observed=[0.2, 0.7, 0.9])),
        (100.0, lambda f: pm.Poisson("y", mu=exp(f), observed=[0, 1, 4])),
    ],
)
def test_a_prior_too_wide_to_start_from(amplitude, observe):
    """Log densities under the prior are −∞ by rounding, or −1e100: the bound is that from EP on."""
    with pm.Model():
        gp = pm.gp.Latent(cov_func=amplitude**2 * pm.gp.cov.ExpQuad(1, ls=1.0))
        observe(gp.prior("f", X=X))
        vgp, ep = pac.fit("vgp", **QUIET), pac.fit("ep", **QUIET)
        recognition = pac.recognize()
    family = BoundFamily(recognition.model, VariationalGaussian(), [recognition.start])
    from_ep = climb(family.at(recognition.start), (ep.h, ep.lam), max_iter=1000, tol=1e-6)
    assert vgp.converged
    assert vgp.log_evidence == pytest.approx(from_ep.evaluation.bound, abs=1e-8)
    assert vgp.log_evidence < ep.log_evidence


def test_moments_that_cannot_be_integrated_at_the_start_are_explained():
    def unbounded(value, f):
        return f**2 + f + 0.0 * value

    with pm.Model():
        f = pm.gp.Latent(cov_func=4.0 * pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=X)
        pm.CustomDist("y", f, logp=unbounded, observed=np.zeros(3))
        with pytest.raises(pac.AugmentationError, match=r"cannot be integrated.*method='vgp'"):
            pac.fit("ep", **QUIET)
