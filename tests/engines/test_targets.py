"""What each move of the step is given to sample from, against dense algebra and PyMC.

The updates of a step are the caller's, so a test can look at the density they are handed.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pymc as pm
import pytest
from scipy.stats import multivariate_normal

import pymc_augconj as pac
from pymc_augconj.api.updates import GradientUpdate, SliceUpdate
from pymc_augconj.engines.gibbs.moves.latents import OVERRELAXATION, draw_gaussian
from pymc_augconj.engines.gibbs.sampler import GibbsSampler
from pymc_augconj.engines.gibbs.state import PointTarget
from pymc_augconj.latents.by_observations import ObservationSolver
from pymc_augconj.latents.by_weights import WeightSolver
from pymc_augconj.latents.rows import RowGroups, SiteSum
from pymc_augconj.plan import make_plan
from pymc_augconj.python_mode import python_mode

RNG = np.random.default_rng(4)
X = np.linspace(0.0, 1.0, 6)[:, None]
X_MANY = RNG.normal(size=(6, 6))
DESIGN = RNG.normal(size=(12, 2))
GROUP = np.array([0, 1, 2, 0, 1, 2, 2, 1, 0])
REALS, COUNTS, BINARY = RNG.normal(size=12), RNG.poisson(2.0, 12), RNG.integers(0, 2, 12)


def latent(mean, cov):
    return pm.gp.Latent(mean_func=mean, cov_func=cov)


def gp_prior(name, X, ls, eta=1.0, **kwargs):
    cov = eta**2 * pm.gp.cov.ExpQuad(X.shape[1], ls=ls)
    return pm.gp.Latent(cov_func=cov).prior(name, X=X, **kwargs)


def whitened():
    ls, eta, b0 = pm.InverseGamma("ls", 5, 3), pm.HalfNormal("eta", 1), pm.Normal("b0", 0, 2)
    f = gp_prior("f", X, ls, eta)
    pm.Bernoulli("y", logit_p=b0 + f, observed=BINARY[:6])


def centred():
    ls, c = pm.InverseGamma("ls", 5, 3), pm.Normal("c", 1, 1)
    nu, sigma = pm.Gamma("nu", 2, 0.1), pm.HalfNormal("sigma", 1)
    gp = latent(pm.gp.mean.Linear(coeffs=c**2), pm.gp.cov.Matern52(1, ls=ls))
    f = gp.prior("f", X=X, reparameterize=False)
    pm.StudentT("y", nu=nu, mu=f, sigma=sigma, observed=REALS[:6])


def hierarchy():
    mu, tau = pm.Normal("mu", 1, 2), pm.HalfNormal("tau", 1)
    a, alpha = pm.Normal("a", mu, tau, shape=3), pm.Gamma("alpha", 2, 1)
    pm.NegativeBinomial("y", mu=pm.math.exp(a[GROUP]), alpha=alpha, observed=COUNTS[:9])


def weights():
    tau, s = pm.HalfNormal("tau", 1), pm.Gamma("s", 3, 3)
    beta, b0 = pm.Normal("beta", 0, tau, shape=2), pm.Normal("b0", 0, 1)
    pm.Laplace("y", mu=b0 + s * pm.math.dot(DESIGN, beta), b=0.7, observed=REALS)


def collapsed_noise():
    ls, sigma = pm.InverseGamma("ls", 5, 3), pm.HalfNormal("sigma", 1)
    f = gp_prior("f", X, ls)
    pm.Normal("y", f, sigma, observed=REALS[:6])
    pm.Binomial("y2", n=9, logit_p=f[np.array([0, 3, 3])], observed=COUNTS[:3])


def several_noises():
    """Noise levels that scale all sites, or not all alike, and an offset that moves."""
    s, t, tau = pm.HalfNormal("s", 1), pm.HalfNormal("t", 1), pm.HalfNormal("tau", 1)
    b = pm.Normal("b", 0, tau, shape=3)
    pm.Normal("y", b[GROUP[:5]] + t, s, observed=REALS[:5])
    pm.LogNormal("y2", b[GROUP[:4]], t, observed=np.exp(REALS[:4]))
    pm.Normal("y3", 2.0 * b, s * np.array([0.5, 1.0, 3.0]), observed=REALS[:3])
    pm.Binomial("y4", n=9, logit_p=b, observed=COUNTS[:3])


def both_forms():
    ls, s = pm.InverseGamma("ls", 5, 3, shape=2), pm.Gamma("s", 3, 3)
    f = gp_prior("f1", X, ls[0]) + s * gp_prior("f2", X, ls[1], reparameterize=False)
    pm.Logistic("y", mu=f, s=0.5, observed=REALS[:6])


def two_outputs():
    ls, s = pm.InverseGamma("ls", 5, 3), pm.Gamma("s", 3, 3)
    f = gp_prior("f", X[:3], ls, n_outputs=2)
    pm.Bernoulli("y", logit_p=f[0] - s * f[1], observed=BINARY[:3])


def length_scales():
    ls, b1 = pm.InverseGamma("ls", 5, 5, shape=6), pm.Gamma("b1", 2, 2)
    gp = latent(pm.gp.mean.Constant(b1), pm.gp.cov.ExpQuad(6, ls=ls))
    f = gp.prior("f", X=X_MANY)
    pm.Bernoulli("y", logit_p=f[np.array([0, 1, 2, 3, 4, 5, 0])], observed=BINARY[:7])


def same_scale():
    s = pm.Gamma("s", 3, 3)
    f = pm.Normal("f", -s, s, shape=3)
    g = gp_prior("g", X[:3], 0.4, s, reparameterize=False)
    pm.StudentT("y", nu=4, mu=(f + g)[GROUP[:5]], sigma=s, observed=REALS[:5])


def moving_mean():
    s, t = pm.Gamma("s", 2, 1.5), pm.HalfNormal("t", 1)
    f = pm.Normal("f", -2.0 * s, 0.5, shape=2)
    g = gp_prior("g", X[:2], 0.4)
    pm.Laplace("y", mu=t * f + g, b=s, observed=REALS[:2])


COLLAPSED = [
    whitened,
    centred,
    hierarchy,
    weights,
    collapsed_noise,
    several_noises,
    both_forms,
    two_outputs,
    length_scales,
    moving_mean,
]
by_name = pytest.mark.parametrize("build", COLLAPSED, ids=lambda build: build.__name__)


@cache
def read(build):
    """Return a model and what it was recognised as, neither of which a sampler changes."""
    with pm.Model() as model:
        build()
    return model, pac.recognize(model)


class Case:
    """A sampler at a point drawn from the prior."""

    def __init__(self, build, seed=0):
        self.rng = np.random.default_rng(seed)
        self.pymc, self.recognition = read(build)
        self.model = self.recognition.model
        self.plan = make_plan(self.model)
        self.point = self.moved(self.recognition.start)
        self.sampler = self.new_sampler()
        self.point = self.sampler.dispersed(self.rng, self.point)

    def new_sampler(self) -> GibbsSampler:
        return GibbsSampler(self.model, self.plan, self.point, self.recognition.probes)

    def moved(self, point):
        """Return ``point`` with its hyperparameters moved at random."""
        new = dict(point)
        for h in self.model.hyperparameters:
            new[h.value_name] = point[h.value_name] + 0.4 * self.rng.standard_normal(h.shape)
        return new

    def handed(self, move, evaluate):
        """Run a step in which only ``move`` is looked at, and nothing is moved."""
        found = []

        def look(target, x, rng):
            found.append(evaluate(target, x))
            return x

        def stay(target, x, rng):
            return x

        moves = ("prior_only", "joint", "likelihood", "collapsed")
        updates = {m: look if m == move else stay for m in moves}
        self.sampler.step(self.rng, self.point, updates)
        return found[0]

    def with_values(self, move, x):
        """Return the point with the flat value ``x`` of the hyperparameters of ``move``."""
        new, start = dict(self.point), 0
        for h in getattr(self.plan, move):
            new[h.value_name] = x[start : start + h.size].reshape(h.shape)
            start += h.size
        return new

    def predictor_moments(self, point):
        """Return prior mean and covariance of η, from PyMC's own graph of it."""
        blocks = self.model.blocks
        zeros = {b.name: np.zeros(b.total_size) for b in blocks}
        mean = np.array(self.model.predictor(point, zeros))
        cov = np.zeros((mean.size, mean.size))
        for b in blocks:
            scale = np.array(b.scale(point))
            S = (
                np.diag(scale)
                if b.kind == "diagonal"
                else np.kron(np.eye(b.copies), _cholesky(scale))
            )
            columns = [
                np.array(self.model.predictor(point, {**zeros, b.name: column})) - mean
                for column in S.T
            ]
            cov += np.transpose(columns) @ np.array(columns)
        return mean, cov

    def record_sites(self, monkeypatch):
        """Return a list to which the step appends the stacked sites it uses, and their origin."""
        found = []
        (part,) = self.sampler.parts
        at = part.sites.at

        def recorded(groups, offset):
            found.append((*part.sites.stacked, part.sites.origin))
            return at(groups, offset)

        monkeypatch.setattr(part.sites, "at", recorded)
        return found

    def random_sites(self):
        N = self.model.n_rows
        return self.rng.normal(size=N), self.rng.gamma(2.0, 1.0, size=N)


