"""``pac.fit`` by EP and QP: evidence, hyperparameters by its gradient, every form of model."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac
from benchmarks.ep_on_arrays import run_ep
from pymc_augconj.engines.ep import fit as ep_fit
from pymc_augconj.likelihoods.bernoulli_probit import BernoulliProbit
from pymc_augconj.likelihoods.contract import LikelihoodDensity

QUIET = {"progressbar": False}


def gp_with_outliers() -> pm.Model:
    """A GP and an intercept under Student-t noise; θ enters kernel, predictor and likelihood."""
    rng = np.random.default_rng(3)
    X = np.linspace(-2.0, 2.0, 15)[:, None]
    y = 0.5 + np.sin(2.0 * X[:, 0]) + 0.1 * rng.standard_normal(15)
    y[[3, 10]] += [3.0, -4.0]
    with pm.Model() as model:
        ls, eta = pm.InverseGamma("ls", 5, 5), pm.HalfNormal("eta", 2)
        level = pm.Exponential("level", 1)
        nu, sigma = pm.Gamma("nu", 4, 1), pm.HalfNormal("sigma", 1)
        a = pm.Normal("a", level, 1)
        f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.Matern52(1, ls=ls)).prior("f", X=X)
        pm.StudentT("y", nu=nu, mu=a + f, sigma=sigma, observed=y)
    return model


def grouped() -> pm.Model:
    """Group effects that several observations share, in two observed variables."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 6, 60)
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 2)
        effect = pm.Normal("effect", 0, tau, shape=6)
        pm.Bernoulli("y", logit_p=effect[group], observed=rng.integers(0, 2, 60))
        pm.Laplace("z", mu=effect, b=pm.HalfNormal("b", 1), observed=rng.standard_normal(6))
    return model


