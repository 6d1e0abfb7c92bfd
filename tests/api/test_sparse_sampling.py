"""Sampling through inducing points, and ``pac.sparsify``, which states the same target in PyMC."""

from __future__ import annotations

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy.special import gammaln
from scipy.stats import invgamma

import pymc_augconj as pac
from pymc_augconj.api import sparsify
from pymc_augconj.api.sparsify import SparseGibbs, sparsified
from pymc_augconj.engines.gibbs.held_sites import HeldSites
from pymc_augconj.engines.gibbs.tilted import Tilted
from pymc_augconj.engines.sparse import weights
from pymc_augconj.linalg.linear_map import CopiesMap, DenseMap

QUIET = {"progressbar": False, "compute_convergence_checks": False, "cores": 1}
N = 15
X = np.linspace(0.0, 4.0, N)[:, None]
RNG = np.random.default_rng(0)
COUNTS = RNG.poisson(np.exp(1.0 + np.sin(2.0 * X[:, 0])))
Z = np.array([[0.5], [2.0], [3.5]])


def make(write, reparameterize=True):
    """Return a model with a process ``f``, a deterministic of it and what ``write`` adds."""
    with pm.Model(coords={"where": np.arange(N)}) as model:
        ls, eta = pm.InverseGamma("ls", 5, 5), pm.HalfNormal("eta", 2)
        cov = eta**2 * pm.gp.cov.ExpQuad(1, ls=ls)
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(0.3), cov_func=cov)
        f = gp.prior("f", X=pm.Data("X", X), reparameterize=reparameterize)
        pm.Deterministic("twice", 2.0 * f, dims="where")
        write(f)
    return model, gp


def poisson(f):
    b = pm.Normal("b", 0, 1)
    pm.Poisson("y", mu=pm.math.exp(b + f), observed=COUNTS, dims="where")


def logit_by_groups(f):
    index = np.array([0, 0, 3, 5, 5, 14, 7])
    x = np.linspace(-1, 2, index.size)
    pm.Bernoulli("y", logit_p=x * f[index], observed=[1, 0, 1, 1, 0, 0, 1])


def student_t(f):
    nu, sigma = pm.Gamma("nu", 2, 0.1), pm.HalfNormal("sigma", 1)
    pm.StudentT("y", nu=nu, mu=f, sigma=sigma, observed=np.log1p(COUNTS))


def potential(f):
    pm.Potential("y", -0.5 * pm.math.sqr(f - 1.0) / 0.3)
    pm.Normal("known", pm.Normal("a", 0, 1), 1, observed=0.4)


def sampler_of(model, gp, inducing, steps=1, seed=3, tune=0):
    """Return points and the last statistics of a chain without PyMC's own loop."""
    found = sparsified(model, gp, inducing, 0)
    return found, *chain_of(found, steps, seed, tune)


def chain_of(found, steps, seed=3, tune=0):
    """Return points and the last statistics of a chain."""
    step = SparseGibbs(model=found.model, sparsified=found)
    step.setup_chain(np.random.default_rng(seed), tune, steps)
    point, points = found.recognition.start, []
    for i in range(tune + steps):
        if i == tune:
            step.stop_tuning()
        point, (stats,) = step.step(point)
        points.append(point)
    return points, stats


@pytest.mark.parametrize(
    ("write", "reparameterize"),
    [(poisson, False), (logit_by_groups, True), (student_t, True), (potential, True)],
)
def test_the_sampler_has_the_log_density_of_the_sparsified_model(write, reparameterize):
    found, points, stats = sampler_of(*make(write, reparameterize), Z, steps=2)
    assert not found.inexact
    theirs = found.model.compile_logp()(points[-1])
    assert stats["model_logp"] == pytest.approx(float(theirs), rel=1e-9)


