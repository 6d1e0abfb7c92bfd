"""Held sites: the step is exact for every density, and the sites are those of the VGP."""

from __future__ import annotations

import itertools

import arviz as az
import cloudpickle
import numpy as np
import pymc as pm
import pytest
from scipy import sparse, stats

import pymc_augconj as pac
from pymc_augconj.api.updates import EllipticalUpdate, MixedUpdate
from pymc_augconj.engines.gibbs import followed, held_sites
from pymc_augconj.engines.gibbs.elliptical import ANY, REVERSING, elliptical_slice, trajectory
from pymc_augconj.engines.gibbs.held_sites import HeldSites
from pymc_augconj.engines.gibbs.observed import Held
from pymc_augconj.engines.gibbs.sampler import GibbsSampler
from pymc_augconj.engines.variational.ascent import climb
from pymc_augconj.latents.by_precision import PrecisionPosterior, PrecisionSolver
from pymc_augconj.latents.choice import solver_of_step
from pymc_augconj.latents.joint import LatentPriors
from pymc_augconj.plan import held_names, make_plan

FALSE_ALARMS = 1e-5  # of each test
DRAWS = 300
exp, invlogit, ordered = pm.math.exp, pm.math.invlogit, pm.distributions.transforms.ordered
POSITIVE, COUNTS, CLASSES = np.array([0.7, 2.5, 0.2]), np.array([3, 0, 6]), np.array([2, 0, 1])
MEAN, STD = 0.4, 1.3

# Of one latent for each of three observations. Where there is an augmentation it is left aside.
DENSITIES = {
    "Poisson, log": lambda f: pm.Poisson("y", exp(f), observed=COUNTS),
    "Poisson, square": lambda f: pm.Poisson("y", 0.5 * (1.4 + f) ** 2, observed=COUNTS),
    "Gamma": lambda f: pm.Gamma("y", alpha=2, beta=2 * exp(-f), observed=POSITIVE),
    "Beta": lambda f: pm.Beta("y", mu=invlogit(f), nu=4, observed=POSITIVE / 3),
    "Weibull": lambda f: pm.Weibull("y", 1.5, exp(f), observed=POSITIVE),
    "ordered logistic": lambda f: pm.OrderedLogistic(
        "y", eta=f, cutpoints=[-1.0, 1.0], observed=CLASSES
    ),
    "ordered probit": lambda f: pm.OrderedProbit(
        "y", eta=f, cutpoints=[-1.0, 1.0], observed=CLASSES
    ),
    "censored": lambda f: pm.Censored(
        "y", pm.Normal.dist(f, 0.8), lower=0.2, upper=2.5, observed=POSITIVE
    ),
    "truncated": lambda f: pm.Truncated("y", pm.Normal.dist(f, 0.8), lower=0, observed=POSITIVE),
    "zero-inflated": lambda f: pm.ZeroInflatedPoisson("y", psi=0.7, mu=exp(f), observed=COUNTS),
    "a mixture of two modes": lambda f: pm.NormalMixture(
        "y", w=[0.6, 0.4], mu=f[:, None] + np.array([-1.5, 1.5]), sigma=0.5, observed=POSITIVE
    ),
    "a support of its own": lambda f: pm.Uniform("y", f - 1.5, f + 1.5, observed=POSITIVE),
    "Student-t": lambda f: pm.StudentT("y", nu=2, mu=f, sigma=0.3, observed=[0.7, 9.0, -2.0]),
    "Laplace": lambda f: pm.Laplace("y", f, 0.4, observed=POSITIVE),
    "SuperGaussian": lambda f: pac.SuperGaussian(
        "y", f, log_phi=lambda r: 1 - (1 + r) ** 0.6, observed=POSITIVE
    ),
    "Bernoulli": lambda f: pm.Bernoulli("y", logit_p=f, observed=[1, 0, 1]),
}


