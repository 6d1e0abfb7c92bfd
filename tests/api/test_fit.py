"""``pac.fit``: what a user asks for and gets."""

from __future__ import annotations

import warnings

import numpy as np
import pymc as pm
import pytest
from scipy.optimize import minimize
from scipy.stats import multivariate_normal

import pymc_augconj as pac
from pymc_augconj.engines import hyperparameters

METHODS = ("cavi", "vgp")
QUIET = {"progressbar": False}


@pytest.fixture
def data():
    rng = np.random.default_rng(1)
    X = np.sort(rng.uniform(-3.0, 3.0, (40, 1)), axis=0)
    return X, np.sin(1.5 * X[:, 0]) + 0.3 * rng.standard_normal(40)


@pytest.fixture
def regression(data):
    X, y = data
    with pm.Model() as model:
        ls, sigma = pm.InverseGamma("ls", 5, 5), pm.HalfNormal("sigma", 1)
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
        pm.Normal("y", mu=gp.prior("f", X=X), sigma=sigma, observed=y)
    return model


@pytest.fixture
def classification(data):
    return classify(data)


def classify(data, amp=None):
    """Write the model, with the amplitude given or learned."""
    X, y = data
    with pm.Model(coords={"place": np.arange(40) * 10}) as model:
        amp, b0 = pm.HalfNormal("amp", 2) if amp is None else amp, pm.Normal("b0", 0, 1)
        gp = pm.gp.Latent(cov_func=amp**2 * pm.gp.cov.ExpQuad(1, ls=0.8))
        f = gp.prior("f", X=X, dims="place")
        pm.Deterministic("p", pm.math.invlogit(b0 + f), dims="place")
        pm.Deterministic("twice", 2 * b0)
        pm.Bernoulli("y", logit_p=b0 + f, observed=y > 0, dims="place")
    model.gp = gp
    return model


def marginal(data, log_theta) -> float:
    X, y = data
    ls, sigma = np.exp(log_theta)
    K = np.exp(-0.5 * ((X - X.T) / ls) ** 2) + (1e-6 + sigma**2) * np.eye(40)
    return multivariate_normal(np.zeros(40), K).logpdf(y)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("hyper", ["ml", "map"])
def test_normal_likelihood_learns_what_marginal_likelihood_does(data, regression, method, hyper):
    def prior(log_theta):
        if hyper == "ml":
            return 0.0
        ls, sigma = np.exp(log_theta)
        # InverseGamma(5, 5) and HalfNormal(1), on their own scale: no Jacobian.
        return -6.0 * np.log(ls) - 5.0 / ls - 0.5 * sigma**2

    best = minimize(lambda t: -marginal(data, t) - prior(t), [0.0, -1.0], tol=1e-9)
    vi = pac.fit(method, model=regression, hyper=hyper, **QUIET)
    assert vi.converged
    found = np.log([vi.theta["ls"], vi.theta["sigma"]])
    np.testing.assert_allclose(found, best.x, atol=1e-4)
    assert vi.log_evidence == pytest.approx(marginal(data, best.x), abs=1e-5)
    with regression:
        logp = pm.logp(pm.InverseGamma.dist(5, 5), vi.theta["ls"]).eval()
        logp += pm.logp(pm.HalfNormal.dist(1), vi.theta["sigma"]).eval()
    expected = vi.log_evidence + (float(logp) if hyper == "map" else 0.0)
    assert vi.objective == pytest.approx(expected, abs=1e-6)


def test_climbs_that_end_early_find_the_same_hyperparameters(classification, monkeypatch):
    found = {}
    for of_slope in (hyperparameters._OF_SLOPE, 0.0):
        monkeypatch.setattr(hyperparameters, "_OF_SLOPE", of_slope)
        fit = found[of_slope] = pac.fit("vgp", model=classification, hyper="ml", **QUIET)
        assert fit.converged
        assert fit.history["residual"].iloc[-1] <= 1e-6
    early, full = found.values()
    assert len(early.history) < 0.8 * len(full.history)
    assert abs(early.log_evidence - full.log_evidence) < 1e-7
    assert abs(early.theta["amp"] / full.theta["amp"] - 1.0) < 1e-3