def test_another_process_and_effects_beside_it_stay_as_they_are():
    with pm.Model(name="m") as model:
        inputs = pm.Data("X", X, dims=("place", "feature"))
        counts = pm.Data("counts", COUNTS, dims="place")
        scale, g = pm.HalfNormal("scale"), pm.Normal("g", 0, 1, dims="place")
        ls = pm.InverseGamma("ls", 5, 5, shape=1)
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
        f = gp.prior("f", X=inputs, dims="place")
        h = pm.gp.Latent(cov_func=pm.gp.cov.Matern32(1, ls=2.0)).prior("h", X=X[:3])
        pm.Deterministic("scaled", h * scale)
        pm.Poisson(
            "y", mu=pm.math.exp(scale * f + 0.1 * g + h[np.arange(N) % 3]), observed=counts,
            dims="place",
        )  # fmt: skip
    found, points, stats = sampler_of(model, gp, Z, steps=2)
    theirs = found.model.compile_logp()(points[-1])
    assert stats["model_logp"] == pytest.approx(float(theirs), rel=1e-9)
    assert "m::scaled" in found.model.named_vars
    assert "m::f" not in found.model.named_vars


def test_several_processes_may_share_an_observation():
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 5, 5)
        trend = pm.gp.Latent(cov_func=4.0 * pm.gp.cov.ExpQuad(1, ls=2.0 * ls))
        detail = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=ls))
        f, g = trend.prior("f", X=X), detail.prior("g", X=X)
        pm.Bernoulli("y", logit_p=f + 0.5 * g, observed=COUNTS > 2)
        pm.Poisson("z", mu=pm.math.exp(g), observed=COUNTS)
    inducing = {"f": Z[:2], "g": Z}
    found, points, stats = sampler_of(model, [trend, detail], inducing, steps=2)
    theirs = found.model.compile_logp()(points[-1])
    assert stats["model_logp"] == pytest.approx(float(theirs), rel=1e-9)
    with pytest.raises(pac.AugmentationError, match="one array for several"):
        pac.sparsify(model, gp=[trend, detail], inducing=Z)


def test_the_sparsified_model_has_a_gradient():
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=pm.Gamma("ls", 5, 5)))
        pm.Bernoulli("y", logit_p=gp.prior("f", X=X), observed=COUNTS > 2)
    # At an input nothing is left of the variance, whose root has no derivative at zero.
    sparse = pac.sparsify(model, gp=gp, inducing=X[[0, 5]])
    point = sparse.initial_point(1)
    names = [value.name for value in sparse.continuous_value_vars]
    rng, density = np.random.default_rng(0), sparse.compile_logp()
    moves = {name: rng.normal(size=point[name].shape) for name in names}
    slope = sparse.compile_dlogp()(point) @ np.concatenate([moves[n].ravel() for n in names])
    ahead, behind = (
        float(density({name: point[name] + step * moves[name] for name in names}))
        for step in (1e-5, -1e-5)
    )
    assert slope == pytest.approx((ahead - behind) / 2e-5, rel=1e-5)


def test_new_data_of_the_model_change_no_prediction_at_the_same_inputs(drawn):
    model, gp, _, few, _ = drawn
    with model:
        before = pac.predict(few, gp, X, random_seed=1).predictions["f_mean"].values
        pm.set_data({"X": X + 1.0})
        try:
            after = pac.predict(few, gp, X, random_seed=1).predictions["f_mean"].values
        finally:
            pm.set_data({"X": X})
    np.testing.assert_array_equal(after, before)


def target(log_ls, v, at):
    """The log density of (log ls, v) of a count model with one inducing point, by hand."""
    ls = np.exp(log_ls)
    a = np.exp(-0.5 * ((X[:, 0] - at) / ls[..., None]) ** 2) / np.sqrt(1.0 + 1e-6)
    eta, left = 0.3 + a * v[..., None], 1.0 - a**2
    density = eta @ COUNTS - np.exp(eta + 0.5 * left).sum(axis=-1)
    return invgamma.logpdf(ls, 5, scale=5) + log_ls - 0.5 * v**2 + density