class Case:
    """One density with its sampler, and the exact posterior of each latent on a grid."""

    def __init__(self, name: str):
        with pm.Model() as self.model:
            DENSITIES[name](pm.Normal("f", MEAN, STD, shape=3))
        recognition = pac.recognize(self.model)
        self.lgm, self.start = recognition.model, dict(recognition.start)
        held = held_names(self.lgm, "held")
        self.sites = HeldSites(self.lgm, held, ())
        self.sampler = GibbsSampler(
            self.lgm, make_plan(self.lgm), self.start, sweeps=1, sites=self.sites
        )
        self.sites.choose(self.start)
        (site,) = self.lgm.sites
        self.grid = np.linspace(MEAN - 9 * STD, MEAN + 9 * STD, 40_001)
        params = {k: v[:, None] if v.ndim else v for k, v in site.params(self.start).items()}
        with np.errstate(all="ignore"):
            y = site.y(self.start)[:, None]
            log_density = site.likelihood.log_density(
                y, self.predictors().reshape(*site.shape, -1), params
            )
        mass = np.exp(log_density - log_density.max(axis=1, keepdims=True))
        mass *= stats.norm.pdf(self.grid, MEAN, STD)
        cumulative = np.cumsum(0.5 * (mass[:, 1:] + mass[:, :-1]), axis=1)
        zero = np.zeros((3, 1))
        self.cdf = np.hstack([zero, cumulative / cumulative[:, -1:]])

    def predictors(self):
        """Return η of each observation on the grid; it may be a multiple of f, say."""
        prior = self.sampler.priors.at(self.start)
        zero, one = (prior.predictor([np.full(3, u)])[:, None] for u in (0.0, 1.0))
        return zero + (one - zero) * (self.grid - MEAN)

    def smallest_p_value(self, seed: int) -> float:
        """Start exact draws, take one step each, and compare with where they came from."""
        rng = np.random.default_rng(seed)
        ranks = np.empty((DRAWS, 3))
        for rank in ranks:
            f = [np.interp(rng.random(), cdf, self.grid) for cdf in self.cdf]
            point, _ = self.sampler.step(rng, {**self.start, "f": np.array(f)}, {})
            rank[:] = [
                np.interp(x, self.grid, cdf) for x, cdf in zip(point["f"], self.cdf, strict=True)
            ]
        return 3 * min(stats.kstest(column, "uniform").pvalue for column in ranks.T)


@pytest.mark.parametrize("name", DENSITIES)
def test_a_step_keeps_the_posterior(name):
    assert Case(name).smallest_p_value(seed=1) > FALSE_ALARMS


def test_a_step_that_took_the_sites_for_the_density_would_not(monkeypatch):
    case = Case("a mixture of two modes")
    (part,) = case.sampler.parts
    monkeypatch.setattr(part.tilted, "residual", lambda eta, point=None: np.zeros(eta.shape[:-1]))
    assert case.smallest_p_value(seed=1) < FALSE_ALARMS


def test_sites_chosen_badly_keep_it_too():
    case = Case("Gamma")
    case.sites.h, case.sites.lam = case.sites.h + 2.0, 10.0 * case.sites.lam
    assert case.smallest_p_value(seed=1) > FALSE_ALARMS


def test_sites_without_a_posterior_at_the_present_hyperparameters_are_not_taken():
    """They are chosen at the mean of a window, and may be impossible where the chain is."""
    rng, case = np.random.default_rng(0), Case("Gamma")
    h, lam = case.sites.chosen
    point, _ = case.sampler.step(rng, case.start, {})
    case.sites.h, case.sites.lam = h.copy(), np.full_like(lam, -1e9)
    case.sampler.step(rng, point, {})
    assert case.sites.h is h
    assert case.sites.lam is lam
    # There is nothing to go back to before the first step.
    other = Case("Gamma")
    other.sites.lam = np.full_like(lam, -1e9)
    with pytest.raises(pac.NotPositiveDefiniteError):
        other.sampler.step(rng, other.start, {})


# -- elliptical slices ----------------------------------------------------------------------------


def gamma_from_ellipses(rng, factor, first):
    """One slice from a Gamma(3) variable, whose ellipses are of N(2, 2²)."""
    x, fresh = rng.gamma(3.0), rng.normal(2.0, 2.0)

    def residual(cos, sin):
        at = 2.0 + cos * (x - 2.0) + sin * (fresh - 2.0)
        return factor * (2.0 * np.log(at) - at + (at - 2.0) ** 2 / 8.0) if at > 0.0 else -np.inf

    cos, sin, value, trials = elliptical_slice(rng, residual, residual(1.0, 0.0), first)
    assert value == residual(cos, sin) > -np.inf
    assert trials >= 1
    return 2.0 + cos * (x - 2.0) + sin * (fresh - 2.0)