def _cholesky(K):
    # What PyMC's own model factorises, up to a rounding error that its kernels' jitter exceeds.
    return np.linalg.cholesky(K + 1e-14 * np.eye(len(K)))


def dense_log_evidence(mean, cov, h, lam):
    """Return log ∫ exp(hη − ½ λη²) N(η | m, C) dη by the determinant lemma, all matrices formed."""
    M = np.eye(h.size) + lam[:, None] * cov
    r = h - lam * mean
    log_det = np.linalg.slogdet(M)[1]
    return h @ mean - 0.5 * lam @ mean**2 + 0.5 * r @ cov @ np.linalg.solve(M, r) - 0.5 * log_det


def test_the_dense_evidence_is_a_normal_density():
    # Sites of normal observations: the evidence is the density of y, up to theirs at η = 0.
    rng = np.random.default_rng(1)
    y, mean, noise = rng.normal(size=4), rng.normal(size=4), rng.gamma(2.0, size=4)
    root = rng.normal(size=(4, 4))
    cov = root @ root.T
    expected = multivariate_normal(mean, cov + np.diag(noise)).logpdf(y)
    base = -0.5 * np.sum(y**2 / noise + np.log(2 * np.pi * noise))
    found = base + dense_log_evidence(mean, cov, y / noise, 1.0 / noise)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@by_name
