"""No candidate is accepted on a log evidence that rounding has left no digits."""

from __future__ import annotations

import logging
import warnings
from types import SimpleNamespace

import mpmath
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_augconj as pac
from pymc_augconj.api import chains
from pymc_augconj.api.step_choices import Refusals
from pymc_augconj.engines.gibbs.moves.latents import draw_auxiliary
from pymc_augconj.engines.gibbs.state import GibbsInfo, State
from pymc_augconj.errors import UncertainEvidenceError

RNG = np.random.default_rng(3)
N = 30
Y = RNG.normal(size=N)
NAMES = {"rho": "rho", "size_log__": "size"}


def autoregression():
    with pm.Model() as model:
        rho = pm.Normal("rho", 0.5, 0.5)
        w = pm.AR("w", rho=pt.stack([rho]), init_dist=pm.Normal.dist(0, 1), steps=N - 1)
        pm.Normal("y", w, 1.0, observed=Y)
    return model


def intercept_beside_a_process():
    with pm.Model() as model:
        b, ls = pm.Normal("b", 0, 1e9), pm.InverseGamma("ls", 5, 5)
        gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=ls))
        pm.Normal("y", b + gp.prior("f", X=np.arange(N)[:, None] / 5.0), 1.0, observed=Y)
    return model


def log_evidence_of(model, point):
    """Return the log density of y given θ, the latents integrated out, and its estimated error."""
    step = pac.AugmentedGibbs(model=model)
    sampler = step.make_sampler({**step.recognition.start, **point})
    (part,) = sampler.parts
    at = {**step.recognition.start, **point}
    draw_auxiliary(RNG, sampler.chain, State(at, {}), part)
    given = part.given_sites(at)
    log_base = -0.5 * float(Y @ Y) - 0.5 * N * np.log(2.0 * np.pi)
    return given.posterior.log_normalizer + given.constant + log_base, given.posterior.error


def exact(K):
    """Return log N(Y | 0, K + I) for K with many digits."""
    C = K + mpmath.eye(N)
    L = mpmath.cholesky(C)
    y = mpmath.matrix(Y.tolist())
    z = mpmath.lu_solve(L, y)
    log_det = sum(mpmath.log(L[i, i]) for i in range(N))
    return -sum(v**2 for v in z) / 2 - log_det - N * mpmath.log(2 * mpmath.pi) / 2


@pytest.mark.parametrize("rho", [0.7, 1.6, 3.0, 24.0])
def test_explosive_autoregression(rho):
    """Its covariance has entries of up to 10⁸⁰, its precision is tame, and log|Q| is 0."""
    with mpmath.workdps(200):
        L = mpmath.matrix(N, N)
        for i in range(N):
            for j in range(i + 1):
                L[i, j] = mpmath.mpf(rho) ** (i - j)
        expected = float(exact(L * L.T))
    value, error = log_evidence_of(autoregression(), {"rho": np.array(rho)})
    assert value == pytest.approx(expected, abs=1e-8 * max(1.0, abs(expected)))
    assert error < 1e-2


def test_wide_intercept_beside_a_process():
    model = intercept_beside_a_process()
    with mpmath.workdps(60):
        r = np.abs(np.subtract.outer(np.arange(N), np.arange(N))) / 5.0 * np.sqrt(5.0)
        K = mpmath.matrix(((1.0 + r + r**2 / 3.0) * np.exp(-r)).tolist())
        for i in range(N):
            for j in range(N):
                K[i, j] += mpmath.mpf(10) ** 18 + (mpmath.mpf("1e-6") if i == j else 0)
        expected = float(exact(K))
    value, error = log_evidence_of(model, {"ls_log__": np.array(0.0)})
    assert value == pytest.approx(expected, abs=1e-7)
    assert error < 1e-2


def info(**counts):
    return GibbsInfo(updates=1, **counts)


def test_refused_values_are_counted_and_named():
    refusals = Refusals(NAMES, [SimpleNamespace(name="w")])
    for k in range(200):
        refused = {"rho": (4.0 + k, 24.0)} if k in (3, 7) else {}
        warning = refusals.count(info(refusals=int(bool(refused)), refused=refused), last=k == 199)
        assert (warning is None) == (k < 199)
    assert "in 2 of 200 updates at 'rho' from 7 to 24" in warning.message
    assert "Draws are right if the posterior hardly has such values" in warning.message


def test_many_refusals_end_a_chain():
    refusals = Refusals(NAMES, [SimpleNamespace(name="w")])
    many = info(refusals=1, refused={"size_log__": (9.0, 11.0)})
    for _ in range(99):
        refusals.count(many, last=False)
    with pytest.raises(
        UncertainEvidenceError, match=r"'w'.*'size_log__', PyMC's transformed 'size', from 9 to 11"
    ):
        refusals.count(many, last=False)


def test_a_chain_does_not_begin_where_nothing_can_be_computed():
    refusals = Refusals(NAMES, [SimpleNamespace(name="w")])
    refusals.check_start(info())
    with pytest.raises(UncertainEvidenceError, match=r"'w'.*at the start of the chain.*'rho'"):
        refusals.check_start(info(stays=1, refusals=1, refused={"rho": (30.0, 30.0)}))