@pytest.mark.parametrize("first", [ANY, REVERSING])
@pytest.mark.parametrize(("factor", "exact"), [(1.0, True), (0.5, False)])
def test_an_elliptical_slice_keeps_a_density_with_a_support(factor, exact, first):
    rng = np.random.default_rng(3)
    found = [gamma_from_ellipses(rng, factor, first) for _ in range(20_000)]
    assert (stats.kstest(found, stats.gamma(3.0).cdf).pvalue > FALSE_ALARMS) == exact


def test_an_elliptical_slice_finds_the_support_or_stays():
    rng = np.random.default_rng(4)
    *_, value, _ = elliptical_slice(rng, lambda c, s: 0.0 if c > 0.9 else -np.inf, -np.inf)
    assert value == 0.0
    for value in (np.nan, np.inf):
        assert elliptical_slice(rng, lambda c, s, r=value: r, -1.0)[:3] == (1.0, 0.0, -1.0)


def gamma_from_trajectories(rng, factor, steps):
    """One trajectory from a Gamma(3) variable beside a log-Gamma(2) one, around N(2, 2²) and 0."""
    start = np.array([0.5 * (rng.gamma(3.0) - 2.0), np.log(rng.gamma(2.0))])

    def residual(nu):
        x = 2.0 + 2.0 * nu[0]
        if not x > 0.0:
            return -np.inf, np.full(2, np.nan)
        value = 2.0 * np.log(x) - x + 2.0 * nu[1] - np.exp(nu[1]) + 0.5 * (nu @ nu)
        # A gradient that is not quite that of the density costs acceptance alone.
        slope = np.array([4.0 / x - 2.0 + nu[0], 2.0 - np.exp(nu[1]) + 0.8 * nu[1]])
        return factor * value, slope

    nu, value, acceptance = trajectory(rng, residual, start, 0.35, steps)
    assert value == residual(nu)[0] > -np.inf
    return 2.0 + 2.0 * nu[0], np.exp(nu[1]), acceptance


@pytest.mark.parametrize(
    ("factor", "steps", "exact"), [(1.0, 1, True), (1.0, 6, True), (0.5, 6, False)]
)
def test_a_trajectory_keeps_a_density_with_a_support(factor, steps, exact):
    rng = np.random.default_rng(7)
    first, second, accepted = np.array(
        [gamma_from_trajectories(rng, factor, steps) for _ in range(3000)]
    ).T
    p_values = [stats.kstest(x, stats.gamma(a).cdf).pvalue for x, a in ((first, 3), (second, 2))]
    assert (min(p_values) > FALSE_ALARMS) == exact
    assert 0.5 < accepted.mean() < 0.99


def test_without_a_residual_a_trajectory_turns_and_accepts_all():
    rng, start = np.random.default_rng(8), np.array([3.0, 0.0, 0.0])
    found = [
        trajectory(rng, lambda nu: (0.0, np.zeros(3)), start, np.pi / 8, 7) for _ in range(400)
    ]
    assert min(acceptance for *_, acceptance in found) == pytest.approx(1.0)
    # Each point of the half without the start is as likely, before it or after it. p adds to ν[0].
    angles = np.pi / 8 * np.subtract.outer(np.arange(4), np.arange(4, 8))
    first = np.array([nu[0] for nu, *_ in found])
    square = 9.0 * np.cos(angles) ** 2 + np.sin(angles) ** 2
    for x, expected in ((first, 3.0 * np.cos(angles)), (first**2, square)):
        assert abs(x.mean() - expected.mean()) < 5.0 * x.std() / 20.0


def test_the_angle_of_trajectories_is_adapted_while_tuning():
    sites = HeldSites(pac.recognize(learned_kernel(DENSITIES["Poisson, log"])).model, ["y"], [])
    first = sites.angle
    for _ in range(5):
        sites.learn({}, trials=5.0, acceptance=0.95)
    assert sites.angle > 1.2 * first
    assert not sites.fit_badly  # the window has not ended


@pytest.mark.parametrize("kind", [EllipticalUpdate, MixedUpdate])
@pytest.mark.parametrize(("factor", "exact"), [(1.0, True), (0.5, False)])
def test_the_elliptical_update_keeps_its_target(kind, factor, exact):
    """A skewed target in two dimensions, from a centre and axes that do not fit."""
    update = kind(2)
    mixing = np.array([[1.0, 0.0], [0.7, 0.5]])
    update.state["centre"], update.state["axes"] = np.array([0.3, -1.0]), np.diag([0.5, 2.0])
    rng, inverse = np.random.default_rng(5), np.linalg.inv(mixing)

    def log_density(x):
        z = inverse @ x
        return factor * float(np.sum(2.0 * z - np.exp(z)))

    start = mixing @ np.log(rng.gamma(2.0, size=(2, 6000)))
    moved = np.array([update(log_density, x, rng, False) for x in start.T])
    z = np.linalg.solve(mixing, moved.T)
    p_values = [stats.kstest(np.exp(part), stats.gamma(2.0).cdf).pvalue for part in z]
    assert (min(p_values) > FALSE_ALARMS) == exact


