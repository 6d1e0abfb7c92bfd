"""``pac.fit("nested")`` and ``pac.log_evidence`` beside quadrature."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy.integrate import cumulative_trapezoid
from scipy.special import gammaln
from scipy.stats import chi2, halfnorm, multivariate_normal, poisson

import pymc_augconj as pac
from pymc_augconj.results.approximation.leave_one_out import density_of_draws

QUIET = {"progressbar": False}


def logistic_groups(n_groups=8):
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(n_groups), 6)
    y = rng.integers(0, 2, group.size)
    with pm.Model(coords={"group": [f"g{i}" for i in range(n_groups)]}) as model:
        tau, mu = pm.Exponential("tau", 1), pm.Normal("mu", 0, 1.5)
        a = pm.Normal("a", 0, tau, dims="group")
        pm.Deterministic("odds", pm.math.exp(mu + a), dims="group")
        pm.Bernoulli("y", logit_p=mu + a[group], observed=y)
    return model, np.bincount(group, weights=y)


@pytest.fixture(scope="module")
def logistic():
    """The model, its nested fit, and moments by quadrature over mu, log tau and each a."""
    model, ones = logistic_groups()
    x, w = np.polynomial.hermite_e.hermegauss(60)
    w = w / w.sum()
    log_tau = np.linspace(-12.0, 3.0, 200)
    mass, first, second = [], [], []
    for tau in np.exp(log_tau):
        eta = 1.5 * x[:, None, None] + tau * x[:, None]
        likelihood = np.exp(-ones * np.logaddexp(0, -eta) - (6 - ones) * np.logaddexp(0, eta))
        each = np.einsum("j,ijk->ik", w, likelihood)
        moments = [np.einsum("j,ij,i->", w, (tau * x) ** k * likelihood[..., 0],
                             w * each[:, 1:].prod(axis=1)) for k in (1, 2)]  # fmt: skip
        mass.append(w @ each.prod(axis=1))
        first.append(moments[0])
        second.append(moments[1])
    prior = np.exp(log_tau - np.exp(log_tau))
    evidence = np.trapezoid(prior * mass, log_tau)

    def mean(values):
        return np.trapezoid(prior * values, log_tau) / evidence

    tau = np.exp(log_tau)
    exact = SimpleNamespace(
        log_evidence=np.log(evidence),
        tau=mean(tau * mass),
        tau_std=np.sqrt(mean(tau**2 * mass) - mean(tau * mass) ** 2),
        a=mean(np.array(first)),
        a_std=np.sqrt(mean(np.array(second)) - mean(np.array(first)) ** 2),
    )
    return SimpleNamespace(
        model=model, exact=exact, fit=pac.fit("nested", model=model, random_seed=1, **QUIET)
    )


def test_moments_are_those_of_quadrature(logistic):
    fit, exact = logistic.fit, logistic.exact
    assert fit.converged
    assert abs(fit.mean["tau"] - exact.tau) < 0.05 * exact.tau_std
    assert float(fit.std["tau"]) == pytest.approx(exact.tau_std, rel=0.05)
    assert abs(fit.mean["a"][0] - exact.a) < 0.05 * exact.a_std
    assert float(fit.std["a"][0]) == pytest.approx(exact.a_std, rel=0.05)
    assert fit.log_evidence == pytest.approx(exact.log_evidence, abs=0.03)
    assert fit.pareto_k < 0.7
    assert "Pareto k of θ" in repr(fit)
    # The control: at a point estimate of tau the deviation of a is another.
    point = pac.fit("ep", model=logistic.model, **QUIET)
    assert float(point.std["a"][0]) != pytest.approx(exact.a_std, rel=0.05)


def test_draws_are_those_of_the_mixture(logistic):
    fit, model = logistic.fit, logistic.model
    tree = fit.sample(2000, log_likelihood=True)
    posterior = tree["posterior"]
    assert set(posterior.data_vars) >= {"tau", "mu", "a", "odds"}
    np.testing.assert_allclose(posterior["odds"], np.exp(posterior["mu"] + posterior["a"]))
    for name in ("tau", "mu", "a"):
        drawn = posterior[name]
        error = fit.std[name] / np.sqrt(2000)
        assert (abs(drawn.mean(("chain", "draw")) - fit.mean[name]) < 5 * error).all()
        assert (abs(drawn.std(("chain", "draw")) / fit.std[name] - 1.0) < 0.1).all()
    assert list(fit.mean["a"].coords["group"].values) == list(model.coords["group"])
    assert float(az.loo(tree).elpd) < 0.0


@pytest.mark.parametrize("of", ["StudentT", "Categorical"])
def test_draws_where_sites_follow_a_scale_or_have_blocks(of):
    # The scale of StudentT effects goes from 0.01 to 1 here, the precisions of their sites with its
    # inverse square. Those of classes have entries for pairs of predictors.
    rng, group = np.random.default_rng(3), np.arange(30) % 5
    y, classes = rng.normal(size=30), rng.integers(0, 3, 30)
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1.0)
        if of == "StudentT":
            mu, u = pm.Normal("mu", 0.0, 3.0), pm.StudentT("u", nu=4, mu=0.0, sigma=tau, shape=5)
            pm.Normal("y", mu + u[group], 1.0, observed=y)
        else:
            mu, u = pm.Normal("mu", 0.0, 3.0, shape=2), pm.Normal("u", 0.0, tau, shape=(5, 2))
            eta = pm.math.concatenate([np.zeros((30, 1)), mu + u[group]], axis=1)
            pm.Categorical("y", logit_p=eta, observed=classes)
    fit = pac.fit("nested", model=model, progressbar=False)
    drawn = fit.sample(400, random_seed=1)["posterior"]
    for name in ("mu", "u"):
        assert (abs(drawn[name].std(("chain", "draw")) / fit.std[name] - 1.0) < 0.25).all()


def test_marginals_have_the_moments(logistic):
    for name in ("tau", "a", "mu"):
        x, density = logistic.fit.marginal(name)
        mean, std = logistic.fit.mean[name].values, logistic.fit.std[name].values
        np.testing.assert_allclose(np.trapezoid(density, x, axis=-1), 1.0, atol=5e-3)
        found = np.trapezoid(density * x, x, axis=-1)
        assert (np.abs(found - mean) < 0.05 * std).all()
    x, density = logistic.fit.marginal("y")
    np.testing.assert_allclose(np.trapezoid(density, x, axis=-1), 1.0, atol=1e-3)
    with pytest.raises(pac.AugmentationError, match="marginal: expected a hyperparameter"):
        logistic.fit.marginal("odds")


def test_marginals_of_scales_near_zero():
    """A half-normal scale, whose logarithm has a long tail on the left and a short one."""
    value = np.sqrt(chi2.ppf((np.arange(8192) + 0.5) / 8192, 1))
    x, density = density_of_draws(np.log(value), value, np.full(8192, 1 / 8192), 201)
    mass = cumulative_trapezoid(density, x, initial=0.0)
    levels = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
    found, exact = np.interp(levels * mass[-1], mass, x), np.sqrt(chi2.ppf(levels, 1))
    # A normal kernel of the same width puts the last one off by 0.07.
    np.testing.assert_allclose(found, exact, atol=0.03)


def test_the_evidence_is_that_of_quadrature(logistic):
    found = pac.log_evidence(logistic.fit, draws=600, random_seed=1)
    assert abs(found.value - logistic.exact.log_evidence) < 4 * found.standard_error
    assert found.pareto_k < 0.7
    # The control: without the control variate.
    log_ratios, _, points = logistic.fit.log_ratios(600, 8, np.random.default_rng(1))
    ratios = np.exp(log_ratios - found.value)
    assert found.standard_error < 0.7 * ratios.std() / np.sqrt(600)
    assert points == 8192


@pytest.mark.parametrize("y", [[0, 0, 0], [0, 1, 0], [2, 5, 3]])
def test_skewness_corrects_the_evidence(y):
    """log p(y | s) of a walk of three counts by quadrature over its steps."""
    with pm.Model():
        start = pm.Normal.dist(0, 1)
        walk = pm.GaussianRandomWalk("h", sigma=pm.HalfNormal("s", 1), init_dist=start, shape=3)
        pm.Poisson("y", pm.math.exp(walk), observed=y)
        fit = pac.fit("nested", **QUIET)
    nested, (x, w) = fit.nested, np.polynomial.hermite_e.hermegauss(60)
    u = np.array(np.meshgrid(x, x, x, indexing="ij"))
    mass = np.einsum("i,j,k->ijk", w, w, w) / w.sum() ** 3
    for k in np.argsort(-nested.weights)[:5]:
        h = np.cumsum(np.array([1.0, *2 * [np.exp(nested.x[k, 0])]])[:, None, None, None] * u, 0)
        log_density = sum(h[i] * y[i] - np.exp(h[i]) - gammaln(y[i] + 1.0) for i in range(3))
        exact = np.log(np.sum(mass * np.exp(log_density)))
        given = nested.given(nested.x[k], nested.h[k], nested.lam[k])
        error = nested.log_evidence(given) - exact
        assert abs(error + nested.corrections([k])[0]) < 0.05 * abs(error)
        log_prior = float(nested.model.log_prior(given.point))
        assert nested.log_density[k] == pytest.approx(log_prior + exact, abs=1e-3)


def test_predictors_that_hardly_vary_have_no_skewness():
    """Also where their variance underflows."""
    y = np.array([1, 4])
    with pm.Model() as model:
        t = pm.HalfNormal("t", 8)
        b = pm.Normal("b", 0, pm.math.exp(-(t**2)), shape=2)
        pm.Poisson("y", pm.math.exp(b), observed=y)
    at = np.linspace(0.0, 60.0, 4001)
    x, w = np.polynomial.hermite_e.hermegauss(60)
    rate = np.exp(np.exp(-(at[:, None, None] ** 2)) * x)
    likelihood = poisson.pmf(y[:, None], rate) @ (w / w.sum())
    expected = np.log(np.trapezoid(halfnorm.pdf(at, scale=8) * likelihood.prod(axis=1), at))
    fit = pac.fit("nested", model=model, **QUIET)
    assert fit.log_evidence == pytest.approx(expected, abs=0.02)


def test_corrections_sum_over_equal_predictors():
    """Counts of three groups, whose rows are merged where they have one slope; and alone."""
    group, y = np.array([0, 0, 1, 1, 1, 2]), np.array([0, 2, 0, 0, 1, 4])
    found = []
    for slopes in (np.ones(6), 1.0 + 1e-9 * np.arange(6)):
        with pm.Model():
            a = pm.Normal("a", 0, pm.HalfNormal("s", 1), shape=3)
            pm.Poisson("y", pm.math.exp(a[group] * slopes), observed=y)
            fit = pac.fit("nested", **QUIET)
        found.append(fit.nested)
    assert [nested.priors.groups.size for nested in found] == [3, 6]
    merged, apart = (nested.corrections(range(5)) for nested in found)
    np.testing.assert_allclose(merged, apart, rtol=1e-5)
    assert merged.min() > 1e-4
    with pm.Model():
        a = pm.Normal("a", 0, pm.HalfNormal("s", 1), shape=3)
        pm.Poisson("y", pm.math.exp(a), observed=[0, 1, 4])
        alone = pac.fit("nested", **QUIET)
    # Where every observation has a latent of its own, expectation propagation is exact.
    np.testing.assert_allclose(alone.nested.corrections(range(5)), 0.0, atol=1e-12)
    assert alone.diagnostics["correction"] == pytest.approx(0.0, abs=1e-12)
    assert "adds 0.0000 ± 0.0000 over θ" in repr(alone)


def test_leave_one_out_is_that_of_refits():
    """p(yᵢ | y₋ᵢ) = p(y)/p(y₋ᵢ) by quadrature; a single count in each group is hard for draws."""
    y = np.array([0, 7, 1, 30, 2, 0, 4, 1])
    with pm.Model():
        tau = pm.HalfNormal("tau", 2)
        a = pm.Normal("a", 0, tau, shape=8)
        pm.Poisson("y", pm.math.exp(1.0 + a), observed=y)
        fit = pac.fit("nested", random_seed=1, **QUIET)
    x, w = np.polynomial.hermite_e.hermegauss(200)
    w = w / w.sum()
    log_tau = np.linspace(-10.0, 2.5, 400)
    eta = 1.0 + np.exp(log_tau)[:, None, None] * x[:, None]
    likelihood = np.exp(eta * y - np.exp(eta) - gammaln(y + 1.0))
    each, square = (np.einsum("j,tji->ti", w, likelihood**k) for k in (1, 2))
    prior = np.exp(log_tau - np.exp(2 * log_tau) / 8)[:, None]
    whole = np.trapezoid(prior * each.prod(axis=1, keepdims=True), log_tau, axis=0)
    others = np.column_stack([np.delete(each, i, axis=1).prod(axis=1) for i in range(8)])
    exact = np.log(whole / np.trapezoid(prior * others, log_tau, axis=0))
    inside = np.log(np.trapezoid(prior * others * square, log_tau, axis=0) / whole)
    found = fit.loo()
    error, good = np.abs(found.elpd_i - exact), found.pareto_k < 0.7
    # The 30 is so far out that nothing but its refit finds the hyperparameter without it.
    assert list(np.flatnonzero(~good)) == [3]
    assert found.warning
    assert error[good].max() < 0.02
    assert error.max() < 0.1
    assert found.p == pytest.approx(np.sum(inside - exact), abs=0.1)
    # The control: weights of all latents fail.
    with pytest.warns(UserWarning, match="Pareto"):
        draws = az.loo(fit.to_datatree(), pointwise=True)
    assert (draws.pareto_k > 0.7).sum() > 1


def test_blocks_are_left_out_together():
    """Joint densities of normal data, which expectation propagation has exactly, by quadrature."""
    rng = np.random.default_rng(5)
    n, who = 24, np.repeat(np.arange(6), 4)
    y = np.cumsum(0.5 * rng.standard_normal(n)) + rng.standard_normal(n)
    with pm.Model():
        s = pm.HalfNormal("s", 1)
        walk = pm.GaussianRandomWalk("h", sigma=s, init_dist=pm.Normal.dist(0, 2), shape=n)
        pm.Normal("y", walk, 1.0, observed=y)
        fit = pac.fit("nested", random_seed=1, **QUIET)
    log_s = np.linspace(-8.0, 2.5, 2000)
    steps = np.minimum(*np.indices((n, n)))

    def log_density(kept):
        """log p(y of those kept), up to the constant of the prior of s."""
        C = (4.0 + np.exp(2 * log_s)[:, None, None] * steps + np.eye(n))[:, kept][:, :, kept]
        L = np.linalg.cholesky(C)
        z = np.linalg.solve(L, np.broadcast_to(y[kept], C.shape[:2])[..., None])[..., 0]
        values = -0.5 * np.sum(z**2 + np.log(2 * np.pi), axis=1)
        values -= np.log(np.diagonal(L, axis1=1, axis2=2)).sum(axis=1)
        log_prior = log_s - 0.5 * np.exp(2 * log_s)
        return np.log(np.trapezoid(np.exp(values + log_prior + 40.0), log_s)) - 40.0

    whole = log_density(np.arange(n))
    found = fit.loo(groups=who)
    exact = [whole - log_density(np.flatnonzero(who != k)) for k in range(6)]
    np.testing.assert_allclose(found.elpd_i, exact, atol=0.02)
    assert list(found.elpd_i.coords["block"].values) == list(range(6))
    # The control: sums over observations that are left out one by one are another number.
    alone = fit.loo().elpd_i.values.reshape(6, 4).sum(axis=1)
    assert np.abs(alone - exact).max() > 0.2
    ahead = fit.loo(ahead=4)
    before = [log_density(np.arange(k)) for k in (12, 16, 20)]
    good = ahead.pareto_k.values < 0.7
    error = np.abs(ahead.elpd_i.values - np.diff([*before, whole]))
    assert good.any()
    assert error[good].max() < 0.05
    with pytest.raises(pac.AugmentationError, match="groups: expected the label"):
        fit.loo(groups=who[1:])


def test_pickled_fits_and_exact_draws(logistic):
    fit = pickle.loads(pickle.dumps(logistic.fit))
    assert float(fit.mean["tau"]) == float(logistic.fit.mean["tau"])
    drawn, again = (f.sample(10, random_seed=1)["posterior"]["odds"] for f in (fit, logistic.fit))
    np.testing.assert_array_equal(drawn, again)
    options = {"compute_convergence_checks": False, "quiet": True, **QUIET}
    exact = fit.exact(500, chains=2, cores=1, **options)["posterior"]
    ess = az.ess(exact, var_names=["tau"])["tau"].item()
    assert ess > 100
    error = logistic.exact.tau_std / np.sqrt(ess)
    assert abs(float(exact["tau"].mean()) - logistic.exact.tau) < 4 * error


def test_saved_fits(logistic, tmp_path):
    logistic.fit.save(tmp_path / "fit")
    found = pac.NestedApproximation.load(tmp_path / "fit", logistic.model)
    assert repr(found) == repr(logistic.fit)
    assert found.log_evidence == logistic.fit.log_evidence
    for name in ("tau", "mu", "a"):
        np.testing.assert_allclose(found.std[name], logistic.fit.std[name], rtol=1e-10)
    drawn, again = (f.sample(9, random_seed=1)["posterior"] for f in (found, logistic.fit))
    for name in again:
        np.testing.assert_allclose(drawn[name], again[name], rtol=1e-8)
    np.testing.assert_allclose(found.loo().elpd_i, logistic.fit.loo().elpd_i, rtol=1e-8)
    with pytest.raises(pac.AugmentationError, match=r"use pac.NestedApproximation.load\(path, mod"):
        pac.Approximation.load(tmp_path / "fit")
    ones = logistic_groups()[1]
    ones = np.where(np.arange(ones.size) == 0, 6 - ones, ones)
    with pm.Model() as other:
        a = pm.Normal("a", 0, pm.Exponential("tau", 1), shape=ones.size)
        pm.Binomial("y", 6, logit_p=pm.Normal("mu", 0, 1.5) + a, observed=ones)
    with pytest.raises(pac.AugmentationError, match="expected the model and data of the saved"):
        pac.NestedApproximation.load(tmp_path / "fit", other)
    point = pac.fit("ep", model=logistic.model, **QUIET)
    point.save(tmp_path / "point")
    with pytest.raises(pac.AugmentationError, match="one by 'ep'"):
        pac.NestedApproximation.load(tmp_path / "point", logistic.model)


def test_arviz_compares_leave_one_out(logistic):
    y = logistic.fit.observed["y"]
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, pm.HalfNormal("s", 2))
        pm.Bernoulli("y", logit_p=mu * np.ones(y.size), observed=y)
    one = pac.fit("nested", model=model, random_seed=1, **QUIET)
    loos = {"groups": logistic.fit.loo(), "one": one.loo()}
    table = az.compare(loos)
    difference = loos["groups"].elpd_i.values - loos["one"].elpd_i.values
    found = abs(float(table["elpd_diff"].iloc[1]))
    np.testing.assert_allclose(found, abs(difference.sum()), atol=0.1)
    assert set(table.index) == {"groups", "one"}


def test_draws_are_updated_by_new_data():
    """The posterior of more data by quadrature over the deviation, given which all is normal."""
    rng = np.random.default_rng(6)
    x = rng.standard_normal(63)
    y = rng.binomial(1, 1 / (1 + np.exp(-1.5 * x)))
    with pm.Model():
        X, ones = pm.Data("x", x[:60]), pm.Data("ones", y[:60])
        tau = pm.HalfNormal("tau", 2)
        b = pm.Normal("b", 0, tau)
        pm.Bernoulli("y", logit_p=b * X, observed=ones)
        pm.Deterministic("odds", pm.math.exp(b))
        fit = pac.fit("nested", random_seed=1, **QUIET)
        old = fit.sample(500)
        found = pac.update(old, {"x": x, "ones": y}, draws=2000, random_seed=2)
    grid, log_tau = np.linspace(-6, 8, 1500), np.linspace(-8, 3, 400)
    signs = 2 * y - 1

    def moments(n):
        log_likelihood = -np.logaddexp(0, -grid[:, None] * (signs * x)[:n]).sum(axis=1)
        s = np.exp(log_tau)[:, None]
        joint = np.exp(log_likelihood - 0.5 * (grid / s) ** 2 - s**2 / 8)  # dτ/τ = d log τ
        p = joint.sum(axis=0) / joint.sum()
        mean = p @ grid
        return mean, np.sqrt(p @ (grid - mean) ** 2)

    mean, std = moments(63)
    posterior = found["posterior"]
    assert set(posterior.data_vars) == {"tau", "b", "odds"}
    assert 0.5 < posterior.attrs["effective_share"] <= 1.0
    assert abs(float(posterior["b"].mean()) - mean) < 0.1 * std
    assert float(posterior["b"].std()) == pytest.approx(std, rel=0.1)
    np.testing.assert_allclose(posterior["odds"], np.exp(posterior["b"]))
    # The control: the old draws are of another posterior.
    assert abs(moments(60)[0] - mean) > 0.1 * std


def test_draws_are_not_updated_far_away():
    noise = 0.1 * np.random.default_rng(7).standard_normal(60)
    with pm.Model() as model:
        values = pm.Data("values", noise)
        pm.Normal("y", pm.Normal("m"), pm.HalfNormal("s", 1), observed=values)
        old = pac.fit("nested", random_seed=1, **QUIET).sample(200)
        with pytest.raises(pac.AugmentationError, match="leave at least 10%"):
            pac.update(old, {"values": 10 * noise})
    np.testing.assert_array_equal(model["values"].get_value(), noise)


def test_engines_are_advised(logistic, monkeypatch):
    fits = {}

    def recorded(method, **options):
        fits[method] = pac.fit(method, **options)
        return fits[method]

    monkeypatch.setattr("pymc_augconj.api.recognize.fit", recorded)
    table = pac.advise(logistic.model, seconds=1e4, random_seed=1)
    assert list(table.index) == ["sample", "nested", "ep", "vgp", "cavi"]
    assert (table["seconds"] > 0.0).all()
    assert table["pareto_k"]["nested"] == fits["nested"].pareto_k
    # That of the same seed, whose bits depend on where arrays lie in memory.
    assert fits["nested"].pareto_k == pytest.approx(logistic.fit.pareto_k, rel=1e-8)
    stopped = pac.advise(logistic.model, seconds=1e-9, random_seed=1)
    assert stopped["wrong"]["nested"].startswith("stopped after")
    assert np.isnan(stopped["seconds"]["nested"])


def test_the_time_of_a_step_is_told(logistic):
    assert "Expected time" not in str(pac.recognize(logistic.model))
    assert "ms a step; " in str(pac.recognize(logistic.model, pilot=1e-9))


def test_the_evidence_of_normal_data():
    rng = np.random.default_rng(2)
    X, y = np.linspace(0, 1, 12)[:, None], rng.standard_normal(12)
    with pm.Model():
        gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern32(1, ls=0.3))
        pm.Normal("y", gp.prior("f", X=X, jitter=0.0), 0.5, observed=y)
        # Without hyperparameters the fit is EP's, which is exact here.
        fit = pac.fit("nested", **QUIET)
        found = pac.log_evidence(random_seed=1)
        K = gp.cov_func(X).eval()
    exact = multivariate_normal(np.zeros(12), K + 0.25 * np.eye(12)).logpdf(y)
    assert isinstance(fit, pac.Approximation)
    assert fit.log_evidence == pytest.approx(exact, abs=1e-6)
    assert found.value == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize("count", [6, 14])
def test_many_hyperparameters(count, monkeypatch):
    """Groups of normal data, each with a noise level of its own, known by quadrature."""
    # In place of 2048: errors are compared with those of so many weighted points.
    monkeypatch.setattr("pymc_augconj.engines.nested.density._LOG_POINTS", 7)
    rng = np.random.default_rng(3)
    data = [rng.normal(1.0, 0.5 + 0.1 * (i % 6), 15) for i in range(count)]
    s = np.geomspace(0.1, 5.0, 2000)
    means = []
    with pm.Model():
        b = pm.Normal("b", 0, 3, shape=count)
        for i, y in enumerate(data):
            pm.Normal(f"y{i}", b[i], pm.HalfNormal(f"s{i}", 2), observed=y)
            total, square = 9.0 * 15 + s**2, np.sum((y - y.mean()) ** 2)
            log_density = -0.5 * (14 * np.log(s**2) + square / s**2 + np.log(total))
            log_density -= 0.5 * 15 * y.mean() ** 2 / total + s**2 / 8.0
            log_density += np.log(np.sqrt(2 / np.pi) / 2) - 7.5 * np.log(2 * np.pi)
            means.append([np.trapezoid(np.exp(log_density) * s**k, s) for k in range(3)])
        fit = pac.fit("nested", random_seed=1, **QUIET)
    mean_error, std_error, mass_error = 0.05, 0.05, 0.05
    if count == 14:
        ess = 1.0 / np.sum(fit.nested.weights**2)
        assert len(fit.nested.x) == 128
        assert ess > 40
        mean_error, std_error, mass_error = 5.0 / np.sqrt([ess, ess, ess])
    for i, (total, first, second) in enumerate(means):
        mean, std = first / total, np.sqrt(second / total - (first / total) ** 2)
        assert abs(fit.mean[f"s{i}"] - mean) < mean_error * std
        assert float(fit.std[f"s{i}"]) == pytest.approx(std, rel=std_error)
    exact = sum(np.log(total) for total, *_ in means)
    assert fit.log_evidence == pytest.approx(exact, abs=mass_error)
    found = pac.log_evidence(fit, draws=100, random_seed=1)
    assert abs(found.value - exact) < 5 * found.standard_error < 0.8


def test_predictions_are_mixtures():
    rng = np.random.default_rng(4)
    X = np.linspace(0, 5, 30)[:, None]
    with pm.Model() as model:
        y = pm.Data("ones", (rng.random(30) < 0.5).astype(int))
        gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=pm.Gamma("ls", 4, 3)))
        f = gp.prior("f", X=X)
        pm.Bernoulli("y", logit_p=f, observed=y)
        fit = pac.fit("nested", random_seed=1, **QUIET)
    found = pac.predict(fit, gp, X[::10], kind="f", model=model)["predictions"]
    error = 5.0 * fit.std["f"].values[::10] / np.sqrt(1000)
    assert (np.abs(found["f_mean"].values - fit.mean["f"].values[::10]) < error).all()
    with model:
        again = pac.fit("ep", hyper="fixed", start=fit, **QUIET)
        pm.set_data({"ones": np.zeros(30, dtype=int)})
    assert again.theta["ls"] == pytest.approx(fit.theta["ls"])
    # Sites of the old data beside the density of the new ones are an evidence of neither.
    for use in (fit.sample, lambda: again.pareto_k, lambda: pac.log_evidence(again)):
        with pytest.raises(
            pac.AugmentationError, match=r"data \['ones'\]: expected those of the fit"
        ):
            use()


def test_refusals():
    with pm.Model() as model:
        s = [pm.HalfNormal(f"s{i}", 1) for i in range(41)]
        pm.Normal("y", pm.Normal("b"), pm.math.stack(s), observed=np.ones(41))
    with pytest.raises(pac.AugmentationError, match="at most 40 components"):
        pac.fit("nested", model=model, **QUIET)
    with pytest.raises(pac.AugmentationError, match="hyper: expected 'map'"):
        pac.fit("nested", model=model, hyper="ml", **QUIET)
    with pm.Model() as model:
        pm.Normal("y", pm.Flat("b"), 1.0, observed=np.ones(9))
    with pytest.raises(pac.AugmentationError, match=r"\['b'\]: expected proper priors"):
        pac.log_evidence(model)


def test_the_mean_of_a_latent_may_be_a_whitened_process_with_a_mean():
    X = np.linspace(0, 1, 6)[:, None]
    with pm.Model():
        gp = pm.gp.Latent(
            mean_func=pm.gp.mean.Constant(3.0), cov_func=pm.gp.cov.Matern32(1, ls=0.5)
        )
        b = pm.Normal("b", mu=gp.prior("f", X=X), sigma=0.1, shape=6)
        pm.Normal("y", b, 0.1, observed=np.full(6, 3.0))
        fit = pac.fit("ep", hyper="fixed", **QUIET)
    np.testing.assert_allclose(fit.mean["b"], fit.predictor_mean, atol=1e-8)
