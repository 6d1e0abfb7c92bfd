"""Variables that nothing observed depends on are drawn from their own distribution."""

from __future__ import annotations

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.distributions import transforms as tr
from scipy import stats

import pymc_augconj as pac

N = 8
N_DRAWS = 1500
P_VALUE = 1e-4  # the draws have fixed seeds: a correct one fails for no seed but an unlucky one
RNG = np.random.default_rng(5)
X = RNG.standard_normal((N, 2))
MISSING = np.array([1, 4])
MASK = np.isin(np.arange(N), MISSING)


def masked(y):
    return np.ma.masked_array(y, MASK)


def process():
    cov = pm.gp.cov.ExpQuad(2, ls=pm.InverseGamma("ls", 5, 5))
    return pm.gp.Latent(cov_func=cov).prior("f", X=X)


def imputing():
    return pytest.warns(UserWarning, match="will be automatically imputed")


def draws_of(reading, name, n_draws=N_DRAWS):
    """A point, η there, and draws of a forward variable given that point."""
    point = reading.latent_values(reading.points(1)[0])
    prior, innovations = reading.innovations(point)
    (variable,) = [v for v in reading.lgm.forward if v.name == name]
    rng = np.random.default_rng(0)
    draws = np.stack([variable.draw(rng, point) for _ in range(n_draws)])
    assert draws.shape[1:] == variable.shape == point[variable.value_name].shape
    assert draws.dtype == point[variable.value_name].dtype
    return point, prior.predictor(list(innovations.values())), draws


def value_of_f(reading, point):
    _, innovations = reading.innovations(point)
    return innovations["f"]


def test_missing_normal_observations(read):
    with pm.Model() as model, imputing():
        pm.Normal("y", process(), pm.HalfNormal("s", 1), observed=masked(RNG.standard_normal(N)))
    reading = read(model)
    assert reading.likelihoods == {"y_observed": "Normal, identity"}
    assert reading.forward == ["y_unobserved"]
    (site,) = reading.lgm.sites
    assert site.size == N - len(MISSING)
    point, _, draws = draws_of(reading, "y_unobserved")
    mean, sd = value_of_f(reading, point)[MISSING], np.exp(point["s_log__"])
    for i in range(len(MISSING)):
        assert stats.kstest(draws[:, i], stats.norm(mean[i], sd).cdf).pvalue > P_VALUE


def test_missing_nan_observations(read):
    y = np.where(MASK, np.nan, RNG.standard_normal(N))
    with pm.Model() as model, imputing():
        pm.StudentT("y", nu=3, mu=process(), sigma=2, observed=y)
    reading = read(model)
    point, _, draws = draws_of(reading, "y_unobserved")
    law = stats.t(3, value_of_f(reading, point)[MISSING[0]], 2)
    assert stats.kstest(draws[:, 0], law.cdf).pvalue > P_VALUE


def test_missing_binary_observations(read):
    with pm.Model() as model, imputing():
        eta = process() + pm.Normal("b", 0, 1)
        pm.Bernoulli("y", logit_p=eta, observed=masked(RNG.integers(0, 2, N)))
    reading = read(model)
    point, _, draws = draws_of(reading, "y_unobserved")
    p = 1 / (1 + np.exp(-value_of_f(reading, point)[MISSING] - point["b"]))
    assert set(np.unique(draws)) == {0, 1}
    for i in range(len(MISSING)):
        assert stats.binomtest(int(draws[:, i].sum()), N_DRAWS, p[i]).pvalue > P_VALUE


def test_missing_counts(read):
    with pm.Model() as model, imputing():
        mu = pm.Gamma("r", 20, 1) * pm.math.invlogit(process())
        pm.Poisson("y", mu=mu, observed=masked(RNG.poisson(3, N)))
    reading = read(model)
    assert reading.likelihoods == {"y_observed": "Poisson, scaled logit"}
    point, _, draws = draws_of(reading, "y_unobserved")
    mu = np.exp(point["r_log__"]) / (1 + np.exp(-value_of_f(reading, point)[MISSING]))
    for i in range(len(MISSING)):
        largest = int(mu[i] + 3 * np.sqrt(mu[i]))
        masses = stats.poisson(mu[i]).pmf(np.arange(largest))
        expected = np.append(masses, 1 - masses.sum()) * N_DRAWS
        found = np.bincount(np.minimum(draws[:, i], largest), minlength=largest + 1)
        keep = expected > 5
        observed = np.append(found[keep], found[~keep].sum())
        expected = np.append(expected[keep], expected[~keep].sum())
        assert stats.chisquare(observed, expected).pvalue > P_VALUE


def test_missing_in_two_dimensions(read):
    y = np.ma.masked_array(RNG.standard_normal((N, 2)), RNG.uniform(size=(N, 2)) < 0.3)
    with pm.Model(coords={"obs": np.arange(N), "t": [0, 1]}) as model, imputing():
        eta = process()[:, None] + pm.Normal("b", 0, 1, shape=2)
        pm.Normal("y", eta, 1, observed=y, dims=("obs", "t"))
    reading = read(model)
    assert reading.kinds == {"f": "selection", "b": "selection"}
    assert reading.lgm.sites[0].size == int((~y.mask).sum())