def test_an_ellipse_moves_along_one_tail():
    """From far out along one axis, as a scale near zero is, while others are narrow."""
    update, rng, start = EllipticalUpdate(3), np.random.default_rng(9), np.array([-12.0, 0.5, 0.5])
    update.state["centre"], update.state["axes"] = np.zeros(3), np.eye(3)

    def log_density(x):
        return float(x[0] - np.exp(x[0]) - 0.5 * x[1:] @ x[1:])

    moved = [abs(update(log_density, start, rng, False)[0] + 12.0) for _ in range(200)]
    # With one scale of all axes the median is 0.4.
    assert np.median(moved) > 2.0


def test_axes_of_many_scales_are_not_chance():
    """Correlations of a window of few draws are shrunk; large ones stay."""
    rng, pair = np.random.default_rng(10), EllipticalUpdate(2)
    many, units = EllipticalUpdate(9), 10.0 ** np.arange(-4, 5)
    for z in rng.standard_normal((25, 9)):
        many._learn(z * units)
        pair._learn(np.array([z[0], 0.99 * z[0] + 0.14 * z[1]]))
    axes = many.state["axes"] / units[:, None]
    np.testing.assert_allclose(np.linalg.eigvalsh(axes @ axes.T), 1.0, atol=0.7)
    axes = pair.state["axes"]
    assert np.linalg.cond(axes @ axes.T) > 100.0


def test_an_update_of_no_entries_stays():
    """Of a vector of shape 0, such as the coefficients of no columns."""
    update, rng = MixedUpdate(0), np.random.default_rng(5)
    update.state["centre"], update.state["axes"] = np.empty(0), np.empty((0, 0))
    assert all(update(lambda x: 0.0, np.empty(0), rng, False).size == 0 for _ in range(20))


@pytest.mark.parametrize("unit", [1.0, 1e-5])
def test_the_elliptical_update_learns_centre_and_axes(unit):
    """Also from far outside, which the t distribution's tails lead back from, and in any units."""
    units, rng = np.array([1.0, unit]), np.random.default_rng(6)
    update, x, calls = EllipticalUpdate(2), np.array([300.0, -500.0]) * units, []
    cov = np.array([[4.0, 1.8], [1.8, 1.0]])
    normal = stats.multivariate_normal([10.0, -5.0], cov)

    def target(x):
        calls.append(x)
        return normal.logpdf(x / units)

    for _ in range(800):
        x = update(target, x, rng, True)
    axes = update.state["axes"] / units[:, None]
    np.testing.assert_allclose(update.state["centre"] / units, [10.0, -5.0], atol=1.0)
    np.testing.assert_allclose(axes @ axes.T, cov, rtol=0.5, atol=0.3)
    calls.clear()
    for _ in range(200):
        x = update(target, x, rng, False)
    # One at the present value, and hardly more than one on the ellipse.
    assert len(calls) < 200 * 2.5


# -- choosing sites -------------------------------------------------------------------------------


def learned_kernel(build):
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 5, 3)
        cov = 0.8**2 * pm.gp.cov.Matern32(1, ls=ls)
        build(0.4 + pm.gp.Latent(cov_func=cov).prior("f", X=np.array([[0.0], [0.4], [1.0]])))
    return model


def test_the_sites_are_the_variational_ones():
    model = learned_kernel(DENSITIES["Poisson, log"])
    fit = pac.fit("vgp", model=model, hyper="fixed", progressbar=False)
    recognition = pac.recognize(model)
    sites = HeldSites(recognition.model, ["y"], ["ls_log__"])
    sites.choose(recognition.start)
    rate = np.exp(0.4 + fit.mean["f"] + 0.5 * fit.std["f"] ** 2)
    np.testing.assert_allclose(sites.lam, rate, rtol=0.02)
    np.testing.assert_allclose(sites.h, COUNTS - rate + rate * (0.4 + fit.mean["f"]), atol=0.05)