@pytest.mark.parametrize("follows", [False, True])
def test_draws_have_the_distribution_of_the_target(follows, monkeypatch):
    """By elliptical slices, and by trajectories too."""
    taken, follow = [], Tilted._follow
    monkeypatch.setattr(HeldSites, "fit_badly", follows)
    monkeypatch.setattr(Tilted, "_follow", lambda *a: taken.append(a) or follow(*a))
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 5, 5)
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(0.3), cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
        pm.Poisson("y", mu=pm.math.exp(gp.prior("f", X=X)), observed=COUNTS)
    at, draws = 1.0, 1000
    _, points, _ = sampler_of(model, gp, np.array([[at]]), steps=draws, tune=60)
    chain = np.array([[p["ls_log__"], p["f_u_rotated_"][0]] for p in points[60:]], dtype=float)

    grid_ls, grid_v = np.linspace(-1.5, 4.0, 200), np.linspace(-4.0, 4.0, 200)

    def quantiles(at):
        log_p = target(*np.meshgrid(grid_ls, grid_v, indexing="ij"), at)
        p = np.exp(log_p - log_p.max())
        levels = []
        for grid, marginal in ((grid_ls, p.sum(1)), (grid_v, p.sum(0))):
            cdf = np.cumsum(marginal) / marginal.sum()
            levels.append([np.interp(q, cdf, grid) for q in (0.25, 0.5, 0.75)])
        return np.array(levels)

    def distance(expected):
        """Return the largest difference of probabilities, in Monte Carlo standard errors."""
        worst = 0.0
        for column, row in zip(chain.T, expected, strict=True):
            for q, x in zip((0.25, 0.5, 0.75), row, strict=True):
                below = (column <= x).astype(float)
                ess = float(az.ess(below[None]))
                assert ess > 100
                worst = max(worst, abs(below.mean() - q) / np.sqrt(q * (1.0 - q) / ess))
        return worst

    assert bool(taken) == follows
    assert distance(quantiles(at)) < 5.0
    assert distance(quantiles(at + 1.0)) > 5.0


@pytest.fixture(scope="module")
def drawn():
    """Draws with Z = X, with few inducing points, and without, all of the same seed."""
    model, gp = make(poisson)
    options = {"draws": 12, "tune": 6, "chains": 2, "random_seed": 5, **QUIET}
    with model:
        whole, few = (pac.sample(gp=gp, inducing=at, **options) for at in (X, Z))
        dense = pac.sample(**options)
    return model, gp, whole, few, dense


def test_inducing_points_at_the_inputs_give_the_dense_draws(drawn):
    _, _, whole, few, dense = drawn
    # The same random numbers, and the process's jitter of 1e-6 counts twice.
    f, u = (tree.posterior[name].values for tree, name in ((dense, "f"), (whole, "f_u")))
    np.testing.assert_allclose(u, f, atol=2e-3)
    for name in ("ls", "eta", "b"):
        np.testing.assert_allclose(whole.posterior[name], dense.posterior[name], rtol=2e-3)
        assert np.abs(few.posterior[name] - dense.posterior[name]).max() > 0.1


def test_what_the_result_holds(drawn):
    _, _, _, few, _ = drawn
    assert set(few.posterior.data_vars) == {"ls", "eta", "b", "f_u", "f_u_rotated_"}
    # Nothing of N values for each draw.
    assert (
        max(few.posterior.sizes[d] for d in few.posterior.dims if d not in ("chain", "draw")) == 3
    )
    np.testing.assert_array_equal(few.constant_data["f_u_inputs"], Z)
    assert {"residual_std", "elliptical_trials", "lp"} <= set(few.sample_stats)
    chains = few.posterior["f_u"].values[:, 0]
    assert np.abs(chains[0] - chains[1]).max() > 0.05


def test_predictions_are_those_of_the_process_given_its_values_there(drawn):
    model, gp, whole, few, _ = drawn
    new = np.linspace(-1.0, 5.0, 4)[:, None]
    renamed = whole.copy()
    renamed["posterior"] = whole["posterior"].to_dataset().rename(f_u="f").drop_vars("f_u_rotated_")
    for kind in ("f", "y"):
        more = {"ynew": 2} if kind == "y" else {}
        with model:
            ours, dense = (
                pac.predict(tree, gp, new, kind=kind, random_seed=1, **more).predictions
                for tree in (whole, renamed)
            )
        for name in ours.data_vars:
            np.testing.assert_allclose(ours[name], dense[name], rtol=1e-9)
    with model:
        at = pac.predict(few, gp, Z, random_seed=1).predictions["f"]
    np.testing.assert_allclose(at, few.posterior["f_u"], atol=0.02)


