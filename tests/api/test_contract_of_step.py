"""AugmentedGibbs keeps PyMC's contract for step methods, and its results are ordinary ones."""

import pickle
import warnings

import arviz as az
import cloudpickle
import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac
from pymc_augconj.api.updates import GradientUpdate, MixedUpdate, SliceUpdate
from tests.modes import AS_WRITTEN

N = 12
X = np.linspace(0, 1, N)[:, None]
Y = (np.sin(7 * X[:, 0]) > 0).astype(int)
QUIET = {"progressbar": False, "compute_convergence_checks": False}


def classification(reparameterize=True):
    with pm.Model() as model:
        ls, eta = pm.InverseGamma("ls", 5, 2), pm.HalfNormal("eta", 2)
        b0 = pm.Normal("b0", 0, 2)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=ls))
        f = gp.prior("f", X=X, reparameterize=reparameterize, jitter=1e-5)
        pm.Bernoulli("y", logit_p=b0 + f, observed=Y)
    return model, gp


def chain(step, n_steps, seed=0, tune=5):
    """Points of one chain, step by step."""
    step.setup_chain(np.random.default_rng(seed), tune, n_steps)
    point = step.recognition.start
    points = []
    for i in range(n_steps):
        if i == tune:
            step.stop_tuning()
        for value in point.values():
            value.flags.writeable = False
        point, _ = step.step(point)
        points.append(point)
    return points


def equal(first, second):
    return all(
        all(np.array_equal(p[name], q[name]) for name in p)
        for p, q in zip(first, second, strict=True)
    )


@pytest.mark.parametrize("reparameterize", [True, False])
def test_point_is_not_changed_and_keeps_its_order(reparameterize):
    model, _ = classification(reparameterize)
    step = pac.AugmentedGibbs(model=model)
    # The arrays are read-only: a change in place would raise.
    points = chain(step, 3)
    assert [list(p) for p in points] == [[v.name for v in model.value_vars]] * 3


def test_an_instance_starts_every_chain_anew():
    step = pac.AugmentedGibbs(model=classification()[0])
    first = chain(step, 12)
    assert equal(first, chain(step, 12))
    assert not equal(first, chain(step, 12, seed=1))


@pytest.mark.parametrize("by", [pickle, cloudpickle])
def test_a_pickled_step_draws_the_same(by):
    step = pac.AugmentedGibbs(model=classification()[0])
    copy = by.loads(by.dumps(step))
    assert equal(chain(step, 12), chain(copy, 12))
    # Also after a chain, whose caches stay behind.
    assert equal(chain(by.loads(by.dumps(copy)), 12), chain(step, 12))


@pytest.mark.parametrize("hyper", ["auto", "nuts"])
def test_sampling_state_continues_a_chain(hyper):
    step = pac.AugmentedGibbs(model=classification()[0], hyper_sampler=hyper)
    points = chain(step, 40)
    state = step.sampling_state
    expected = [step.step(points[-1])[0]]
    other = pac.AugmentedGibbs(model=classification()[0], hyper_sampler=hyper)
    other.setup_chain(np.random.default_rng(5), 5, 40)
    other.sampling_state = state
    assert equal(expected, [other.step(points[-1])[0]])


def test_chains_are_dispersed_but_given_starts_are_kept():
    model, _ = classification()
    step = pac.AugmentedGibbs(model=model)
    starts = []
    for seed in range(2):
        step.setup_chain(np.random.default_rng(seed), 0, 1)
        step.step(step.recognition.start)
        starts.append(step._disperse(step._sampler, step.recognition.start))
        assert not any(
            np.array_equal(starts[-1][name], value)
            for name, value in step.recognition.start.items()
        )
    assert not equal(starts[:1], starts[1:])
    # PyMC's own start, which compiled code rounds differently.
    rounded = {k: np.nextafter(v, np.inf) for k, v in step.recognition.start.items()}
    assert step._disperse(step._sampler, rounded) is not rounded
    given = {k: np.array(v + 0.1) for k, v in step.recognition.start.items()}
    assert step._disperse(step._sampler, given) is given
    # Variables that are not given do not stay at their means, where their scales would go to zero.
    first, *others = given
    start = step._disperse(step._sampler, {**step.recognition.start, first: given[first]})
    assert start[first] is given[first]
    assert not any(np.array_equal(start[name], step.recognition.start[name]) for name in others)


def test_starts_come_nearer_where_the_usual_dispersion_is_impossible():
    with pm.Model() as model:
        a = pm.Uniform("a", -0.01, 0.01, shape=10, default_transform=None)
        b = pm.Normal("b", shape=3)
        pm.Normal("y", (b * pm.math.exp(a.sum())), pm.math.exp(a[0]), observed=np.ones(3))
    step = pac.AugmentedGibbs(model=model)
    step.setup_chain(np.random.default_rng(1), 0, 1)
    start = step._disperse(step.make_sampler(step.recognition.start), step.recognition.start)
    assert start["a"].all()
    assert abs(start["a"]).max() < 0.01