def test_they_follow_the_typical_hyperparameters_of_tuning():
    recognition = pac.recognize(learned_kernel(DENSITIES["Poisson, log"]))
    sites, expected = (HeldSites(recognition.model, ["y"], ["ls_log__"]) for _ in range(2))
    values = np.linspace(-1.0, 2.0, 10)
    for value in values:
        sites.learn({**recognition.start, "ls_log__": np.array(value)}, trials=2.2)
    expected.choose({**recognition.start, "ls_log__": np.array(values.mean())})
    np.testing.assert_allclose(sites.lam, expected.lam, rtol=0.02)
    assert sites.slices == 9  # four times the evaluations a slice
    other = HeldSites(recognition.model, ["y"], ["ls_log__"])
    other.state = sites.state
    np.testing.assert_array_equal(other.h, sites.h)


@pytest.mark.parametrize("several", [True, False])
def test_sites_of_several_predictors_that_fit_badly_are_wide(several):
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 1, shape=3), pm.Normal("b", 0, 1, shape=3)
        psi = pm.math.sigmoid(b) if several else 0.9
        pm.ZeroInflatedPoisson("y", psi, pm.math.exp(a), observed=[0, 1, 4])
    recognition = pac.recognize(model)
    narrow, wide = (HeldSites(recognition.model, ["y"], []) for _ in range(2))
    for step in range(150):
        for sites, last in ((narrow, 1.8), (wide, 2.2)):
            # Chosen after 10, 30, 70 and 150 steps, all but the last time for too few.
            sites.learn(recognition.start, trials=last if step >= 70 else 2.2)
    (h, lam), (wide_h, wide_lam) = narrow.of("y"), wide.of("y")
    share, mean = 0.1 if several else 1.0, narrow.mean_of("y")
    np.testing.assert_allclose(wide_lam, share * lam)
    slope = h - np.einsum("pqn,qn->pn", lam, mean)
    np.testing.assert_allclose(wide_h - np.einsum("pqn,qn->pn", wide_lam, mean), slope, atol=1e-12)
    assert wide.state["_share"] == share


def test_a_copy_chooses_the_same_sites():
    recognition = pac.recognize(learned_kernel(DENSITIES["Poisson, log"]))
    sites = HeldSites(recognition.model, ["y"], [])
    copy = cloudpickle.loads(cloudpickle.dumps(sites))
    for chosen in (sites, copy):
        chosen.choose(recognition.start)
    np.testing.assert_array_equal(copy.lam, sites.lam)
    np.testing.assert_array_equal(copy.h, sites.h)


def test_negative_precisions_are_cut_and_the_mean_is_kept(monkeypatch):
    # These sites miss some of the tail, so that the chain would take none.
    monkeypatch.setattr(held_sites, "missed_share", lambda *_: 0.0)
    case = Case("Student-t")
    with_signs = pac.fit("vgp", model=case.model, progressbar=False)
    assert with_signs.lam.min() < 0.0 <= case.sites.lam.min()
    found = (MEAN / STD**2 + case.sites.h) / (1 / STD**2 + case.sites.lam)
    np.testing.assert_allclose(found, with_signs.mean["f"], atol=0.02)


@pytest.mark.parametrize("moving", [["sigma_log__"], []])
def test_sites_follow_parameters_that_move_given_the_latents(moving):
    """Those of a normal density are the density at any parameter."""
    with pm.Model() as model:
        sigma, f = pm.HalfNormal("sigma"), pm.Normal("f", shape=3)
        pm.Normal("y", f, sigma, observed=POSITIVE)
    recognition = pac.recognize(model)
    (site,), point = recognition.model.sites, recognition.start
    sites = HeldSites(recognition.model, ["y"], [], moving=moving)
    sites.choose(point)
    how = Held(site, sites)
    for shift in (0.0, 0.3, -0.5):
        moved = {**point, "sigma_log__": point["sigma_log__"] + shift}
        var = np.exp(2.0 * moved["sigma_log__"] if moving else 2.0 * point["sigma_log__"])
        h, lam = how.draw_auxiliary(None, POSITIVE, np.empty(0), site.params(moved), 0)
        np.testing.assert_allclose(h[0], POSITIVE / var, rtol=1e-9)
        np.testing.assert_allclose(lam[0, 0], 1.0 / var, rtol=1e-9)
        assert how.sites() is how.draw_auxiliary(None, POSITIVE, np.empty(0), how._at[1], 0)