def test_fixed_hyperparameters_stay(regression, data):
    vi = pac.fit("cavi", model=regression, hyper="fixed", start={"ls": 0.9, "sigma": 0.4}, **QUIET)
    assert vi.theta["ls"] == pytest.approx(0.9)
    assert vi.theta["sigma"] == pytest.approx(0.4)
    assert vi.log_evidence == pytest.approx(marginal(data, np.log([0.9, 0.4])), abs=1e-8)
    default = pac.fit("cavi", model=regression, hyper="fixed", **QUIET)
    start = regression.initial_point()
    assert default.theta["ls"] == pytest.approx(np.exp(start["ls_log__"]))


def test_a_start_takes_the_shape_of_dims(data):
    X, y = data
    with pm.Model(coords={"feature": ["a", "b"]}):
        ls = pm.InverseGamma("ls", 5, 5, dims="feature")
        X = np.column_stack([X, X**2])
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=ls)).prior("f", X=X)
        pm.Normal("y", f, 0.3, observed=y)
        fits = [pac.fit(hyper="fixed", start={"ls": ls}, **QUIET) for ls in ([0.9, 2.0], 0.9)]
    np.testing.assert_allclose(fits[0].theta["ls"], [0.9, 2.0])
    np.testing.assert_allclose(fits[1].theta["ls"], [0.9, 0.9])


@pytest.mark.parametrize("method", METHODS)
def test_history_splits_the_bound(classification, method):
    vi = pac.fit(method, model=classification, **QUIET)
    history = vi.history
    np.testing.assert_allclose(history.bound, history.expected - history.divergence, atol=1e-9)
    # Within one value of the hyperparameters the bound never decreases.
    assert history.theta.nunique() > 3
    for _, climb in history.groupby("theta"):
        assert list(climb.iteration) == list(range(len(climb)))
        assert np.diff(climb.bound).min(initial=0.0) > -1e-9
    ends = history.groupby("theta").bound.last()
    assert np.abs(ends - vi.log_evidence).min() < 1e-12
    assert set(vi.timings) == {"recognition", "optimisation", "total"}


def test_a_better_prior_density_is_not_found_nearby(classification):
    vi = pac.fit("vgp", model=classification, **QUIET)
    for factor in (0.99, 1.01):
        start = {"amp": factor * vi.theta["amp"]}
        near = pac.fit("vgp", model=classification, hyper="fixed", start=start, **QUIET)
        log_prior = -0.5 * (factor * float(vi.theta["amp"]) / 2.0) ** 2
        here = -0.5 * (float(vi.theta["amp"]) / 2.0) ** 2
        assert near.log_evidence + log_prior < vi.log_evidence + here + 1e-9


def test_callback_sees_every_iteration(classification):
    seen = []
    vi = pac.fit("cavi", model=classification, callback=seen.append, **QUIET)
    assert [state.count for state in seen] == list(range(1, len(seen) + 1))
    assert seen[-1].mean.shape == seen[-1].var.shape == (40,)
    assert len(seen) <= len(vi.history)


def test_not_converging_warns_once_and_is_on_the_result(classification):
    with pytest.warns(RuntimeWarning, match="increase max_iter") as caught:
        vi = pac.fit("cavi", model=classification, hyper="fixed", max_iter=1, tol=1e-12, **QUIET)
    assert len(caught) == 1
    assert not vi.converged


def test_progress_bar_shows_the_bound(classification, capsys):
    with classification:
        pac.fit("cavi", hyper="fixed")
        assert " bound -" in capsys.readouterr().out
        pac.fit("ep", hyper="fixed")
        shown = capsys.readouterr().out
        assert " evidence -" in shown
        assert "bound" not in shown
        with pytest.warns(RuntimeWarning, match="max_iter"):
            pac.fit("svi", gp=classification.gp, hyper="fixed", inducing=5, max_iter=7)
        assert "iteration 7 of 7" in capsys.readouterr().out