def regression() -> pm.Model:
    """Few weights and many observations, so that weight space is the cheaper one."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((80, 3))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, pm.HalfNormal("scale", 1), shape=3)
        probability = pm.math.invprobit(X @ beta)
        pm.Bernoulli("y", p=probability, observed=X[:, 0] + rng.standard_normal(80) > 0)
    return model


@pytest.mark.parametrize("power", [1.0, 0.5])
@pytest.mark.parametrize("build", [gp_with_outliers, grouped, regression])
def test_gradient_against_differences(build, power):
    recognition = pac.recognize(build())
    points = [recognition.start, *recognition.probes]
    family = ep_fit.EPFamily(recognition.model, points, power)

    def climb(point):
        bound = family.at(point)
        return bound, ep_fit._climb(bound, max_iter=400, tol=1e-10)

    point = {name: np.asarray(value, dtype=float) for name, value in recognition.start.items()}
    bound, end = climb(point)
    assert end.converged
    gradient = ep_fit._gradient(bound, end.evaluation)
    for hyperparameter in recognition.model.hyperparameters:
        name, step, values = hyperparameter.value_name, 5e-3, []
        for steps in (-2, -1, 1, 2):
            moved = {**point, name: point[name] + steps * step}
            values.append(climb(moved)[1].evaluation.bound)
        difference = (values[0] - 8.0 * values[1] + 8.0 * values[2] - values[3]) / (12.0 * step)
        # Fourth order: 5e-3⁴ = 6e-10 of a fifth derivative.
        assert gradient[name].sum() == pytest.approx(difference, rel=1e-5, abs=1e-5), name


def test_toy_by_the_public_functions():
    X = np.array([[-1.0, -1.8], [1.2, 2.9], [3.3, -3.9], [1.8, 0.1], [-3.7, 1.8]])
    y = np.array([0.0, 1.0, 1.0, 1.0, 0.0])
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 5, 10)
        f = pm.gp.Latent(cov_func=2.25 * pm.gp.cov.ExpQuad(2, ls=ls)).prior("f", X=X, jitter=0.0)
        pm.Bernoulli("y", p=pm.math.invprobit(f), observed=y)
    found = pac.fit("ep", model=model, hyper="fixed", start={"ls": 2.0}, tol=1e-8, **QUIET)
    C = 2.25 * np.exp(-((X[:, None] - X) ** 2).sum(axis=-1) / 8.0)
    state, info = run_ep(C, np.zeros(5), LikelihoodDensity(BernoulliProbit(), y, {}))
    assert found.converged
    assert found.log_evidence == pytest.approx(info.evidence, abs=1e-8)
    np.testing.assert_allclose(found.lam, state.lam, atol=1e-7)
    assert "negative sites" in found.message


# The amplitude of these data is zero at the optimum.
@pytest.mark.filterwarnings("ignore:.*as good as zero:RuntimeWarning")
@pytest.mark.parametrize("build", [gp_with_outliers, grouped, regression])
def test_hyperparameters_are_learned_and_qp_follows(build):
    model = build()
    vgp = pac.fit("vgp", model=model, hyper="ml", **QUIET)
    start = vgp.theta
    ep = pac.fit("ep", model=model, hyper="ml", start=start, **QUIET)
    qp = pac.fit("qp", model=model, hyper="ml", start=start, **QUIET)
    at_start = pac.fit("ep", model=model, hyper="fixed", start=start, **QUIET)
    assert ep.converged
    assert qp.converged
    assert ep.log_evidence >= at_start.log_evidence - 1e-9
    # The bound lies below log p(y), which EP's evidence approximates closely.
    assert vgp.log_evidence < at_start.log_evidence + 0.05
    for name, value in ep.theta.items():
        np.testing.assert_allclose(qp.theta[name], value, rtol=1e-12)
    assert qp.log_evidence == ep.log_evidence
    name = next(iter(ep.std))
    assert (qp.std[name] <= ep.std[name] * (1.0 + 1e-6)).all()


@pytest.mark.parametrize("build", [gp_with_outliers, grouped, regression])
def test_schedules_agree_in_every_form_of_model(build):
    """Predictors that share latents, and weight space: one site at a time sees the same prior."""
    model = build()
    fixed = {"model": model, "hyper": "fixed", "tol": 1e-8, **QUIET}
    parallel = pac.fit("ep", **fixed)
    sequential = pac.fit("ep", schedule="sequential", **fixed)
    assert parallel.converged
    assert sequential.converged
    assert sequential.log_evidence == pytest.approx(parallel.log_evidence, abs=1e-7)
    np.testing.assert_allclose(sequential.lam, parallel.lam, atol=1e-6)


@pytest.mark.parametrize("method", ["ep", "qp"])
def test_sites_that_are_at_their_targets_from_the_start(method):
    x = np.linspace(-1.0, 1.0, 12)
    with pm.Model():
        b = pm.Normal("b", 0, 1e-8)
        pm.Bernoulli("y", logit_p=b * x, observed=(x > 0).astype(int))
        fit = pac.fit(method, progressbar=False)
    assert fit.converged
    assert len(fit.history) == 0
    assert {"theta", "iteration", "bound"} <= set(fit.history.columns)
    assert fit.log_evidence == pytest.approx(-12 * np.log(2.0), abs=1e-6)
    assert float(fit.std["b"]) == pytest.approx(1e-8)


@pytest.mark.parametrize("method", ["ep", "qp"])
def test_a_predictor_without_variance_is_named(method):
    """A reference group without an intercept: VGP takes it, a cavity has no variance."""
    X = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    with pm.Model():
        b = pm.Normal("b", 0, 1, shape=2)
        pm.Exponential("other", pm.math.exp(X[:2] @ b), observed=np.ones(2))
        time = pm.Exponential.dist(pm.math.exp(X @ b))
        pm.Censored("time", time, lower=None, upper=[5.0, 2.0, 5.0, 5.0], observed=[1, 2, 1, 3.0])
        with pytest.raises(pac.AugmentationError, match=r"'time'.* position 2.*method='vgp'"):
            pac.fit(method, progressbar=False)
        assert pac.fit("vgp", progressbar=False).converged


def test_an_effect_that_only_its_own_prior_determines_is_named():
    """Its cavity is flat; while data determine it too, it has one."""
    for group, has_cavity in (([0, 1], True), ([0, 0], False)):
        with pm.Model():
            a = pm.StudentT("a", nu=4, mu=0, sigma=1, shape=2)
            pm.Normal("y", a[group], 1.0, observed=np.zeros(2))
            if has_cavity:
                assert pac.fit("ep", progressbar=False).converged
                continue
            with pytest.raises(pac.AugmentationError, match=r"prior of 'a'.* position 1 \(a group"):
                pac.fit("ep", progressbar=False)


@pytest.mark.parametrize(("lower", "upper"), [(0.0, None), (-1.0, 2.0)])
def test_the_scale_of_a_prior_with_bounds_maximises(lower, upper):
    y = np.linspace(-0.5, 1.8, 8)
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1.0)
        u = pm.TruncatedNormal("u", mu=0.0, sigma=tau, lower=lower, upper=upper, shape=8)
        pm.Normal("y", u, 0.5, observed=y)
    found = pac.fit("ep", model=model, progressbar=False)
    assert found.converged

    def log_density(at):
        fixed = {"hyper": "fixed", "start": {"tau": at}, "progressbar": False}
        return pac.fit("ep", model=model, **fixed).log_evidence - 0.5 * at**2

    tau = float(found.theta["tau"])
    assert log_density(tau) > max(log_density(0.95 * tau), log_density(1.05 * tau))