def test_both_spellings_draw_the_same():
    model, _ = classification()
    arguments = {"draws": 10, "tune": 5, "chains": 1, "cores": 1, "random_seed": 3, **QUIET}
    ours = pac.sample(model=model, **arguments)
    with model:
        theirs = pm.sample(step=pac.AugmentedGibbs(), **arguments)
    with model, pac.without_compilation():
        at_once = pm.sample(step=pac.AugmentedGibbs(), **arguments)
    for name in ("ls", "eta", "b0", "f_rotated_"):
        np.testing.assert_array_equal(theirs["posterior"][name], at_once["posterior"][name])
        # Where what is recorded is the exponential of a draw, it is another library's.
        ulps = 2 if name in ("ls", "eta") else 0
        one, other = (idata["posterior"][name].to_numpy() for idata in (ours, theirs))
        np.testing.assert_array_max_ulp(one, other, maxulp=ulps)


def hierarchical():
    group = np.arange(N) % 3
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau")
        alpha = pm.Normal("alpha", mu, tau, shape=3)
        beta = pm.MvNormal("beta", np.zeros(2), cov=np.eye(2) + 0.3)
        a = pm.Exponential("a", 1.0)
        eta = alpha[group] + np.column_stack([X[:, 0], Y]) @ beta
        pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=a, observed=Y + 1)
        pm.Normal("z", eta, tau, observed=np.sin(40 * X[:, 0]))
    return model


def imputed():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.exceptions.ImputationWarning)
        with pm.Model() as model:
            sigma = pm.HalfNormal("sigma")
            f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, 0.3)).prior("f", X=X, jitter=1e-5)
            y = np.ma.masked_array(X[:, 0], mask=np.arange(N) < 2)
            pm.StudentT("y", nu=4, mu=f, sigma=sigma, observed=y)
    return model


@pytest.mark.parametrize(
    "build",
    [
        lambda: classification(True)[0],
        lambda: classification(False)[0],
        hierarchical,
        imputed,
    ],
    ids=["whitened", "centred", "hierarchical", "imputed"],
)
def test_model_logp_is_that_of_pymc(build):
    model = build()
    idata = pac.sample(8, tune=8, chains=1, cores=1, model=model, random_seed=1, **QUIET)
    logp = model.compile_logp(mode=AS_WRITTEN)
    step = pac.AugmentedGibbs(model=model)
    step.setup_chain(np.random.default_rng(0), 5, 8)
    point = step.recognition.start
    for _ in range(8):
        point, (stats,) = step.step(point)
        assert stats["model_logp"] == pytest.approx(float(logp(point)), rel=1e-6, abs=1e-6)
    assert {"lp", "log_evidence", "evaluations", "jitter"} <= set(idata["sample_stats"])
    assert np.isfinite(idata["sample_stats"]["lp"]).all()


def test_default_tuning_is_a_few_hundred_steps():
    assert pac.AugmentedGibbs.default_tune_steps <= 300


def test_the_rest_can_be_left_to_pymc():
    model, _ = classification()
    with model:
        step = pac.AugmentedGibbs([model["f"], model["b0"]])
        assert {v.name for v in step.vars} == {"f_rotated_", "b0"}
        idata = pm.sample(
            20, tune=20, step=[step, pm.Metropolis([model["ls"], model["eta"]])], chains=1, **QUIET
        )
    assert idata["posterior"]["ls"].std() > 0


def test_discrete_variables_go_to_pymc():
    with pm.Model() as model:
        k = pm.Bernoulli("k", 0.5)
        f = pm.Normal("f", 0, 1, shape=N)
        pm.StudentT("y", nu=4, mu=f * (1 + k), sigma=1, observed=X[:, 0])
        idata = pm.sample(400, tune=20, step=pac.AugmentedGibbs(), chains=1, random_seed=1, **QUIET)
    assert set(np.unique(idata["posterior"]["k"])) == {0, 1}
    assert {v.name for v in pac.AugmentedGibbs(model=model).vars} == {"f"}


def test_the_result_is_an_ordinary_one():
    model, gp = classification()
    idata = pac.sample(60, tune=60, chains=2, cores=1, model=model, random_seed=2, **QUIET)
    with model, warnings.catch_warnings():
        # PyMC clones the model, and says that the GP's own variables are not to be used with it.
        warnings.filterwarnings("ignore", "Detected variables likely created by GP objects")
        pm.compute_log_likelihood(idata, progressbar=False)
        gp.conditional("f_new", X[:3] + 0.05, jitter=1e-5)
        predictive = pm.sample_posterior_predictive(
            idata, var_names=["y", "f_new"], progressbar=False, random_seed=0
        )
    assert predictive["posterior_predictive"]["y"].shape == (2, 60, N)
    assert predictive["posterior_predictive"]["f_new"].shape == (2, 60, 3)
    with warnings.catch_warnings():
        # Few draws: Pareto k may be high, and says so.
        warnings.simplefilter("ignore", UserWarning)
        assert np.isfinite(az.loo(idata).elpd)