def test_a_refused_model_leaves_no_progress_bar(capsys):
    with pm.Model():
        pm.Poisson("y", pm.math.exp(pm.Normal("b")), observed=[1, 2])
        with pytest.raises(pac.UnknownLikelihoodError, match=r'"svi" approximates it'):
            pac.fit("cavi")
    assert "nan" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"method": "magic"}, "method: expected one of"),
        ({"hyper": "free"}, "hyper: expected one of"),
        ({"start": {"lengthscale": 1.0}}, "start: expected hyperparameters among"),
        ({"start": {"amp": -1.0}, "hyper": "fixed"}, "start: .*'amp' inside its prior's support"),
        ({"start": {"amp": np.nan}}, "start: expected a value of 'amp' inside its prior's support"),
        ({"start": {"amp": [1.0, 2.0]}}, r"start: expected float64 values of shape \(\) for 'amp'"),
        ({"start": {"amp": "long"}}, r"start: expected float64 values of shape \(\) for 'amp'"),
        ({"gp": pm.gp.Latent()}, "gp: expected the pm.gp.Latent"),
    ],
)
def test_bad_arguments_are_refused(classification, arguments, sentence):
    with pytest.raises(pac.AugmentationError, match=sentence):
        pac.fit(model=classification, **{**QUIET, **arguments})


def test_the_process_of_the_model_is_accepted(classification):
    vi = pac.fit("cavi", model=classification, gp=classification.gp, hyper="fixed", **QUIET)
    assert vi.converged


def test_discrete_hyperparameters_need_fixed_ones(data):
    X, y = data
    with pm.Model() as model:
        k = pm.Poisson("k", 3)
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=0.5 + 0.1 * k)).prior("f", X=X)
        pm.Normal("y", mu=f, sigma=0.3, observed=y)
    with pytest.raises(pac.AugmentationError, match="discrete"):
        pac.fit(model=model, **QUIET)
    with pytest.raises(pac.AugmentationError, match=r"start: expected int64 values .*got 2\.5"):
        pac.fit(model=model, hyper="fixed", start={"k": 2.5}, **QUIET)
    assert pac.fit(model=model, hyper="fixed", **QUIET).theta["k"] == 3


@pytest.mark.parametrize("method", METHODS)
def test_agrees_with_gibbs_within_its_bias(data, method):
    with classify(data, amp=1.5):
        vi = pac.fit(method, **QUIET)
        idata = pac.sample(
            1500, chains=2, cores=1, random_seed=1, compute_convergence_checks=False, **QUIET
        )
    f = idata.posterior["f"]
    # Means within a fifth of a standard deviation; CAVI's standard deviations are known to be
    # a few per cent too small, the VGP's hardly.
    difference = np.abs(f.mean(("chain", "draw")) - vi.mean["f"]) / f.std(("chain", "draw"))
    assert difference.max() < 0.25
    ratio = vi.std["f"] / f.std(("chain", "draw"))
    assert ratio.min() > 0.8
    assert ratio.max() < 1.1


@pytest.mark.parametrize("whitened", [True, False])
def test_a_process_with_a_random_mean(data, whitened):
    """f is what its observations see, its mean's share included."""
    X, y = data
    with pm.Model():
        c = pm.Normal("c", 1.0, 2.0)
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(c), cov_func=pm.gp.cov.ExpQuad(1, ls=0.8))
        f = gp.prior("f", X=X, reparameterize=whitened)
        pm.Bernoulli("y", logit_p=f, observed=y > 0)
        vi = pac.fit("cavi", **QUIET)
        draws = vi.sample(4000, random_seed=1).posterior["f"].values[0]
    np.testing.assert_allclose(vi.mean["f"], vi.predictor_mean, atol=1e-8)
    np.testing.assert_allclose(vi.std["f"], vi.predictor_std, atol=1e-8)
    error = vi.predictor_std / np.sqrt(4000)
    assert (np.abs(draws.mean(axis=0) - vi.predictor_mean) < 5 * error).all()