@pytest.mark.parametrize("reparameterize", [True, False])
def test_conditional_inside_the_model(reparameterize, read):
    """One forward variable depends on another, on a hyperparameter and on two latents."""
    new = X[:2] + 0.7
    with pm.Model() as model:
        mean = pm.gp.mean.Constant(pm.Normal("c", 0, 1))
        cov = pm.gp.cov.ExpQuad(2, ls=pm.InverseGamma("ls", 5, 5))
        gp = pm.gp.Latent(mean_func=mean, cov_func=cov)
        f = gp.prior("f", X=X, reparameterize=reparameterize)
        pm.Bernoulli("y", logit_p=f, observed=RNG.integers(0, 2, N))
        pm.Normal("y_new", gp.conditional("f_new", Xnew=new), 0.5)
    reading = read(model)
    assert reading.forward == ["f_new", "y_new"]
    point, _, draws = draws_of(reading, "f_new")
    ls, c = np.exp(point["ls_log__"]), float(point["c"])
    f = value_of_f(reading, point) + c

    def K(a, b):
        return np.exp(-0.5 * ((a[:, None] - b[None]) ** 2).sum(-1) / ls**2)

    weights = np.linalg.solve(K(X, X) + 1e-6 * np.eye(N), K(X, new)).T
    mean, cov = c + weights @ (f - c), K(new, new) - weights @ K(X, new)
    for i in range(2):
        law = stats.norm(mean[i], np.sqrt(cov[i, i]))
        assert stats.kstest(draws[:, i], law.cdf).pvalue > P_VALUE
    point, _, draws = draws_of(reading, "y_new")
    law = stats.norm(point["f_new"][0], 0.5)
    assert stats.kstest(draws[:, 0], law.cdf).pvalue > P_VALUE


def test_unused_variables_are_drawn_on_the_unconstrained_scale(read):
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=process(), observed=RNG.integers(0, 2, N))
        u = pm.HalfNormal("u", 2)
        pm.Uniform("w", 0, u)
        pm.Normal("unused", 0, 1, shape=3)
    reading = read(model)
    assert reading.forward == ["u", "w", "unused"]
    _, _, draws = draws_of(reading, "u")
    assert stats.kstest(np.exp(draws), stats.halfnorm(scale=2).cdf).pvalue > P_VALUE
    point, _, draws = draws_of(reading, "w")
    upper = np.exp(point["u_log__"])
    w = upper / (1 + np.exp(-draws))
    assert stats.kstest(w, stats.uniform(0, upper).cdf).pvalue > P_VALUE


def test_draws_come_from_the_generator_given(read):
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=process(), observed=RNG.integers(0, 2, N))
        pm.Normal("unused", 0, 1, shape=3)
    reading = read(model)
    (variable,) = reading.lgm.forward
    point = reading.latent_values(reading.recognition.start)
    one, other, third = (variable.draw(np.random.default_rng(seed), point) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, other)
    assert np.all(one != third)


# -- variables of which a draw would be from another distribution ------------------------------


def with_unused(build):
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=pm.Normal("b", 0, 1) * X[:, 0], observed=RNG.integers(0, 2, N))
        build()
    return model


GRAPH = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])


def custom(value, s):
    return -pm.math.abs(value / s) - pm.math.log(2 * s)


NOT_DRAWN = {
    "ordered": lambda: pm.Normal("c", 0, 1, shape=3, transform=tr.ordered, initval=[-1, 0, 1]),
    "interval": lambda: pm.Normal("c", 0, 1, transform=tr.Interval(0.5, 2.0), initval=1.0),
    "part of the support": lambda: pm.Uniform(
        "c", 0, 10, default_transform=tr.Interval(0, 5.0), initval=1.0
    ),
    "chained": lambda: pm.HalfNormal("c", 1, shape=2, transform=tr.ordered, initval=[1, 2]),
    "zero sum": lambda: pm.Normal("c", 0, 1, shape=2, transform=tr.ZeroSumTransform([0])),
    "bounded Flat": lambda: pm.Flat("c", transform=tr.Interval(0.0, 2.0), initval=1.0),
    "no random": lambda: pm.CustomDist("c", pm.HalfNormal("s", 1), logp=custom, shape=3),
    "made of a CAR": lambda: pm.CustomDist(
        "c",
        dist=lambda size: pm.CAR.dist(mu=np.zeros(3), W=GRAPH, alpha=0.5, tau=1.0) ** 3,
        logp=lambda value: -pt.sum(value**4),
        shape=3,
    ),
}


@pytest.mark.parametrize("spelling", NOT_DRAWN)
def test_variables_that_a_draw_does_not_follow_are_sampled_by_their_density(spelling, read):
    reading = read(with_unused(NOT_DRAWN[spelling]))
    # A draw of a parent would not be given its child, which stays.
    assert reading.forward == []
    (held,) = [h for h in reading.lgm.hyperparameters if h.name == "c"]
    assert "nothing observed depends on it" in held.why_not_optimised