def test_a_singular_covariance_is_named():
    twice = np.repeat(X[:6], 2, axis=0)
    cov = pm.gp.cov.ExpQuad(1, ls=5.0)
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=cov).prior("f", X=twice, jitter=0.0)
        pm.Bernoulli("y", logit_p=f, observed=Y)
    with pytest.raises(pac.NotPositiveDefiniteError, match="covariance of 'f'"):
        pac.sample(5, tune=0, chains=1, cores=1, model=model, **QUIET)
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=cov).prior("f", X=twice, jitter=0.0, reparameterize=False)
        pm.Bernoulli("y", logit_p=f, observed=Y)
    step = pac.AugmentedGibbs(model=model)
    step.setup_chain(np.random.default_rng(0), 0, 1)
    _, (stats,) = step.step(step.recognition.start)
    assert stats["jitter"] > 0


def test_unknown_variables_and_keywords_are_refused():
    model, _ = classification()
    with pytest.raises(pac.RecognitionError, match="y"):
        pac.AugmentedGibbs([model["f"], model["y"]], model=model)
    with pytest.raises(pac.RecognitionError, match=r"found \['t_log__'\]; free variables are \['"):
        pac.AugmentedGibbs(["f", "t_log__"], model=model)
    with pytest.raises(TypeError, match="'step'"):
        pac.sample(step=None, model=model)
    with pytest.raises(ValueError, match="sweeps"):
        pac.AugmentedGibbs(model=model, sweeps=0)
    with pytest.raises(ValueError, match="hyper"):
        pac.AugmentedGibbs(model=model, hyper_sampler="metropolis")


def test_many_length_scales_are_sampled_by_gradient():
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 5, 5, shape=6)
        cov = pm.gp.cov.ExpQuad(6, ls=ls)
        f = pm.gp.Latent(cov_func=cov).prior("f", X=rng.standard_normal((N, 6)), jitter=1e-5)
        pm.Bernoulli("y", logit_p=f, observed=Y)
    step = pac.AugmentedGibbs(model=model)
    assert step._kinds["collapsed"] is GradientUpdate
    assert equal(chain(step, 12), chain(step, 12))


@pytest.mark.parametrize(("items", "kind"), [(3, MixedUpdate), (4, SliceUpdate)])
def test_many_cutpoints_are_updated_along_axes(items, kind):
    """Cutpoints of each item: ellipses of fifteen had 2 effective draws of 300, slices 79."""
    cuts, rng = np.tile([-1.0, 0.0, 1.0], (items, 1)), np.random.default_rng(1)
    with pm.Model() as model:
        skill, order = pm.Normal("skill", 0, 1, shape=(9, 1)), pm.distributions.transforms.ordered
        own = pm.Normal("cut", 0, 1, shape=cuts.shape, transform=order, initval=cuts)
        pm.OrderedLogistic("y", skill, cutpoints=own, observed=rng.integers(0, 4, (9, items)))
    assert pac.AugmentedGibbs(model=model)._kinds["likelihood"] is kind


def test_gradient_of_the_collapsed_density():
    from pymc_augconj.latents.derivatives import log_evidence_and_gradient
    from pymc_augconj.latents.joint import LatentPriors

    rng = np.random.default_rng(4)
    for reparameterize in (True, False):
        with pm.Model() as model:
            ls = pm.InverseGamma("ls", 5, 5, shape=2)
            eta, tau, c = pm.HalfNormal("eta"), pm.HalfNormal("tau"), pm.HalfNormal("c")
            gp = pm.gp.Latent(
                mean_func=pm.gp.mean.Constant(c), cov_func=eta**2 * pm.gp.cov.Matern52(2, ls)
            )
            f = gp.prior(
                "f", X=rng.standard_normal((N, 2)), reparameterize=reparameterize, jitter=1e-4
            )
            a = pm.Normal("a", 0, tau, shape=3)
            pm.Bernoulli("y", logit_p=f + a[np.arange(N) % 3], observed=Y)
        lgm = pac.recognize(model).model
        point = {k: v + 0.1 for k, v in pac.recognize(model).start.items()}
        h, lam = rng.standard_normal(N), rng.exponential(size=N)
        priors = LatentPriors(lgm, [point])
        _, gradient = log_evidence_and_gradient(lgm, priors, point, h, lam)
        assert set(gradient) == {"ls_log__", "eta_log__", "tau_log__", "c_log__"}
        for name, slopes in gradient.items():
            for i in range(np.size(point[name])):
                values = []
                for shift in (1e-5, -1e-5):
                    moved = dict(point)
                    moved[name] = np.array(point[name])
                    moved[name].flat[i] += shift
                    values.append(log_evidence_and_gradient(lgm, priors, moved, h, lam)[0])
                numeric = (values[0] - values[1]) / 2e-5
                assert np.ravel(slopes)[i] == pytest.approx(numeric, rel=1e-5, abs=1e-6)