def test_a_prediction_with_another_kernel_is_refused(drawn):
    _, _, _, few, _ = drawn
    with pm.Model() as model:
        ls, eta = pm.InverseGamma("ls", 5, 5), pm.HalfNormal("eta", 2)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.Matern32(1, ls=ls))
        pm.Poisson("y", mu=pm.math.exp(gp.prior("f", X=X)), observed=COUNTS)
    with pytest.raises(pac.AugmentationError, match="agree"):
        pac.predict(few, gp, X, model=model)


def test_seeds_give_the_same_draws_in_one_process_and_in_several(drawn):
    model, gp, _, few, _ = drawn
    options = {**QUIET, "cores": 2}
    with model:
        again = pac.sample(12, tune=6, chains=2, random_seed=5, gp=gp, inducing=Z, **options)
    np.testing.assert_array_equal(again.posterior["f_u"], few.posterior["f_u"])


def test_a_fit_gives_inputs_and_start():
    model, gp = make(poisson)
    with model:
        fit = pac.fit("vgp", gp=gp, inducing=5, random_seed=2, progressbar=False)
    found = sparsified(model, gp, fit)
    np.testing.assert_array_equal(found.model["f_u_inputs"].get_value(), fit.inducing["f"])
    start = found.model.initial_point()
    assert np.exp(start["ls_log__"]) == pytest.approx(float(fit.theta["ls"]), rel=1e-6)
    dense = pac.fit("vgp", model=model, progressbar=False)
    with pytest.raises(pac.AugmentationError, match=r"a fit of \['f'\] through"):
        sparsified(model, gp, dense)


def laplace(f):
    pm.Laplace("y", mu=f, b=pm.HalfNormal("scale", 1), observed=np.log1p(COUNTS))


def test_a_kink_is_sampled_in_closed_form_and_refused_by_quadrature():
    model, gp = make(laplace)
    with pytest.raises(pac.AugmentationError, match=r"\['y'\].*kink.*pac.sample"):
        pac.sparsify(model, gp=gp, inducing=Z)
    _, points, _ = sampler_of(model, gp, Z, steps=3)
    assert np.isfinite(points[-1]["f_u_rotated_"]).all()


@pytest.mark.parametrize(("sigma", "warns"), [(0.05, True), (2.0, False)])
def test_an_integral_that_quadrature_misses_is_told(sigma, warns):
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=0.5))
        f = gp.prior("f", X=X)
        pm.StudentT("y", nu=4, mu=f, sigma=sigma, observed=np.log1p(COUNTS))
    _, _, stats = sampler_of(model, gp, Z[:1], steps=1, tune=1)
    found = stats["warning"]
    assert (found is not None) == warns
    assert not warns or "more inducing points" in found.message


def missing(f):
    with pytest.warns(match="missing"):
        pm.Poisson("y", pm.math.exp(f), observed=np.ma.masked_equal(COUNTS, COUNTS[0]))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"inducing": 3}, "expected gp="),
        ({"gp": "gp", "inducing": 0}, "expected a positive number, got 0"),
        ({"gp": "gp", "inducing": np.zeros((3, 2))}, r"shape \(M, 1\)"),
        ({"gp": "gp", "inducing": {"g": 3}}, r"entry for each of the processes \['f'\]"),
        ({"gp": "gp", "inducing": 3, "sites": "augmented"}, "held sites with inducing"),
        ({"gp": "gp", "inducing": 3, "vars": ["f"]}, "vars: expected none"),
        ({"gp": "two", "inducing": 3}, "expected different processes"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, match):
    model, gp = make(poisson)
    if "gp" in options:
        options = {**options, "gp": gp if options["gp"] == "gp" else [gp, gp]}
    with model, pytest.raises(pac.AugmentationError, match=match):
        pac.sample(**options)


def test_a_name_that_is_taken_is_refused():
    model, gp = make(lambda f: (poisson(f), pm.Deterministic("f_u", f)))
    with pytest.raises(pac.AugmentationError, match="'f_u' of the model: expected a different"):
        pac.sparsify(model, gp=gp, inducing=3)