def test_the_collapsed_density_is_prior_times_evidence(build, monkeypatch):
    case = Case(build)
    sites = case.record_sites(monkeypatch)
    expected, found, gradients = [], [], []

    def evaluate(target, x):
        for scale in (0.0, 0.2, 0.5):
            at = x + scale * case.rng.standard_normal(x.size)
            found.append(target(at))
            point = case.with_values("collapsed", at)
            total = float(case.model.log_prior(point))
            h, lam, origin = sites[-1]
            for site in case.model.sites:
                if not site.likelihood.has_auxiliary:
                    y, params = site.y(point), site.params(point)
                    total += site.likelihood.log_density(y, site.select(origin), params).sum()
            mean, cov = case.predictor_moments(point)
            total += dense_log_evidence(mean - origin, cov, h, lam)
            expected.append(total)
            gradients.append((target, at))

    case.handed("collapsed", evaluate)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-6)


@by_name
def test_the_gradient_of_the_collapsed_density(build):
    case = Case(build)
    step_options = {"model": case.pymc, "hyper_sampler": "nuts"}
    if build in (weights, collapsed_noise, several_noises, both_forms, two_outputs, moving_mean):
        # Hyperparameters in a design, or in the sites themselves.
        with pytest.raises(
            ValueError, match="hyper_sampler='nuts': expected hyperparameters that enter"
        ):
            pac.AugmentedGibbs(**step_options)
        return

    def evaluate(target, x):
        at = x + 0.1 * case.rng.standard_normal(x.size)
        value, gradient = target.value_and_gradient(at)
        np.testing.assert_allclose(value, target(at), rtol=1e-10)
        difference = []
        for i in range(x.size):
            move = np.zeros(x.size)
            move[i] = 1e-4
            difference.append((target(at + move) - target(at - move)) / 2e-4)
        np.testing.assert_allclose(gradient, difference, rtol=1e-4, atol=1e-5)

    case.handed("collapsed", evaluate)