def test_an_update_stays_where_the_present_state_has_no_digits(monkeypatch):
    """The update is left out, and counted; elsewhere values without digits are refused."""
    model = autoregression()
    step = pac.AugmentedGibbs(model=model)
    step.setup_chain(np.random.default_rng(0), 5, 5)
    point, _ = step.step(model.initial_point())
    (part,) = step._sampler.parts
    plain = part.solver.posterior

    def uncertain(prior, sites, **how):
        posterior = plain(prior, sites, **how)
        if where(prior):
            raise UncertainEvidenceError("no digits")
        return posterior

    def is_explosive(prior):
        return bool(prior.blocks[0].array.max() > 1.0 + 0.9**2)

    monkeypatch.setattr(part.solver, "posterior", uncertain)
    where = is_explosive
    point = {**point, "rho": np.array(0.5)}
    for _ in range(4):
        point, (stats,) = step.step(point)
        assert abs(point["rho"]) <= 0.9
    where = lambda prior: True  # noqa: E731
    before = {name: np.array(value) for name, value in point.items()}
    after, (stats,) = step.step(point)
    assert stats["refusals"] == 1
    assert all(np.array_equal(after[name], before[name]) for name in before)


# -- models and draws that are better left to other samplers ---------------------------------------


@pytest.mark.parametrize(("few", "warned"), [(50, False), (10_000, True)])
def test_variables_of_few_effective_draws_are_named(caplog, monkeypatch, few, warned):
    monkeypatch.setattr(chains, "_FEW", few)
    with pm.Model() as model:
        b, s = pm.Normal("b", 0, 1, shape=3), pm.HalfNormal("s", 1)
        pm.Laplace("y", b, s, observed=[0.3, -1.0, 2.0])
    with caplog.at_level(logging.WARNING):
        pac.sample(
            100, model=model, tune=10, chains=2, cores=1, random_seed=1, progressbar=False,
            compute_convergence_checks=warned,
        )  # fmt: skip
    assert ("below 10000 for 's' (" in caplog.text) == warned
    assert ("'b' (" in caplog.text) == warned
    assert ('try sites="held"' in caplog.text) == warned


@pytest.mark.parametrize(("size", "told"), [(2, False), (70, True)])
def test_it_is_told_when_most_is_left_to_pymc(size, told):
    """Of a vector whose entries depend on each other."""
    with pm.Model() as model:
        b, c = pm.Normal("b", 0, 1), pm.Dirichlet("c", np.ones(size))
        pm.Normal("y", b, pm.math.sum(c**2), observed=[0.3, -1.0, 2.0])
    report = str(pac.recognize(model))
    assert ("69 of 70 unknown numbers are left to PyMC's own steps" in report) == told


@pytest.mark.parametrize("size", [30, 100])
def test_it_is_told_when_many_columns_have_scales(size):
    with pm.Model() as model:
        lam, tau = pm.HalfCauchy("lam", 1.0, shape=size), pm.HalfCauchy("tau", 1.0)
        b = pm.Normal("b", 0.0, tau * lam, shape=size)
        pm.Normal("y", RNG.normal(size=(40, size)) @ b, 1.0, observed=RNG.normal(size=40))
    assert ("lam: one update for every column" in str(pac.recognize(model))) == (size == 100)


@pytest.mark.parametrize(("size", "correlated"), [(3, False), (2, True), (3, True)])
def test_it_is_told_when_many_factors_are_correlated(size, correlated):
    with pm.Model() as model:
        cov = 0.5 * np.eye(size) + 0.5
        f = (
            pm.MvNormal("f", np.zeros(size), cov, shape=(9, size))
            if correlated
            else pm.Normal("f", shape=(9, size))
        )
        mu = f[:, [0, 0, 1, 1, -1, -1]] * pm.Normal("a", 1, 0.5, shape=6)
        pm.Normal("y", mu, pm.HalfNormal("s", 1), observed=RNG.normal(size=(9, 6)))
    report = str(pac.recognize(model))
    assert "in turn with the latents that it multiplies" in " ".join(report.split())
    told = "a: drawn in turn with many correlated latents" in report
    assert told == (correlated and size == 3)


@pytest.mark.parametrize("n", [9, 250])
def test_it_is_told_when_an_observation_has_many_predictors(n):
    with pm.Model() as model:
        a = pm.math.exp(RNG.normal(size=(n, 1)) * pm.Normal("b", shape=4))
        pm.Dirichlet("y", a, observed=RNG.dirichlet(np.ones(4), size=n))
    assert ("y: held sites of 4 predictors" in str(pac.recognize(model))) == (n == 250)


@pytest.mark.parametrize("size", [2, 5])
def test_it_is_told_when_slices_sample_most(size):
    """Of a factor analysis whose factors are integrated out."""
    with pm.Model() as model:
        W, psi = pm.Normal("W", 0, 1, shape=(size, 2)), pm.HalfNormal("psi", 1, shape=size)
        cov, y = W @ W.T + pt.diag(psi), RNG.normal(size=(9, size))
        pm.MvNormal("y", np.zeros(size), cov, observed=y)
    report = str(pac.recognize(model))
    assert "No latents" in report
    assert ("15 numbers are sampled by slices, beside 0 latents: NUTS" in report) == (size == 5)


@pytest.mark.parametrize("groups", [2, 8])
def test_draws_without_a_scale_are_told(groups, caplog):
    """Two groups do not tell a spread with a flat prior; eight do."""
    rng, group = np.random.default_rng(0), np.repeat(np.arange(groups), 20)
    with pm.Model():
        tau = pm.HalfFlat("tau")
        a = pm.Normal("a", pm.Flat("mu"), tau, shape=groups)
        pm.Normal("y", a[group], pm.HalfNormal("sigma", 1.0), observed=rng.normal(size=group.size))
        pac.sample(400, chains=2, random_seed=1, progressbar=False)
        with warnings.catch_warnings(record=True, action="always") as warned:
            pac.fit("nested", progressbar=False)
    assert any("'tau'" in str(each.message) for each in warned) == (groups == 2)
    told = [record.message for record in caplog.records if "improper" in record.message]
    assert any(message.startswith("'tau'") for message in told) == (groups == 2)