def test_missing_observations_are_refused():
    model, gp = make(missing)
    with pytest.raises(pac.AugmentationError, match="missing observations"):
        pac.sparsify(model, gp=gp, inducing=3)


def heteroscedastic(processes):
    f, g = processes
    y = np.sin(2.0 * X[:, 0]) + 0.2 * RNG.normal(size=N)
    pm.Normal("y", mu=f, sigma=pm.math.exp(g), observed=y)


def student_t_of_two(processes):
    f, g = processes
    pm.StudentT("y", nu=4, mu=f, sigma=pm.math.exp(g), observed=np.log1p(COUNTS))


def classes(F):
    pm.Categorical("y", logit_p=F.T, observed=np.minimum(COUNTS, 4) // 2)


def make_several(write, outputs=None):
    """Return a model of two processes, or of one with several outputs."""
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 5, 5)
        cov = pm.gp.cov.ExpQuad(1, ls=ls)
        if outputs is not None:
            gps = pm.gp.Latent(cov_func=cov)
            write(gps.prior("F", X=X, n_outputs=outputs))
        else:
            gps = [pm.gp.Latent(cov_func=scale * cov) for scale in (1.0, 0.3)]
            write([gp.prior(name, X=X) for gp, name in zip(gps, "fg", strict=True)])
    return model, gps


@pytest.mark.parametrize(
    ("write", "outputs"),
    [(heteroscedastic, None), (student_t_of_two, None), (classes, 3)],
)
def test_several_predictors_have_the_log_density_of_the_sparsified_model(write, outputs):
    model, gps = make_several(write, outputs)
    inducing = Z if outputs else {"f": Z[:2], "g": Z}
    found, points, stats = sampler_of(model, gps, inducing, steps=2)
    assert not found.inexact
    theirs = found.model.compile_logp()(points[-1])
    # Of classes the sampler has a rule of its own.
    error = 1e-9 if outputs is None else 1e-6
    assert stats["model_logp"] == pytest.approx(float(theirs), rel=error)


def test_a_process_in_two_predictors_of_an_observation_is_refused():
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        f = gp.prior("f", X=X)
        pm.Normal("y", mu=f, sigma=pm.math.exp(f[::-1]), observed=np.log1p(COUNTS))
    with pytest.raises(pac.AugmentationError, match=r"'y'.*one predictor.*\['f'\] in several"):
        pac.sparsify(model, gp=gp, inducing=Z)