@pytest.mark.parametrize("build", [centred, hierarchy, moving_mean], ids=lambda b: b.__name__)
def test_the_density_of_likelihood_parameters_is_pymcs(build):
    """Given the innovations of the latents, that is: the values move with their means."""
    case = Case(build)
    log_density = case.pymc.compile_logp(mode=python_mode())
    innovations = case.sampler.chain.innovations(case.point)

    def evaluate(target, x):
        points = [x + scale * case.rng.standard_normal(x.size) for scale in (0.0, 0.3, 0.6)]
        expected = []
        for at in points:
            point = case.with_values("likelihood", at)
            entries = [np.ravel(case.point[b.value_name]) for b in case.model.blocks]
            expected.append(
                float(log_density(case.sampler.chain.point_of(point, innovations, entries)))
            )
        np.testing.assert_allclose(
            np.diff([target(at) for at in points]), np.diff(expected), rtol=1e-8
        )

    case.handed("likelihood", evaluate)


def test_the_joint_density_is_pymcs_given_the_whitened_latents():
    case = Case(same_scale)
    log_density = case.pymc.compile_logp(mode=python_mode())
    prior = case.sampler.priors.at(case.point)
    innovations = case.sampler.chain.innovations(case.point)
    v = [b.unscale(u) for b, u in zip(prior.blocks, innovations, strict=True)]

    def evaluate(target, x):
        points = [x + scale * case.rng.standard_normal(x.size) for scale in (0.0, 0.3, 0.6)]
        expected = []
        for at in points:
            point = case.with_values("joint", at)
            now = case.sampler.priors.at(point)
            u = [b.scale(w) for b, w in zip(now.blocks, v, strict=True)]
            volume = sum(np.linalg.slogdet(_dense_scale(b))[1] for b in now.blocks)
            expected.append(float(log_density(case.sampler.chain.point_of(point, u, v))) + volume)
        np.testing.assert_allclose(
            np.diff([target(at) for at in points]), np.diff(expected), rtol=1e-7
        )

    case.handed("joint", evaluate)


def test_latents_follow_their_mean_when_a_likelihood_parameter_moves(monkeypatch):
    # The auxiliary variables must be drawn given η at the new parameter.
    case = Case(moving_mean)
    (site,) = case.model.sites
    before = case.sampler.chain.innovations(case.point)
    seen = {}

    def draw(rng, y, eta, params, *args, **kwargs):
        (seen["eta"],) = np.array(eta)
        return original(rng, y, eta, params, *args, **kwargs)

    original = site.likelihood.draw_auxiliary
    monkeypatch.setattr(site.likelihood, "draw_auxiliary", draw)
    updates = {"likelihood": lambda target, x, rng: x + 1.0, "collapsed": lambda target, x, rng: x}
    new, _ = case.sampler.step(case.rng, case.point, updates)
    assert new["s_log__"] == case.point["s_log__"] + 1.0
    named = dict(zip([b.name for b in case.model.blocks], before, strict=True))
    moved = {**case.point, "s_log__": new["s_log__"]}
    np.testing.assert_allclose(seen["eta"], case.model.predictor(moved, named), rtol=1e-10)