def test_a_predictor_that_no_latent_enters_has_no_site():
    """That of a density with a kink would have any size."""
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=2)
        X = np.array([[1.0, 0.5], [0.0, 0.0], [0.3, -1.0]])
        pm.Laplace("y", pm.math.dot(X, b) + 1e9, 1.0, observed=POSITIVE + 1e9)
    recognition = pac.recognize(model)
    sites = HeldSites(recognition.model, ["y"], [])
    sites.choose(recognition.start)
    h, lam = sites.chosen
    assert (h[1], lam[1]) == (0.0, 0.0)
    assert (lam[[0, 2]] > 0.1).all()


def test_what_all_classes_have_in_common_is_left_out_however_large():
    """The coordinates of the latents are as many at every θ, as ν is kept from one to the next."""
    x, labels = np.linspace(-1.0, 1.0, 45), np.arange(45) % 3
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern32(1, ls=1.0))
        f, g = (gp.prior(name, X=x[:, None]) for name in "fg")
        b, common = pm.Normal("b", 0, 1), pm.HalfNormal("common", 1)
        eta = pm.math.stack([f, g, b + 0.0 * x], axis=-1)
        pm.Categorical("y", logit_p=eta - common, observed=labels)
    step = pac.AugmentedGibbs(model=model)
    step.setup_chain(np.random.default_rng(0), 5, 0)
    point, _ = step.step(model.initial_point())
    (part,) = step._sampler.parts
    sizes = []
    for value in (0.0, 5.0, 12.0, 20.0):
        prior = part.priors.at({**point, "common_log__": np.array(value)})
        sizes.append(part.solver.posterior(prior, part.sites_at(prior)).size)
    assert sizes == [45 + 45 + 1 + 2 * 45] * 4


def test_sites_of_steps_are_as_wide_as_the_posterior():
    """A common shift of all predictors, which changes no density, has its prior's variance."""
    labels = np.array([0, 1, 2, 1])
    with pm.Model() as model:
        pac.RobustMax("y", pm.Normal("F", 0, 1, shape=(4, 3)), epsilon=0.01, observed=labels)
    recognition = pac.recognize(model)
    sites = HeldSites(recognition.model, ["y"], [])
    sites.choose(recognition.start)
    h, lam = sites.of("y")
    cov = np.linalg.inv(np.eye(3) + np.moveaxis(lam, -1, 0))
    np.testing.assert_allclose(cov.sum(axis=(1, 2)), 3.0, rtol=1e-9)
    mean = np.einsum("npq,qn->np", cov, h)
    draws = np.random.default_rng(0).normal(size=(200_000, 3))
    for label, m, V in zip(labels, mean, cov, strict=True):
        weights = np.where(draws.argmax(axis=1) == label, 0.99, 0.005)
        exact = np.average(draws, axis=0, weights=weights)
        np.testing.assert_allclose(m, exact, atol=0.05)
        np.testing.assert_allclose(V, np.cov(draws.T, aweights=weights), atol=0.05)


def mixture_of_eight():
    with pm.Model() as model:
        levels = pm.Normal("g", np.linspace(-3.0, 3.0, 8), 0.5, shape=8)
        slopes = pm.Normal("d", 0, 0.1, shape=8)
        mu = levels + np.linspace(-1.0, 1.0, 5)[:, None] * slopes
        pm.NormalMixture("y", np.full(8, 0.125), mu, 0.5, observed=np.linspace(-2.0, 2.0, 5))
    return model


def test_sites_of_eight_predictors_take_few_nodes():
    """A product of rules would take 25⁸ for each observation."""
    recognition = pac.recognize(mixture_of_eight())
    sites = HeldSites(recognition.model, held_names(recognition.model, "held"), ())
    sites.choose(recognition.start)
    _, lam = sites.of("y")
    assert lam.shape == (8, 8, 5)
    # What each observation tells about its component, of precision 4 if it were known.
    largest = np.linalg.eigvalsh(np.moveaxis(lam, -1, 0))[:, -1]
    assert (largest > 0.5).all()
    assert (largest < 4.5).all()