GAUSSIAN = {
    "ICAR": lambda: pm.ICAR("c", W=GRAPH),
    "CAR": lambda: pm.CAR("c", mu=np.zeros(3), W=GRAPH, alpha=0.5, tau=pm.HalfNormal("s", 1)),
}


@pytest.mark.parametrize("spelling", GAUSSIAN)
def test_gaussian_variables_that_pymc_cannot_draw_are_latents(spelling, read):
    """PyMC has no draw of an ICAR, and of a CAR one with the square of its covariance."""
    reading = read(with_unused(GAUSSIAN[spelling]))
    assert reading.forward == []
    assert set(reading.kinds) == {"b", "c"}


def test_one_value_is_no_fit_of_them():
    model = with_unused(NOT_DRAWN["ordered"])
    with pytest.raises(
        pac.AugmentationError, match=r"'c'.*point estimate.*transform=.*use pac\.sample"
    ):
        pac.fit("cavi", model=model, progressbar=False)


DRAWN = {
    "default": lambda: pm.Uniform("c", 0, 10),
    "no transform": lambda: pm.Uniform("c", 0, 10, default_transform=None),
    "the default, given": lambda: pm.HalfNormal("c", 1, default_transform=tr.log),
    "simplex": lambda: pm.Dirichlet("c", np.ones(3)),
    "LKJ": lambda: pm.LKJCorr("c", n=3, eta=2),
    "LKJ Cholesky": lambda: pm.LKJCholeskyCov(
        "c", n=3, eta=2, sd_dist=pm.HalfNormal.dist(1, shape=3), compute_corr=True
    ),
    "random walk": lambda: pm.GaussianRandomWalk(
        "c", sigma=pm.HalfNormal("s", 1), init_dist=pm.Normal.dist(0, 1), shape=4
    ),
    "AR": lambda: pm.AR(
        "c", rho=[0.5], sigma=pm.HalfNormal("s", 1), init_dist=pm.Normal.dist(0, 1), shape=4
    ),
    "mixture": lambda: pm.Mixture("c", w=[0.3, 0.7], comp_dists=pm.Normal.dist([0, 1], 1)),
    "no entries": lambda: pm.Normal("c", 0, 1, shape=0),
}


@pytest.mark.parametrize("spelling", DRAWN)
def test_other_unused_variables_are_drawn(spelling, read):
    reading = read(with_unused(DRAWN[spelling]))
    assert reading.forward[-1] == "c"
    draws_of(reading, "c", n_draws=3)


def test_a_compound_variable_is_drawn_from_its_distribution(read):
    """Its parts take their random numbers from the generator given, each its own."""
    reading = read(with_unused(DRAWN["random walk"]))
    point, _, draws = draws_of(reading, "c")
    steps = np.diff(draws, axis=1, prepend=0.0) / np.r_[1.0, np.repeat(np.exp(point["s_log__"]), 3)]
    for i in range(4):
        assert stats.kstest(steps[:, i], stats.norm.cdf).pvalue > P_VALUE
    assert np.abs(np.corrcoef(steps.T) - np.eye(4)).max() < 5 / np.sqrt(N_DRAWS)


@pytest.mark.parametrize("improper", [pm.Flat, pm.HalfFlat])
def test_an_improper_prior_that_nothing_informs_is_refused(improper):
    with pytest.raises(pac.RecognitionError, match=r"'c'.*proper prior.*Flat; remove"):
        pac.recognize(with_unused(lambda: improper("c")))


def test_transformed_variables_are_sampled_from_their_distribution():
    with with_unused(NOT_DRAWN["ordered"]) as model:
        pm.Normal("d", 0, 1, transform=tr.Interval(0.5, 2.0), initval=1.0)
    step = pac.AugmentedGibbs(model=model)
    step.setup_chain(np.random.default_rng(1), 200, 1000)
    point, draws = model.initial_point(), []
    for _ in range(1200):
        point, _ = step.step(point)
        draws.append([*point["c_ordered__"], point["d_interval__"]])
    first, gap, last_gap, d = np.array(draws[200:]).T
    middle = first + np.exp(gap)
    total = first + middle + middle + np.exp(last_gap)
    d = 0.5 + 1.5 / (1.0 + np.exp(-d))
    truncated = stats.truncnorm(0.5, 2.0)
    # Means of the order statistics of three standard normals; their sum has variance 3. Draws that
    # ignore the transforms have the other moments.
    moments = [(first, -1.5 / np.sqrt(np.pi), 0.0), (middle, 0.0, None), (total**2, 3.0, None)]
    moments += [(d, truncated.mean(), 0.0), (d**2, truncated.moment(2), None)]
    for drawn, mean, wrong in moments:
        size = float(az.ess(drawn[None], method="mean"))
        assert size > 100
        error = 5 * drawn.std() / np.sqrt(size)
        assert abs(drawn.mean() - mean) < error
        assert wrong is None or abs(drawn.mean() - wrong) > error