@pytest.mark.parametrize("kind", [SliceUpdate, GradientUpdate])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_updates_begin_and_end_where_the_density_is_finite(kind, value):
    case = Case(hierarchy)
    (alpha,) = case.plan.likelihood

    def log_density(point):
        x = float(point[alpha.value_name][()])
        return -0.5 * x**2 if x > 0.0 else value

    def gradient(point):
        return log_density(point), {alpha.value_name: -point[alpha.value_name]}

    update, x = kind(1), np.array([0.1])
    for _ in range(30):
        x = update(PointTarget(case.point, (alpha,), log_density, gradient), x, case.rng, True)
        assert x[0] > 0.0
    target = PointTarget(case.point, (alpha,), log_density, gradient)
    with pytest.raises(pac.AugmentationError, match=f"^alpha: expected a finite .* found {value}"):
        update(target, np.array([-0.1]), case.rng, True)


# -- both spaces, merged rows ---------------------------------------------------------------------


class ScriptedNormals:
    """A generator whose standard normals are given, in order."""

    def __init__(self, values):
        self.values, self.used = values, 0

    def standard_normal(self, size):
        self.used += size
        return self.values[self.used - size : self.used].copy()


def law_of_draw(solver, prior, sites, current=None):
    """Return the mean of the whitened draw, and the matrix that the noise enters with."""
    N, D = sites.h.size, sum(b.block.total_size for b in prior.blocks)

    current = None if current is None else np.concatenate(current)

    def of_noise(noise):
        rng = ScriptedNormals(noise)
        return draw_gaussian(solver.posterior(prior, sites), rng, current), rng.used

    mean, used = of_noise(np.zeros(N + D))
    return mean, np.transpose([of_noise(e)[0] - mean for e in np.eye(N + D)[:used]])


@by_name
def test_both_spaces_condition_alike(build):
    case = Case(build)
    sampler = case.sampler
    prior = sampler.priors.at(case.point).factorized()
    h, lam = case.random_sites()
    sites = SiteSum((sampler.priors.groups.merge(h, lam, prior.offset),))
    given = case.model.blocks, sampler.priors.groups
    solvers = ObservationSolver(*given), WeightSolver(*given)
    expected = dense_log_evidence(*case.predictor_moments(case.point), h, lam)
    A = np.hstack([A.dense() for A in prior.maps])
    S = [_dense_scale(b) for b in prior.blocks]
    Phi = A @ _block_diagonal(S)
    precision = np.eye(Phi.shape[1]) + Phi.T @ (sites.lam[:, None] * Phi)
    cov = np.linalg.inv(precision)
    for solver in solvers:
        found = solver.posterior(prior, sites).log_normalizer
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)
        mean, root = law_of_draw(solver, prior, sites)
        np.testing.assert_allclose(mean, cov @ (Phi.T @ sites.h), atol=1e-7)
        np.testing.assert_allclose(root @ root.T, cov, atol=1e-7)