def test_bounds_of_a_few_digits_are_not_compared_to_more(monkeypatch):
    """Or steps towards the sites would be halved until the error of quadrature allows them."""
    x, rng = np.linspace(-1.0, 1.0, 20), np.random.default_rng(0)
    shares = rng.dirichlet([4.0, 2.0, 1.0], size=20)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 1, shape=3), pm.Normal("b", 0, 1, shape=3)
        eta = a + x[:, None] * b
        pm.DirichletMultinomial("y", n=50, a=exp(eta), observed=rng.multinomial(50, shares))
    recognition = pac.recognize(model)
    sites, runs = HeldSites(recognition.model, ["y"], ()), []
    monkeypatch.setattr(
        held_sites, "climb", lambda *args, **kwargs: runs.append(climb(*args, **kwargs)) or runs[-1]
    )
    for moved in (0.0, 1e-3, 2e-3):
        start = recognition.start
        sites.choose({**start, "a": start["a"] + moved})
    assert all(run.converged for run in runs)
    assert sum(step.evaluations for run in runs for step in run.iterations) < 60


def test_a_fit_refuses_eight_predictors():
    with pytest.raises(
        pac.AugmentationError, match=r"mixture of Normal: expected at most 4.*found 8"
    ):
        pac.fit("vgp", model=mixture_of_eight(), hyper="fixed", progressbar=False)


def test_sites_of_bounded_coefficients_do_not_depend_on_the_unit():
    """Unit precisions are too narrow to begin with where values are millions."""
    found, evidences = [], []
    for unit in (1.0, 1e7):
        with pm.Model() as model:
            b = pm.Normal("b", 0.0, 0.6 * unit)
            beta = pm.Uniform("beta", -2.0 * unit, 3.0 * unit, shape=2)
            eta = b * np.array([0.25, -0.34]) - 0.6 * beta
            pm.Normal("y", eta, 0.7 * unit, observed=np.array([-0.5, 0.4]) * unit)
        step = pac.AugmentedGibbs(model=model)
        step.setup_chain(np.random.default_rng(1), 10, 0)
        step.step(model.initial_point())
        found.append(np.concatenate([step._sites.h * unit, step._sites.lam * unit**2]))
        fit = pac.fit("ep", model=model, progressbar=False)
        assert fit.converged
        evidences.append(fit.log_evidence + 2.0 * np.log(unit))
    np.testing.assert_allclose(found[1], found[0], rtol=0.02, atol=0.02)
    np.testing.assert_allclose(evidences[1], evidences[0], atol=1e-5)


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_mode_of_little_mass_does_not_hold_the_chain(monkeypatch, is_seen):
    """A Wald density falls to a plateau for large means, where most of the posterior is.

    Negative control: sites of the variational approximation, which are those of the narrow mode.
    """
    if not is_seen:
        monkeypatch.setattr(held_sites, "missed_share", lambda *_: 0.0)
    with pm.Model() as model:
        b = pm.Normal("b", 0.0, 60.0)
        pm.Wald("y", mu=exp(b), lam=4.0, observed=np.ones(2))
    draws = pac.sample(
        3_000, tune=300, chains=1, model=model, random_seed=1, progressbar=False
    ).posterior["b"].to_numpy()[0]  # fmt: skip
    if not is_seen:
        assert draws.max() < 5.0
        return
    grid = np.linspace(-20.0, 600.0, 1_000_001)
    weight = np.exp(-4.0 * np.expm1(-grid) ** 2 - 0.5 * (grid / 60.0) ** 2)
    for of in (lambda x: np.where(x > 5.0, 1.0, 0.0), lambda x: x):
        expected, found = np.sum(weight * of(grid)) / weight.sum(), of(draws)
        size = float(az.ess(found[None]))
        assert size > 300
        assert abs(found.mean() - expected) < 4.5 * found.std() / np.sqrt(size)