def test_a_start_within_bounds_that_are_another_variable():
    X = np.linspace(0.0, 3.0, 8)[:, None]
    with pm.Model():
        above = pm.HalfNormal("above", 5.0, initval=4.0)
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=pm.Uniform("ls", 0.0, above)))
        pm.Bernoulli("y", logit_p=gp.prior("f", X=X), observed=X[:, 0] > 1.0)
        for start in ({"ls": 1.0}, {"ls": 5.5, "above": 6.0}):
            fit = pac.fit("cavi", hyper="fixed", start=start, progressbar=False)
            expected = {"above": 4.0} | start
            assert fit.theta == pytest.approx(expected)
        with pytest.raises(pac.AugmentationError, match="'ls' inside its prior's support"):
            pac.fit("cavi", start={"ls": 5.5}, progressbar=False)


def test_dims_that_do_not_fit_are_left_out():
    with pm.Model(coords={"place": list("abc")}) as model:
        b = pm.Normal("b", dims="place")
        pm.Deterministic("first", b[:2], dims="place")
        pm.Normal("y", b, 1.0, observed=np.arange(3.0), dims="place")
    fitted = pac.fit("cavi", model=model, progressbar=False)
    with pytest.warns(UserWarning, match=r"'first': expected 3 entries along its dim 'place'"):
        found = fitted.sample(4)
    assert found.posterior["first"].dims == ("chain", "draw", "first_dim_0")
    assert found.posterior["b"].dims == ("chain", "draw", "place")
    assert found["observed_data"]["y"].dims == ("place",)


def test_a_scale_whose_density_has_no_bound_is_no_convergence():
    """Rows without a dose have the coefficient 0 / 0 far out, and no value there either."""
    who, dose = np.repeat(np.arange(4), 3), np.tile([0.0, 3.0, 30.0], 4)
    with pm.Model():
        top = pm.Normal("top", 0.0, 20.0)
        half = pm.Normal("half", pm.Normal("mean", 1.0, 1.0), pm.HalfNormal("sd"), shape=4)
        mean = top * dose / (dose + pm.math.exp(half[who]))
        pm.Normal("y", mean, 1.0, observed=10.0 * dose / (dose + 3.0 + who))
        with pytest.warns(RuntimeWarning, match="nats to gain.*as a scale goes to zero"):
            fit = pac.fit("vgp", progressbar=False)
    assert not fit.converged


@pytest.mark.parametrize("between", [0.0, 1.0])
@pytest.mark.parametrize("whitened", [False, True])
def test_a_scale_that_collapses_is_told(between, whitened):
    """Means of the groups are equal, or not: only then is zero no maximum of the evidence."""
    noise, group = np.tile([-1.0, 0.2, 0.8], 6), np.repeat(np.arange(6), 3)
    with pm.Model():
        sd = pm.HalfNormal("sd", 1.0, shape=1 if whitened else ())
        effects = sd * pm.Normal("z", shape=6) if whitened else pm.Normal("a", 0, sd, shape=6)
        pm.Normal("y", effects[group], 1.0, observed=noise + between * (group - 2.5))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            pac.fit("vgp", progressbar=False)
    assert any("as good as zero" in str(w.message) for w in told) == (between == 0.0)


def test_weights_of_two_components_are_no_scale():
    with pm.Model():
        w, a = pm.Dirichlet("w", [5.0, 2.0]), pm.Normal("a", 0.0, 1.0)
        parts = [pm.Normal.dist(a, 1.0), pm.Normal.dist(a, 8.0)]
        pm.Mixture("y", w, parts, observed=[-1.0, 0.0, 0.5, 1.0, 20.0])
        fit = pac.fit("vgp", progressbar=False)
    assert fit.converged
    assert 0.1 < fit.theta["w"][1] < 0.5