@by_name
def test_standard_normals_of_given_latents(build):
    """T(ν) = v, and ν is N(0, I) where v is a draw from the posterior: both as matrices."""
    case = Case(build)
    prior = case.sampler.priors.at(case.point).factorized()
    merged = case.sampler.priors.groups.merge(*case.random_sites(), prior.offset)
    merged.lam[0] = 0.0
    given = case.model.blocks, case.sampler.priors.groups
    solvers = ObservationSolver(*given), WeightSolver(*given)
    for solver in solvers:
        posterior = solver.posterior(prior, SiteSum((merged,)))

        def redrawn(nu, noise, posterior=posterior):
            return posterior.solve(ScriptedNormals(noise), posterior.apply(nu))

        size = posterior.size
        centre, zero = redrawn(np.zeros(size), np.zeros(size)), np.zeros(size)
        np.testing.assert_allclose(posterior.apply(zero), posterior.latent_mean, atol=1e-9)
        np.testing.assert_allclose(centre, 0.0, atol=1e-8)
        of_v, of_noise = (
            np.transpose([redrawn(*pair) for pair in pairs])
            for pairs in (((e, zero) for e in np.eye(size)), ((zero, e) for e in np.eye(size)))
        )
        np.testing.assert_allclose(of_v @ of_v.T + of_noise @ of_noise.T, np.eye(size), atol=1e-7)
        nu, noise = case.rng.standard_normal((2, size))
        slope = case.rng.standard_normal(posterior.latent_mean.size)
        pulled = posterior.pull(slope)
        moved = [slope @ (posterior.apply(e) - posterior.latent_mean) for e in np.eye(size)]
        np.testing.assert_allclose(pulled, moved, atol=1e-8)
        v = posterior.apply(nu)
        np.testing.assert_allclose(posterior.apply(redrawn(nu, noise)), v, atol=1e-7)


@by_name
def test_over_relaxation_keeps_the_law(build):
    case = Case(build)
    prior = case.sampler.priors.at(case.point).factorized()
    sites = SiteSum((case.sampler.priors.groups.merge(*case.random_sites(), prior.offset),))
    given = case.model.blocks, case.sampler.priors.groups
    sizes = [b.block.total_size for b in prior.blocks]
    edges = list(pairwise(np.concatenate([[0], np.cumsum(sizes)])))
    for solver in ObservationSolver(*given), WeightSolver(*given):
        mean, root = law_of_draw(solver, prior, sites)
        start = mean + case.rng.standard_normal(mean.size)
        parts = [start[a:b] for a, b in edges]
        moved, moved_root = law_of_draw(solver, prior, sites, parts)
        # moved = μ − a (v − μ), and what is added makes up for the variance that −a leaves out.
        np.testing.assert_allclose(moved, mean - OVERRELAXATION * (start - mean), atol=1e-8)
        cov = root @ root.T
        kept = OVERRELAXATION**2 * cov + moved_root @ moved_root.T
        np.testing.assert_allclose(kept, cov, atol=1e-8)


@pytest.mark.parametrize("build", [hierarchy, collapsed_noise], ids=lambda build: build.__name__)
def test_merged_rows_count_as_the_rows_do(build):
    case = Case(build)
    merged, apart = case.sampler, case.new_sampler()
    assert merged.priors.groups.inverse is not None
    N = case.model.n_rows
    apart.priors.groups = RowGroups.apart(N)
    h, lam = case.random_sites()
    found, laws = [], []
    for sampler in (merged, apart):
        prior = sampler.priors.at(case.point).factorized()
        sites = SiteSum((sampler.priors.groups.merge(h, lam, prior.offset),))
        solver = ObservationSolver(case.model.blocks, sampler.priors.groups)
        found.append(solver.posterior(prior, sites).log_normalizer)
        mean, root = law_of_draw(solver, prior, sites)
        laws.append((mean, root @ root.T))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-8)
    np.testing.assert_allclose(laws[0][0], laws[1][0], atol=1e-8)
    np.testing.assert_allclose(laws[0][1], laws[1][1], atol=1e-8)


def _dense_scale(block):
    if block.block.kind == "diagonal":
        return np.diag(block.array)
    return np.kron(np.eye(block.block.copies), np.tril(block.chol))


def _block_diagonal(blocks):
    size = sum(len(b) for b in blocks)
    total, start = np.zeros((size, size)), 0
    for b in blocks:
        total[start : start + len(b), start : start + len(b)] = b
        start += len(b)
    return total