def test_maps_and_lattices_stay_with_their_sparse_factor():
    """Values far out that are refused in tuning lead to dense matrices where these are cheap."""
    line = np.arange(12)
    W = sparse.lil_array((144, 144))
    for i, j in itertools.product(line, line[:-1]):
        for a, b in ((12 * i + j, 12 * i + j + 1), (12 * j + i, 12 * j + i + 12)):
            W[a, b] = W[b, a] = 1.0
    with pm.Model() as areas:
        shared = pac.ICAR("shared", W=W.tocsr(), scaled=True)
        alone = pm.Normal("alone", 0, pm.HalfNormal("sd"), shape=144)
        pm.Poisson("y", pm.math.exp(shared + alone), observed=np.ones(144))
    with pm.Model() as lattice:
        ls = pm.InverseGamma("ls", 4, 8)
        field = pac.MaternField("field", ls, 1.0, nu=1, grid=(12, 12), padding=6.0)
        pm.Poisson("y", pm.math.exp(field[:144:2]), observed=np.ones(72))
    for model in (areas, lattice):
        found = pac.recognize(model)
        priors = LatentPriors(found.model, [found.start])
        solver, n = solver_of_step(found.model.blocks, priors.groups), found.model.n_rows
        solver.state = {**solver.state, "_asked": 100, "_refused": 50}
        sites = priors.groups.sites(np.zeros(n), np.ones(n), np.zeros(n))
        posterior = solver.posterior(priors.at(found.start), sites, settle=True)
        assert isinstance(posterior, PrecisionPosterior)
        assert isinstance(solver.preferred, PrecisionSolver)


def test_far_out_sites_do_not_follow_until_no_digits_are_left(monkeypatch):
    with pm.Model() as model:
        exposure, a = pm.Gamma("exposure", 2.0, 1.0), pm.Normal("a", 0.0, 1.0, shape=4)
        pm.Poisson(
            "y", exposure * np.array([1.0, 0.0, 1, 1]) * pm.math.exp(a), observed=[1, 0, 3, 2]
        )
    step = pac.AugmentedGibbs(model=model, rng=1)
    step.setup_chain(1, 0, 1)
    point, _ = step.step(model.initial_point())
    (part,) = step._sampler.parts
    assert [h.name for h in step.plan.followed] == ["exposure"]
    far = {**point, "exposure_log__": np.array(35.0)}
    assert np.isfinite(part.given_sites(far, alone=True).posterior.log_normalizer)
    monkeypatch.setattr(followed, "LARGEST_CHANGE", np.inf)
    with pytest.raises(pac.UncertainEvidenceError):
        part.given_sites({**far, "exposure_log__": np.array(35.1)}, alone=True)


def test_the_dispersion_of_counts_is_not_followed():
    """It shifts predictors: α had 27 effective draws of 3 000 when sites followed it."""
    rng, group = np.random.default_rng(0), np.arange(36) % 12
    with pm.Model():
        u = pm.Normal("u", pm.Normal("b", 0.0, 2.0), pm.HalfNormal("s", 1.0), shape=12)
        alpha, mu = pm.Gamma("alpha", 2.0, 0.1), np.exp(1.5 + 0.5 * rng.normal(size=12)[group])
        observed = rng.poisson(rng.gamma(5.0, mu / 5.0))
        pm.NegativeBinomial("y", mu=pm.math.exp(u[group]), alpha=alpha, observed=observed)
        draws = pac.sample(
            1000, tune=300, chains=1, cores=1, random_seed=1, progressbar=False
        )["posterior"]["alpha"]  # fmt: skip
    assert float(az.ess(draws)) > 150


def test_uniform_outcomes_of_a_learned_width_have_sites():
    """Given w groups are independent, each between its walls: beside quadrature of w."""
    rng, group = np.random.default_rng(4), np.arange(60) % 6
    y = 3.0 * rng.normal(size=6)[group] + rng.uniform(-1.0, 1.0, 60)
    with pm.Model():
        w, u = pm.HalfNormal("w", 2.0), pm.Normal("u", 0.0, 3.0, shape=6)
        pm.Uniform("y", u[group] - w, u[group] + w, observed=y)
        draws = pac.sample(
            1500, tune=200, chains=2, cores=1, random_seed=2, progressbar=False
        )["posterior"]["w"]  # fmt: skip
    low, high = (np.array([f(y[group == g]) for g in range(6)]) for f in (np.min, np.max))
    grid = np.linspace(0.5 * (high - low).max(), 4.0, 8001)[1:]
    flat = stats.halfnorm.logpdf(grid, scale=2.0) - y.size * np.log(grid)
    below, above = (
        stats.norm.cdf(x, scale=3.0) for x in (high - grid[:, None], low + grid[:, None])
    )
    effective = float(az.ess(draws))
    assert effective > 100
    error = float(draws.std()) / np.sqrt(effective)
    exact, wrong = (
        np.average(grid, weights=np.exp(log_p - log_p.max()))
        for log_p in (flat + np.log(above - below).sum(axis=1), flat)
    )
    assert abs(float(draws.mean()) - exact) < 4.0 * error
    assert abs(float(draws.mean()) - wrong) > 5.0 * error