def classes_with_intercepts(F):
    b = pm.Normal("b", 0, 1, shape=3)
    pm.Categorical("y", logit_p=F.T[WHERE] + b, observed=np.minimum(COUNTS, 4) // 2)


def largest(F):
    pac.RobustMax("y", F.T, epsilon=0.01, observed=np.minimum(COUNTS, 4) // 2)


# Inputs that observations share.
WHERE = np.array([0, 0, 3, 1, 5, 4, 6, 7, 8, 14, 14, 11, 12, 13, 2])


@pytest.mark.parametrize("write", [classes_with_intercepts, largest])
def test_outputs_that_share_their_design_have_the_draws_of_the_whole_matrix(write, monkeypatch):
    # Compiled to be compared with, which other tests do.
    monkeypatch.setattr(sparsify, "WholeDensity", lambda model: None)
    found = sparsified(*make_several(write, 3), Z, 0)
    ours, stats = chain_of(found, steps=2, tune=1)
    read = weights._Design.__call__
    assert any(isinstance(A(ours[-1]), CopiesMap) for A in found.recognition.model.maps)
    monkeypatch.setattr(weights._Design, "__call__", lambda *a: DenseMap(read(*a).matrix))
    whole, theirs = chain_of(found, steps=2, tune=1)
    for name in ours[-1]:
        np.testing.assert_allclose(ours[-1][name], whole[-1][name], rtol=1e-6, atol=1e-8)
    assert stats["elliptical_trials"] == theirs["elliptical_trials"]


@pytest.mark.parametrize("write", [classes_with_intercepts, largest])
def test_trajectories_follow_the_gradient(write):
    """By ν, where outputs share a design, inputs are shared, and another block is beside them."""
    found = sparsified(*make_several(write, 3), Z, 0)
    step = SparseGibbs(model=found.model, sparsified=found)
    step.setup_chain(np.random.default_rng(0), 1, 0)
    point, _ = step.step(found.recognition.start)
    (part,) = step._sampler.parts
    given = part.given_sites(point)
    posterior, prior = given.posterior, given.prior
    nu, along = np.random.default_rng(1).normal(size=(2, posterior.size))
    value, slope = part.tilted.residual_of(given, nu)
    ends = [part.tilted.residual_of(given, nu + t * along)[0] for t in (1e-5, -1e-5)]
    assert slope @ along == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5)
    eta = prior.predictor(prior.innovations(posterior.apply(nu)))
    assert value == pytest.approx(float(part.tilted.residual(eta)), rel=1e-12)


def test_predictions_of_several_outputs_are_those_of_the_process_given_its_values_there():
    model, gp = make_several(largest, 3)
    with model:
        idata = pac.sample(3, tune=1, chains=1, random_seed=1, gp=gp, inducing=Z, **QUIET)
        at = pac.predict(idata, gp, Z, random_seed=1).predictions["F"]
        found = pac.predict(idata, gp, Z, kind="y", random_seed=1).predictions["y_probability"]
    np.testing.assert_allclose(at, idata.posterior["F_u"], atol=0.02)
    # The largest is right up to the probability of mistakes, in each of the draws.
    wins = np.eye(3)[idata.posterior["F_u"].values[0].argmax(axis=1)].mean(axis=0)
    np.testing.assert_allclose(found, 0.005 + (1.0 - 0.015) * wins, atol=1e-12)
    idata["posterior"]["F_u"] = idata["posterior"]["F_u"] + 0.5
    with pytest.raises(pac.AugmentationError, match="agree"):
        pac.predict(idata, gp, Z, model=model)


def expected_log_likelihood(posterior, Z):
    """E log p(y | f) of the Poisson model at every draw, from the formulas."""
    rows = []
    for c, d in np.ndindex(posterior["b"].shape):
        one = posterior.isel(chain=c, draw=d)
        ls, var = float(one["ls"]), float(one["eta"]) ** 2

        def kernel(first, second, ls=ls, var=var):
            return var * np.exp(-0.5 * (first - second.T) ** 2 / ls**2)

        solved = np.linalg.solve(kernel(Z, Z) + 1e-6 * np.eye(len(Z)), kernel(Z, X)).T
        mean = float(one["b"]) + 0.3 + solved @ (one["f_u"].values - 0.3)
        residual = var - np.sum(solved * kernel(X, Z), axis=1)
        rows.append(COUNTS * mean - np.exp(mean + 0.5 * residual) - gammaln(COUNTS + 1.0))
    return np.reshape(rows, (*posterior["b"].shape, N))


# Leave-one-out says of which of fifteen counts the draws know too much.
@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")
@pytest.mark.parametrize("Z", [X, Z], ids=["own inputs", "three"])
def test_log_likelihood_of_draws(Z):
    model, gp = make(poisson)
    with model:
        idata = pac.sample(
            100, tune=50, chains=2, gp=gp, inducing=Z, random_seed=1,
            idata_kwargs={"log_likelihood": ["y"]}, **QUIET,
        )  # fmt: skip
    found = idata["log_likelihood"]["y"]
    assert found.dims == ("chain", "draw", "where")
    expected = expected_log_likelihood(idata["posterior"].to_dataset(), Z)
    np.testing.assert_allclose(found.values, expected, rtol=1e-4, atol=1e-4)
    table = pac.compare({"sparse": idata})
    assert np.isfinite(table.loc["sparse", "elpd_loo"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"idata_kwargs": {"log_likelihood": ["b"]}}, "expected True or names among"),
        ({"return_inferencedata": False}, "expected a DataTree"),
        ({"var_names": ["b", "ls"]}, "'eta', 'f_u_rotated_'. in var_names"),
    ],
)
def test_log_likelihood_that_cannot_be_kept(options, message):
    model, gp = make(poisson)
    options = {"idata_kwargs": {"log_likelihood": True}} | options
    with model, pytest.raises(pac.AugmentationError, match=message):
        pac.sample(5, gp=gp, inducing=Z, **options, **QUIET)
