"""Scales of single latents: the move that integrates all latents out, in both spellings."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac
from pymc_augconj.engines.gibbs.moves import given_latents as columns
from pymc_augconj.engines.gibbs.state import State
from pymc_augconj.errors import AugmentationError
from pymc_augconj.linalg.dense import EPS
from pymc_augconj.linalg.linear_map import DenseMap

P = 10
CHAINS = 30
X = np.random.default_rng(0).standard_normal((5, P)) + 0.7


def prior_of(Phi, n_flat):
    """Blocks of standard latents, and one of flat ones with the same columns."""
    parts = [(Phi[:, n_flat:], False), (Phi[:, :n_flat], True)]
    blocks = [
        SimpleNamespace(
            block=SimpleNamespace(is_flat=flat, total_size=part.shape[1]),
            whitened_design=lambda A: A.dense(),
        )
        for part, flat in parts
    ]
    return SimpleNamespace(blocks=blocks, maps=[DenseMap(np.asfortranarray(M)) for M, _ in parts])


def log_evidence(Phi, h, lam):
    """Return log ∫ exp(hᵀΦv − ½ vᵀΦᵀΛΦv) N(v; 0, I) dv, by the precision of v."""
    M = np.eye(Phi.shape[1]) + Phi.T @ (lam[:, None] * Phi)
    b = Phi.T @ h
    return 0.5 * b @ np.linalg.solve(M, b) - 0.5 * np.linalg.slogdet(M)[1]


@pytest.mark.parametrize(
    ("n_rows", "n_columns", "n_flat"),
    [(30, 8, 0), (30, 8, 2), (7, 90, 0), (7, 150, 2)],
    ids=["weights", "weights, flat", "observations", "observations, flat"],
)
def test_every_entry_is_drawn_from_its_conditional_distribution(n_rows, n_columns, n_flat):
    rng = np.random.default_rng(1)
    Phi = rng.standard_normal((n_rows, n_flat + n_columns)) / np.sqrt(n_columns)
    h, lam = rng.standard_normal(n_rows), rng.gamma(2.0, size=n_rows)
    if not n_flat:
        lam[0] = h[0] = 0.0
    own, points = rng.permutation(n_columns), 5
    log_prior, noise = rng.standard_normal((2, points, n_columns))
    growth = rng.gamma(1.0, 2.0, (points, n_columns)) - 0.9
    growth[0], log_prior[3, 2], growth[2, 1] = 0.0, -np.inf, np.nan
    found, change = columns.choose(
        prior_of(Phi, n_flat), h, lam, own, log_prior, growth, 3.0 * noise
    )
    # One after the other by brute force; a wide normal is nearly flat.
    wide = np.hstack([Phi[:, n_flat:], 3e4 * Phi[:, :n_flat]])
    start = log_evidence(wide, h, lam)
    with np.errstate(invalid="ignore"):
        factors = np.sqrt(1.0 + growth)
    for j in range(n_columns):
        values = np.full(points, -np.inf)
        for k in np.flatnonzero(np.isfinite(factors[:, j])):
            scaled = wide.copy()
            scaled[:, own[j]] *= factors[k, j]
            values[k] = log_prior[k, j] + log_evidence(scaled, h, lam)
        assert found[j] == np.argmax(values + 3.0 * noise[:, j])
        wide[:, own[j]] *= factors[found[j], j]
    prior = log_prior[found, np.arange(n_columns)] - log_prior[0]
    expected = log_evidence(wide, h, lam) - start + prior.sum()
    # Of the wide normal: 1e-9 of the log evidence and ten digits of its inverse.
    np.testing.assert_allclose(change, expected, atol=1e-5 if n_flat else 1e-9)
    assert np.count_nonzero(found) > n_columns / 3


def test_columns_that_are_known_well_keep_their_digits():
    """By an inverse of C the change was wrong by 0.2: 1 − q is 1e-11."""
    rng = np.random.default_rng(9)
    Phi = rng.standard_normal((7, 90)) / np.sqrt(90)
    Phi[:, :7] *= 1e6
    h, lam = rng.standard_normal(7), rng.gamma(2.0, size=7)
    growth, log_prior, noise = np.zeros((3, 2, 90))
    growth[1, :7], noise[1, :7] = 1e-12 - 1.0, 1e3
    given = h, lam, np.arange(90), log_prior, growth, noise
    found, change = columns.choose(prior_of(Phi, 0), *given)
    assert np.all(found[:7] == 1)
    shrunk = Phi * np.sqrt(1.0 + growth[found, np.arange(90)])
    expected = log_evidence(shrunk, h, lam) - log_evidence(Phi, h, lam)
    # Rounding of columns whose squares are 1e12 times those of the others.
    np.testing.assert_allclose(change, expected, rtol=0.0, atol=1e12 * EPS)


def horseshoe(*, centred, n_rows=5):
    tau, lam = pm.Gamma("tau", 4, 8), pm.Gamma("lam", 3, 3, shape=P)
    a = pm.Normal("a", 0.3, 0.5)
    if centred:
        b = pm.Normal("b", 0, tau * lam, shape=P)
    else:
        b = pm.Normal("z", 0, 1, shape=P) * tau * lam
    return a + pm.math.dot(np.resize(X, (n_rows, P)), b)


def logistic():
    """Fewer rows than latents; ω."""
    eta = horseshoe(centred=False)
    pm.Bernoulli("y", logit_p=eta, observed=pm.Data("y data", np.zeros(5, dtype="int64")))


def normal():
    """More rows than latents; a learned noise level."""
    eta = horseshoe(centred=True, n_rows=15)
    pm.Normal("y", eta, pm.Gamma("s", 4, 4), observed=pm.Data("y data", np.zeros(15)))


@pytest.mark.parametrize("build", [logistic, normal])
def test_the_step_keeps_the_joint_distribution(joint_distribution, build):
    joint = joint_distribution(build, seed=3)
    assert [h.name for h in joint.step.plan.by_column] == ["lam"]
    assert [h.name for h in joint.step.plan.joint] == ["tau"]
    assert [r.h for r in joint.step.plan.ridges.values()] == [("tau_log__", 0)]
    z = joint.z_scores(CHAINS)
    assert not {label: value for label, value in z.items() if abs(value) > 5.0}


@pytest.mark.parametrize("wrong", ["choose", "update_given_coefficients"])
def test_a_wrong_move_is_seen(joint_distribution, monkeypatch, wrong):
    joint = joint_distribution(normal, seed=3)
    if wrong == "choose":
        right = columns.choose
        monkeypatch.setattr(columns, "_check", lambda *_: None)
        monkeypatch.setattr(columns, "choose", lambda *given: right(*given[:-1], 4.0 * given[-1]))
    else:
        right = columns.scales_of
        monkeypatch.setattr(columns, "scales_of", lambda *given: 0.2 * right(*given))
        monkeypatch.setattr(columns, "update_columns", lambda *_: None)
    z = joint.z_scores(CHAINS)
    assert max(map(abs, z.values())) > 5.0


def test_a_scale_against_a_vector_has_the_density_of_the_model():
    """Also where their products seemed to stay the same and do not: data have changed."""
    with pm.Model() as model:
        bound, lam = pm.Data("bound", 1e3), pm.Gamma("lam", 3, 3, shape=P)
        b = pm.math.minimum(pm.Gamma("tau", 4, 8), bound) * lam * pm.Normal("z", 0, 1, shape=P)
        pm.Normal("y", pm.math.dot(X, b), 0.5, observed=np.arange(5.0))
    step, rng = pac.AugmentedGibbs(model=model), np.random.default_rng(0)
    ((name, ridge),), found = step.plan.ridges.items(), []
    assert ridge.sign < 0
    start = {k: v + 0.3 * rng.standard_normal(v.shape) for k, v in model.initial_point().items()}
    logp = model.compile_logp()

    def update(target, x, rng):
        found.append(target(np.array([0.7])) - target(x))
        return np.array([0.7])

    for value in (1e3, 0.3):
        bound.set_value(value)
        chain = step.make_sampler(start).chain
        state = State(dict(start), {name: update})
        columns.update_along_ridges(rng, chain, state)
        end = ridge.moved(start, 0.7)
        for key, expected in end.items():
            np.testing.assert_allclose(state.point[key], expected)
        np.testing.assert_allclose(found[-1], logp(end) - logp(start), rtol=1e-9)
        # That of the priors alone is right for the first of the two.
        of_priors = float(chain.model.log_prior(end) - chain.model.log_prior(start))
        assert np.isclose(of_priors, found[-1]) == (value == 1e3)


def model_of(centred=True, **changes):
    y = (np.arange(5) < 2).astype(int)
    with pm.Model() as model:
        eta = horseshoe(centred=centred)
        for change in changes.values():
            eta = change(model, eta)
        pm.Bernoulli("y", logit_p=eta, observed=y)
    return model


def test_both_spellings_have_the_same_draws():
    found = [
        pac.sample(
            15, tune=10, model=model_of(centred), chains=1, random_seed=2, progressbar=False,
            quiet=True, compute_convergence_checks=False,
        ).posterior
        for centred in (True, False)
    ]  # fmt: skip
    for name in ("tau", "lam"):
        np.testing.assert_allclose(found[0][name], found[1][name], rtol=1e-6)
    b = found[1]["z"] * found[1]["lam"].values * found[1]["tau"]
    np.testing.assert_allclose(found[0]["b"], b, rtol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        lambda model, eta: eta + model["lam"][0],
        lambda model, eta: eta + pm.math.dot(X, pm.Normal("c", 0, model["lam"], shape=P)),
        lambda model, eta: eta + pm.math.dot(X, pm.Normal("c", model["lam"], 1, shape=P)),
    ],
    ids=["predictor", "another scale", "mean"],
)
def test_a_vector_that_does_more_is_none(change):
    assert [h.name for h in pac.AugmentedGibbs(model=model_of()).plan.by_column] == ["lam"]
    assert not pac.AugmentedGibbs(model=model_of(change=change)).plan.by_column


def test_a_simplex_is_none():
    with pm.Model() as model:
        b = pm.Normal("b", 0, pm.Dirichlet("phi", np.ones(P + 1))[1:], shape=P)
        pm.Bernoulli("y", logit_p=pm.math.dot(X, b), observed=np.ones(5, dtype=int))
    assert all(h.columns is None for h in pac.recognize(model).model.hyperparameters)


def test_an_evidence_without_digits_ends_the_chain(monkeypatch):
    monkeypatch.setattr(columns, "_WRONG", -1.0)
    step = pac.AugmentedGibbs(model=model_of())
    step.setup_chain(np.random.default_rng(0), 10, 10)
    point = step.recognition.start
    for _ in range(2):
        point, _ = step.step(point)
    with pytest.raises(AugmentationError, match=r"'lam'.*another factorisation"):
        step.step(point)


def test_thousands_of_columns_are_scaled():
    # The sums of some of them cancel with any one vector of weights.
    X = np.random.default_rng(3).standard_normal((4, 3000))
    with pm.Model() as model:
        b = pm.Normal("z", 0, 1, shape=3000) * pm.HalfNormal("lam", shape=3000)
        pm.Bernoulli("y", logit_p=pm.math.dot(X, b), observed=[0, 1, 1, 0])
    found = pac.recognize(model)
    assert found.kinds == ("design matrix, columns scaled by hyperparameters",)
    assert found.model.hyperparameters[0].columns is not None
