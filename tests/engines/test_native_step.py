"""The native loop makes the Python step's draws, from the same random numbers."""

from __future__ import annotations

import copy
from functools import cache, partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numba import typeof
from pymc.distributions import transforms

import pymc_augconj as pac
from pymc_augconj.auxiliary.polya_gamma import distribution
from pymc_augconj.engines.gibbs.native import rows as native_rows
from pymc_augconj.engines.gibbs.native.loop import NativeLoop
from pymc_augconj.latents.by_gram import GramSolver
from pymc_augconj.latents.by_weights import WeightSolver
from pymc_augconj.python_mode.tape import NoTapeError
from pymc_augconj.recognition.predictors.maps import GeneralMap

STEPS = 40
# Of states along so many steps, whose data are of the order of one; each step adds rounding and
# forgets some.
ROUNDING = 1e-9

_RNG = np.random.default_rng(20_261_123)
GROUP = np.repeat(np.arange(10), 4)
X = _RNG.normal(size=40)
DESIGN = _RNG.normal(size=(40, 20))


def reals(name, size=40):
    return pm.Data(f"{name} data", np.random.default_rng(5).normal(size=size))


def centred_effects():
    mu, tau = pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0)
    theta = pm.Normal("theta", mu, tau, shape=8)
    pm.Normal("y", theta, np.arange(9.0, 17.0), observed=reals("y", 8))


def slopes():
    mu, tau = pm.Normal("mu", 0.0, 1.0, shape=2), pm.HalfNormal("tau", 1.0, shape=2)
    a = pm.Normal("a", 0.0, 1.0, shape=10)
    b = pm.Normal("b", mu[1], tau[1], shape=10)
    alpha = pm.Deterministic("alpha", mu[0] + tau[0] * a)
    sigma = pm.HalfNormal("sigma", 1.0)
    pm.Normal("y", alpha[GROUP] + b[GROUP] * X, sigma, observed=reals("y"))


def own_noise_of_groups():
    tau, sigma = pm.Exponential("tau", 1.0), pm.InverseGamma("sigma", 3.0, 2.0, shape=5)
    a = pm.Normal("a", 0.0, tau, shape=10)
    pm.Normal("y", a[GROUP], sigma[GROUP // 2], observed=reals("y"))


def curve_in_the_offset():
    """An offset that a hyperparameter bends, and a dense design: one border."""
    rate, tau = pm.Gamma("rate", 2.0, 2.0), pm.HalfNormal("tau", 1.0)
    w = pm.Normal("w", 0.0, tau, shape=20)
    sigma = pm.Uniform("sigma", 0.2, 2.0)
    mu = pm.math.exp(-rate * np.abs(X)) + DESIGN @ w
    pm.Normal("y", mu, sigma, observed=reals("y"))


def measurement_error():
    mu, tau = pm.Normal("mu", 0.0, 2.0), pm.HalfNormal("tau", 1.0)
    x = pm.Normal("x", mu, tau, shape=20)
    a, b = pm.Normal("a", 0.0, 2.0), pm.Normal("b", 0.0, 2.0)
    sigma = pm.HalfNormal("sigma", 1.0)
    pm.Normal("seen", x, 0.5, observed=reals("seen", 20))
    pm.Normal("y", a + b * x, sigma, observed=reals("y", 20))


def correlated_effects():
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0, shape=2))
    z = pm.Normal("z", 0.0, 1.0, shape=(10, 2))
    b = z @ chol.T
    sigma = pm.HalfNormal("sigma", 1.0)
    pm.Normal("y", b[GROUP, 0] + b[GROUP, 1] * X, sigma, observed=reals("y"))


def basis_functions():
    """Columns that are scaled by functions of θ, and so many that Python is in weight space."""
    ls, eta = pm.InverseGamma("ls", 5.0, 5.0), pm.HalfNormal("eta", 2.0)
    gp = pm.gp.HSGP(m=[45], c=1.5, cov_func=eta**2 * pm.gp.cov.Matern52(1, ls=ls))
    f = gp.prior("f", X=np.linspace(-3.0, 3.0, 150)[:, None])
    pm.Normal("y", f, pm.HalfNormal("sigma", 1.0), observed=reals("y", 150))


def zero_sum():
    mu, tau = pm.Normal("mu", 0.0, 3.0), pm.Weibull("tau", 2.0, 1.0)
    a = pm.ZeroSumNormal("a", sigma=tau, shape=10)
    pm.LogNormal("y", mu + a[GROUP], pm.HalfStudentT("sigma", 4.0, 1.0), observed=positive("y"))


def positive(name):
    return pm.Data(f"{name} data", np.exp(np.random.default_rng(5).normal(size=40)))


def nothing_learned():
    b = pm.Normal("b", np.array([0.5, -0.5]), 2.0)
    pm.Normal("y", b[0] + b[1] * X, 0.7, observed=reals("y"))


def logistic():
    b = pm.Normal("b", 0.0, 2.0, shape=3)
    eta = 0.3 + pm.math.dot(DESIGN[:, :3], b)
    pm.Bernoulli("y", logit_p=eta, observed=counts("y"))


def binomial_and_normal():
    """Few and many trials; an offset that is known, and one that is learned; a common scale."""
    tau, shift = pm.HalfNormal("tau", 1.0), pm.Beta("shift", 2.0, 2.0)
    a = pm.Normal("a", 0.0, tau, shape=10)
    trials = np.where(np.arange(40) % 3, 2, 30)
    pm.Binomial("y", n=trials, logit_p=X + shift + a[GROUP], observed=counts("y"))
    pm.Bernoulli("y2", logit_p=-tau * a, observed=counts("y2", 10))
    pm.Normal("y3", a, 0.5, observed=reals("y3", 10))


def student_t():
    """Parameters of the likelihood that are learned; known ones of a second one."""
    nu, sigma = pm.Gamma("nu", 3.0, 0.5), pm.HalfNormal("sigma", 1.0)
    mu, tau = pm.Normal("mu", 0.0, 2.0), pm.HalfNormal("tau", 1.0)
    a = pm.Normal("a", mu, tau, shape=10)
    pm.StudentT("y", nu=nu, mu=a[GROUP] + 0.5 * X, sigma=sigma, observed=reals("y"))
    pm.StudentT("y2", nu=0.8, mu=a, sigma=np.linspace(0.3, 2.0, 10), observed=reals("y2", 10))


def two_groups():
    """Nothing is learned but parameters of the likelihood."""
    mu = pm.Normal("mu", 0.0, 2.0, shape=2)
    sigma, nu = pm.Uniform("sigma", 0.1, 4.0, shape=2), pm.Exponential("nu", 0.1)
    which = np.arange(40) % 2
    pm.StudentT("y", nu=nu + 1.0, mu=mu[which], sigma=sigma[which], observed=reals("y"))


def counts(name, size=40):
    return pm.Data(f"{name} data", np.arange(size) % 2)


def wide():
    """A prior so wide that what rounding leaves is to be estimated by solutions."""
    mu, tau = pm.Normal("mu", 0.0, 1e4), pm.HalfNormal("tau", 1.0)
    a = pm.Normal("a", 0.0, tau, shape=10)
    pm.Normal("y", mu + a[GROUP], 0.01, observed=reals("y"))


def flat_coefficients():
    """Coefficients without a prior, some of which depend on others; a mean that is flat."""
    b, mu = pm.Flat("b", shape=3), pm.Flat("mu")
    a = pm.Normal("a", mu, pm.HalfNormal("tau", 1.0), shape=10)
    eta = pm.math.dot(DESIGN[:, :3], b) + a[GROUP]
    pm.Normal("y", eta, pm.HalfNormal("sigma", 1.0), observed=reals("y"))
    pm.Binomial("y2", n=3, logit_p=eta - X, observed=counts("y2"))


def held_sites():
    """Several variables with held sites, an exact one, and what they have in common."""
    mu, tau = pm.Normal("mu", 0.0, 2.0), pm.HalfNormal("tau", 1.0)
    a = pm.Normal("a", mu, tau, shape=10)
    psi, sigma = pm.Beta("psi", 2.0, 2.0), pm.HalfNormal("sigma", 1.0)
    pm.Poisson("y", pm.math.exp(a[GROUP] + 0.3 * X), observed=counts("y"))
    mean = pm.math.exp(a + 0.5)
    pm.ZeroInflatedPoisson("y2", psi=psi, mu=mean, observed=counts("y2", 10))
    normal = pm.Normal.dist(a[GROUP[:20]], sigma)
    pm.Censored("y3", normal, lower=-1.0, upper=0.8, observed=censored("y3", 20))
    pm.Normal("y4", a, 2.0, observed=reals("y4", 10))


def held_without_hyperparameters_of_priors():
    """Classes in order, whose cutpoints are learned; rates of a beta distribution; and angles."""
    start = np.array([-0.5, 0.5])
    c = pm.Normal("c", start, 1.0, initval=start, transform=transforms.ordered)
    b, phi = pm.Normal("b", 0.0, 1.0, shape=2), pm.Gamma("phi", 3.0, 0.5)
    eta = pm.math.dot(DESIGN[:, :2], b)
    pm.OrderedProbit("y", eta=eta, cutpoints=c, observed=np.arange(40) % 3)
    p = pm.math.sigmoid(eta[:15])
    pm.Beta("y2", alpha=p * phi, beta=(1.0 - p) * phi, observed=np.linspace(0.1, 0.8, 15))
    pm.VonMises("y3", mu=eta[:9], kappa=phi, observed=np.linspace(-2.0, 2.5, 9))


def held_predictors():
    """Observations of two and three predictors, whose held sites couple them; one has an ω."""
    tau, alpha = pm.HalfNormal("tau", 1.0), pm.Gamma("alpha", 3.0, 1.0)
    a, b = pm.Normal("a", 0.0, tau, shape=10), pm.Normal("b", 0.0, 1.0, shape=4)
    eta, psi = a[GROUP] + b[0] * X, pm.math.sigmoid(b[1] + b[2] * X)
    pm.ZeroInflatedPoisson("y", psi=psi, mu=pm.math.exp(eta), observed=counts("y"))
    pm.Binomial("y0", n=3, logit_p=a, observed=counts("y0", 10))
    logits = pm.math.stack([eta, b[1] + 0.0 * X, b[3] * X], axis=1)
    pm.Categorical("y2", p=pm.math.softmax(logits, axis=1), observed=np.arange(40) % 3)
    pm.NegativeBinomial("y3", mu=pm.math.exp(a), alpha=alpha, observed=counts("y3", 10))


def cutpoints(name, start, sd=1.0):
    """Cutpoints that start at numbers in order."""
    return pm.Normal(name, start, sd, initval=start, transform=transforms.ordered)


def levels():
    """Cutpoints of two variables, each of which moves with a level; flat and drawn ones beside."""
    tau, b = pm.HalfNormal("tau", 1.0), pm.Flat("b")
    a = pm.Normal("a", 0.3, tau, shape=10)
    eta, kinds = a[GROUP] + b * X, np.arange(40) % 3
    pm.Binomial("y0", n=3, logit_p=a, observed=counts("y0", 10))
    pm.OrderedLogistic("y", eta=eta, cutpoints=cutpoints("c", [-0.5, 0.5]), observed=kinds)
    d = cutpoints("d", [-1.0, 0.0, 1.5])
    pm.OrderedLogistic("y2", eta=eta[:20], cutpoints=d, observed=np.arange(20) % 4)


def held_and_drawn():
    """Trials that are learned, by which predictors move, beside a held site."""
    alpha, b = pm.Gamma("alpha", 2.0, 0.5), pm.Normal("b", shape=2)
    tau = pm.HalfNormal("tau", 1.0)
    a = pm.Normal("a", 0.0, tau, shape=10)
    mean = pm.math.exp(pm.math.dot(DESIGN[:, :2], b) + a[GROUP])
    pm.NegativeBinomial("y", mu=mean, alpha=alpha, observed=counts("y"))
    rate = pm.math.exp(pm.math.dot(DESIGN[:10, :2], b) + a)
    pm.Poisson("y2", rate, observed=counts("y2", 10))


def priors_as_sites():
    """Coefficients with priors of their own: some have an ω, others bounds."""
    tau = pm.HalfNormal("tau", 1.0)
    b = [
        pm.Laplace("b0", 0.0, tau, shape=3),
        pm.AsymmetricLaplace("b1", kappa=1.3, mu=0.2, b=2.0, shape=2),
        pm.Cauchy("b2", 0.0, 1.0, shape=2),
        pm.Uniform("b3", -0.4, 0.5, shape=2),
        pm.TruncatedNormal("b4", 0.0, 1.0, lower=-0.1, shape=2),
        pm.Gumbel("b5", 0.0, 1.0, shape=2) * pm.HalfNormal("tau5", 1.0),
        pm.Normal(
            "b6", pm.Normal("m"), 0.7, shape=2, transform=transforms.ordered, initval=[0.0, 0.2]
        ),
    ]
    eta = pm.math.dot(DESIGN[:, :15], pm.math.concatenate(b))
    pm.Normal("y", eta, pm.HalfNormal("sigma", 1.0), observed=reals("y"))


def vectors():
    """Vectors with a common covariance, a level that all entries share, beside another variable."""
    B, mu = pm.Normal("B", 0.0, pm.HalfNormal("s", 1.0), shape=(2, 3)), pm.Normal("mu", 0.0, 2.0)
    noise = pm.HalfNormal.dist(1.0, shape=3)
    chol, _, _ = pm.LKJCholeskyCov("chol", n=3, eta=2.0, sd_dist=noise)
    mean = pm.math.dot(DESIGN[:, :2], B) + mu + X[:, None] * np.array([0.5, 0.0, -1.0])
    pm.MvNormal("y", mean, chol=chol, observed=reals("y", (40, 3)))
    pm.MvNormal(
        "y2", B[:, :2], tau=np.array([[2.0, 0.5], [0.5, 1.0]]), observed=reals("y2", (2, 2))
    )
    pm.Normal("y3", B[0, 0] + mu, 0.5, observed=reals("y3", 3))


def mixtures():
    """Lines of their own, and a common one; learned and known weights, beside a drawn site."""
    a, b = pm.Normal("a", np.array([-1.0, 1.0]), 1.0, shape=2), pm.Normal("b", 0.0, 2.0, shape=2)
    w, sigma = pm.Dirichlet("w", np.ones(2)), pm.HalfNormal("sigma", 1.0, shape=2)
    pm.NormalMixture("y", w=w, mu=a + b * X[:, None], sigma=sigma, observed=reals("y"))
    f = a[0] + b[0] * X[:20]
    scales = pm.math.stack([sigma[0], 10.0 * sigma[0]])
    both = pm.math.stack([f, f], axis=1)
    pm.NormalMixture("y2", w=[0.9, 0.1], mu=both, sigma=scales, observed=reals("y2", 20))
    pm.Bernoulli("y3", logit_p=a, observed=counts("y3", 2))


def structured():
    """A walk with a drift and an autoregression; other effects join them or border them.

    A vector is updated by entry beside them.
    """
    tau, rho = pm.Uniform("tau", 0.2, 2.0), pm.Uniform("rho", -1.0, 1.0)
    drift, b = pm.Normal("drift", 0.0, 0.3), pm.Normal("b", 0.0, 1.0, shape=2)
    walk = pm.GaussianRandomWalk("walk", drift, tau, init_dist=pm.Normal.dist(0.0, 2.0), shape=40)
    ar = pm.AR("ar", [rho], sigma=0.5, init_dist=pm.Normal.dist(0.0, 1.0), shape=40)
    a, sigma = pm.Normal("a", 0.0, tau, shape=20), pm.HalfNormal("sigma", 1.0)
    eta = walk + a[np.arange(40) // 2] + DESIGN[:, :2] @ b
    pm.StudentT("y", nu=4.0, mu=eta, sigma=sigma, observed=reals("y"))
    pm.Normal("y2", ar, pm.HalfNormal("noise", 1.0, shape=40), observed=reals("y2"))


def counts_of_a_walk():
    s = pm.HalfNormal("s", 1.0, shape=2)
    walk = pm.GaussianRandomWalk("walk", 0.0, s[0], init_dist=pm.Normal.dist(0.0, s[1]), shape=40)
    pm.Poisson("y", pm.math.exp(walk), observed=counts("y"))


def processes():
    """A whitened process, a vector with a covariance, correlated effects of groups."""
    ls, s = pm.Uniform("ls", 0.3, 2.0), pm.Uniform("s", 0.3, 2.0, shape=2)
    gp = pm.gp.Latent(cov_func=s[0] ** 2 * pm.gp.cov.Matern32(1, ls=ls))
    f = gp.prior("f", X=np.linspace(0.0, 3.0, 8)[:, None])
    distance = np.abs(np.subtract.outer(np.arange(5.0), np.arange(5.0)))
    u = pm.MvNormal("u", np.arange(5.0), cov=s[1] * pm.math.exp(-distance / ls))
    eta = f[np.arange(40) % 8] + u[np.arange(40) % 5]
    pm.Normal("y", eta, pm.Uniform("sigma", 0.2, 2.0), observed=reals("y"))


def correlated_groups():
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0, shape=2))
    b = pm.MvNormal("b", pm.Normal("mu", 0.0, 2.0, shape=2), chol=chol, shape=(10, 2))
    eta = b[GROUP, 0] + b[GROUP, 1] * X
    pm.StudentT("y", nu=4.0, mu=eta, sigma=pm.HalfNormal("sigma", 1.0), observed=reals("y"))


def observed_processes():
    """No latents: the covariance of two outputs, of which hyperparameters alone are learned."""
    W, kappa = pm.Normal("W", 0.0, 1.0, shape=(2, 1)), pm.HalfNormal("kappa", 1.0, shape=2)
    of_time = pm.gp.cov.Matern52(2, ls=pm.Gamma("ls", 3.0, 2.0), active_dims=[0])
    of_outputs = pm.gp.cov.Coregion(2, W=W, kappa=kappa, active_dims=[1])
    inputs = np.column_stack([np.tile(np.linspace(0.0, 3.0, 8), 2), np.repeat([0.0, 1.0], 8)])
    gp = pm.gp.Marginal(cov_func=of_time * of_outputs)
    gp.marginal_likelihood("y", inputs, np.sin(inputs @ [2.0, 1.0]), pm.HalfNormal("sigma", 1.0))


NEIGHBOURS = np.eye(12, k=1, dtype=int) + np.eye(12, k=-1, dtype=int)
NEIGHBOURS[[0, 7], [7, 0]] = 1


def map_of_areas():
    """Differences of neighbours and independent effects of areas: an ω, exact and held sites."""
    rho, scale = pm.Beta("rho", 2.0, 2.0), pm.HalfNormal("scale", 1.0)
    phi, theta = pm.ICAR("phi", W=NEIGHBOURS), pm.Normal("theta", 0.0, 1.0, shape=12)
    effects = scale * (pm.math.sqrt(rho) * phi + pm.math.sqrt(1.0 - rho) * theta)
    eta = pm.Normal("b", 0.0, 1.0) + effects[np.arange(40) % 12]
    pm.StudentT("y", nu=4.0, mu=eta, sigma=pm.HalfNormal("sigma", 1.0), observed=reals("y"))
    pm.Normal("y2", phi, 0.5, observed=reals("y2", 12))
    pm.Poisson("y3", pm.math.exp(effects), observed=counts("y3", 12))


def entries():
    """Vectors by entry: of coefficients, of exact sites, and of scales of latents."""
    slope, sigma = pm.LogNormal("slope", 0.0, 0.5, shape=10), pm.HalfNormal("sigma", 1.0, shape=10)
    tau = pm.Gamma("tau", 3.0, 3.0, shape=10)
    a, b = pm.Normal("a", 0.0, 1.0, shape=4), pm.Normal("b", 0.0, pm.HalfNormal("s", 1.0), shape=10)
    c = pm.Normal("c", b[np.arange(20) // 2], tau[np.arange(20) // 2], shape=20)
    eta = slope[GROUP] * (a[np.arange(40) % 4] - b[GROUP])
    pm.Bernoulli("y", logit_p=eta, observed=counts("y"))
    pm.Normal("y2", c[GROUP[:20]] + 0.5 * X[:20], sigma[GROUP[:20]], observed=reals("y2", 20))
    pm.StudentT("y3", nu=4.0, mu=c, sigma=sigma[GROUP[::2]], observed=reals("y3", 20))


def another_design_at_every_rate():
    """Decays whose rates are learned, a bend, and a predictor with what another one leaves."""
    rate, rho = pm.LogNormal("rate", 0.0, 0.3, shape=3), pm.Uniform("rho", -1.0, 1.0)
    b, c = pm.Normal("b", 0.0, 1.0, shape=3), pm.Normal("c", 0.0, 1.0, shape=2)
    decays = pm.math.exp(-rate * np.abs(DESIGN[:, :3]))
    bend = pm.math.maximum(X - pm.Normal("knot", 0.0, 0.5), 0.0)
    eta, y = pm.math.dot(decays, b) + pm.Normal("d", 0.0, 1.0) * bend, reals("y")
    pm.Normal("y", eta, pm.HalfNormal("sigma", 1.0), observed=y)
    rest = rho * (y - eta) + c[0] + c[1] * X
    pm.Potential("chosen", pm.math.log(pm.math.invprobit(rest)))


def scales_of_columns(*, rows):
    """A horseshoe: with more coefficients than rows, and with fewer."""
    tau, lam = pm.HalfCauchy("tau", pm.HalfNormal("s", 1)), pm.HalfCauchy("lam", 1, shape=12)
    z, X = pm.Normal("z", 0, 1, shape=12), np.random.default_rng(8).standard_normal((rows, 12))
    return pm.Normal("a", 0, 3) + pm.math.dot(X, z * tau * lam)


def few_rows():
    eta = scales_of_columns(rows=9)
    pm.Bernoulli("y", logit_p=eta, observed=np.arange(9) % 2)


def many_rows():
    eta, nu = scales_of_columns(rows=30), pm.Gamma("nu", 2, 0.1)
    pm.StudentT("y", nu=nu, mu=eta, sigma=pm.HalfNormal("sd", 2), observed=np.arange(30) % 4 - 1.0)


def priors_of_priors():
    """Hyperparameters that only others depend on, one of them a vector by entry."""
    m, s = pm.StudentT("m", nu=4.0, sigma=0.5), pm.HalfNormal("s", 0.5)
    tau, sigma = pm.LogNormal("tau", m, 0.5), pm.LogNormal("sigma", 0.0, s, shape=10)
    a = pm.Normal("a", 0.0, tau, shape=10)
    pm.Normal("y", a[GROUP], sigma[GROUP], observed=reals("y"))
    exposure = pm.Gamma("exposure", pm.Gamma("shape", 3.0, 1.0), 1.0)
    pm.Poisson("y2", exposure * pm.math.exp(a), observed=counts("y2", 10))


def effects_on_noise():
    """Vectors by entry that locations, scales and levels of other hyperparameters move."""
    c, tau = pm.Normal("c", 0.0, 1.0, shape=2), pm.HalfNormal("tau", 1.0, shape=3)
    z, v = pm.Normal("z", 0.0, 1.0, shape=10), pm.Normal("v", c[1], tau[1], shape=10)
    u = pm.Normal("u", 0.0, tau[2], shape=10)
    log_sigma = c[0] + tau[0] * z[GROUP] + v[np.arange(40) % 10]
    pm.Normal("y", u[GROUP], pm.math.exp(log_sigma), observed=reals("y"))


def entries_of_held_sites():
    """Held sites follow parameters by entry, with a location and a scale."""
    alpha = pm.LogNormal("alpha", pm.Normal("m", 1.0, 0.3), pm.HalfNormal("s", 0.5), shape=10)
    a = pm.Normal("a", 0.0, 0.7, shape=20)
    mean = pm.math.exp(a[np.arange(40) // 2])
    pm.NegativeBinomial("y", mu=mean, alpha=alpha[GROUP], observed=counts("y"))


def censored(name, size):
    return pm.Data(f"{name} data", np.clip(np.random.default_rng(5).normal(size=size), -1.0, 0.8))


HELD = (
    *(held_sites, held_without_hyperparameters_of_priors, held_and_drawn, priors_as_sites, levels),
    *(entries_of_held_sites, held_predictors),
)
MODELS = (
    *HELD,
    *(centred_effects, slopes, own_noise_of_groups, curve_in_the_offset, measurement_error),
    *(correlated_effects, basis_functions, zero_sum, nothing_learned, logistic),
    *(binomial_and_normal, student_t, two_groups, wide, flat_coefficients, vectors, mixtures),
    *(entries, priors_of_priors, another_design_at_every_rate, structured, counts_of_a_walk),
    *(
        processes,
        observed_processes,
        map_of_areas,
        correlated_groups,
        few_rows,
        many_rows,
        effects_on_noise,
    ),
)


@pytest.fixture(autouse=True)
def _one_kernel(monkeypatch):
    """Draw PG(1, c) as the loop does, also few of them."""
    monkeypatch.setattr(distribution, "MANY", 0)


@cache
def model_of(build):
    with pm.Model() as model:
        build()
    return model


def both(build, tune=30, **options):
    """Return a tuned step and its loop, and where they are."""
    model = model_of(build)
    step = pac.AugmentedGibbs(model=model, **options)
    point = model.initial_point()
    step.setup_chain(np.random.default_rng(1), tune, 0 if tune else 1)
    for _ in range(tune or 1):
        point, _ = step.step(point)
    # Which takes further random numbers, in the steps that are Python's.
    step._sampler.chain.verifies = False
    return step, NativeLoop(step._sampler, point), point


def python_steps(step, rng, point, count=STEPS, *, tune=False):
    updates = {move: partial(own, tune=tune) for move, own in step._updates.items()}
    for _ in range(count):
        point, info = step._sampler.step(rng, point, updates)
        yield point, info


def columns_of_falling_scale():
    """Scales of 1e-281 at the start, as of basis functions under a long lengthscale."""
    ls = pm.HalfNormal("ls", 3.0, initval=4.5)
    b = pm.Normal("b", 0.0, 1.0, shape=8) * pm.math.exp(-0.5 * (np.arange(1.0, 9.0) * ls) ** 2)
    pm.Normal("y", pm.math.dot(DESIGN[:, :8], b), 1.0, observed=reals("y"))


def test_scales_of_columns_may_be_far_below_one_at_the_start():
    step, loop, point = both(columns_of_falling_scale, tune=0)
    rng = np.random.default_rng(0)
    assert loop.run(rng, step._sampler, point, step._updates, STEPS, tune=False).steps == STEPS


def functions_of_high_frequency():
    """Some 20 of 30 scales are zero at the start, as under the long lengthscales of its prior."""
    ls = pm.LogNormal("ls", 1.0, 1.0, initval=9.0)
    b = pm.Normal("b", 0.0, 1.0, shape=30) * pm.math.exp(-0.5 * (np.arange(1.0, 31.0) * ls) ** 2)
    basis = np.random.default_rng(0).standard_normal((40, 30))
    pm.Normal("y", pm.math.dot(basis, b), 1.0, observed=reals("y"))


@pytest.mark.parametrize("ls", [9.0, 0.05])
def test_scales_that_underflow_at_the_start_are_columns_elsewhere(ls):
    step, loop, point = both(functions_of_high_frequency, tune=0)
    point, state = {**point, "ls_log__": np.log(ls)}, step._sampler.state
    assert not np.exp(-0.5 * (30.0 * 9.0) ** 2)
    block = loop.run(np.random.default_rng(0), step._sampler, point, step._updates, 1, tune=False)
    step._sampler.state = state
    ((expected, _),) = python_steps(step, np.random.default_rng(0), point, 1)
    (found,) = block.points()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=ROUNDING * np.abs(value).max())


def basis_of_learned_width():
    """Two basis functions in every row at the start; others underflow there."""
    ls, b = pm.HalfNormal("ls", 6.0, initval=8.0), pm.Normal("b", 0.0, 1.0, shape=14)
    away = np.linspace(0.0, 5200.0, 40)[:, None] - 400.0 * np.arange(14)
    pm.Normal("y", pm.math.dot(pm.math.exp(-0.5 * (away / ls) ** 2), b), 1.0, observed=reals("y"))


def column_that_underflows():
    """It is zero unless ``ls`` is far below its start."""
    ls, powers = pm.HalfNormal("ls", 0.5, initval=0.5), np.append(np.ones(7), 3000.0)
    b = pm.Normal("b", 0.0, 1.0, shape=8) * pm.math.exp(-0.5 * (powers * ls) ** 2)
    pm.Normal("y", pm.math.dot(DESIGN[:, :8], b), 1.0, observed=reals("y"))


def functions_without_any_scale():
    """All are zero under the long lengthscale that is the mean of its prior."""
    ls = pm.LogNormal("ls", 0.0, 4.0)
    b = pm.Normal("b", 0.0, 1.0, shape=8) * pm.math.exp(-0.5 * (np.arange(1.0, 9.0) * ls) ** 2)
    pm.Normal("y", pm.math.dot(DESIGN[:, :8], b), 1.0, observed=reals("y"))


@pytest.mark.parametrize(
    ("build", "ls"),
    [
        (basis_of_learned_width, 99),
        (column_that_underflows, 1e-4),
        (functions_without_any_scale, 0.05),
    ],
)
def test_entries_that_underflow_at_the_start_are_not_lost(build, ls):
    step, loop, point = both(build, tune=0)
    point, state = {**point, "ls_log__": np.log(ls)}, step._sampler.state
    block = loop.run(np.random.default_rng(0), step._sampler, point, step._updates, 1, tune=False)
    step._sampler.state = state
    # It may be left to Python.
    for found in block.points():
        ((expected, _),) = python_steps(step, np.random.default_rng(0), point, 1)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, atol=ROUNDING * np.abs(value).max())
    assert block.steps == (build is not basis_of_learned_width)


def factors():
    loadings = pm.HalfNormal("w", 1.0, shape=(4, 2))
    f = pm.Normal("f", 0.0, 1.0, shape=(10, 2))
    pm.Normal("y", f @ loadings.T, 1.0, observed=reals("y", (10, 4)))


def between_groups():
    """Each row is between two groups, by a share that decays at a learned rate."""
    share = pm.math.exp(-pm.HalfNormal("rate", 1.0) * np.abs(X))
    a = pm.Normal("a", 0.0, 1.0, shape=10)
    pm.Normal("y", share * a[GROUP] + (1.0 - share) * a[GROUP - 1], 1.0, observed=reals("y"))


def test_entries_that_are_sums_of_loadings_need_no_check(monkeypatch):
    """It takes three quarters of a step of a factor analysis."""

    def refuse(*_):
        raise NoTapeError("checked")

    monkeypatch.setattr(GeneralMap, "_where_whole", refuse)
    both(factors, tune=0)
    with pytest.raises(NoTapeError, match="checked"):
        both(between_groups, tune=0)


def test_a_few_groups_are_no_dense_matrix():
    _, loop, _ = both(own_noise_of_groups, tune=0)
    assert loop._problem.corner <= 2 < loop._problem.std.size


@pytest.mark.parametrize(
    ("build", "hyper_sampler"),
    [
        *((build, "auto") for build in MODELS),
        (slopes, "slice"),
        (slopes, "elliptical"),
    ],
)
def test_the_draws_of_the_python_step(build, hyper_sampler):
    step, loop, point = both(build, hyper_sampler=hyper_sampler)
    assert len(loop._problem.levels) == len(step._sampler.levels) == 2 * (build is levels)
    ours, theirs, moved = np.random.default_rng(3), np.random.default_rng(3), []
    while len(moved) < STEPS:
        state, left = step._sampler.state, STEPS - len(moved)
        block = loop.run(ours, step._sampler, point, step._updates, left, tune=False)
        step._sampler.state = state
        every = zip(block.points(), python_steps(step, theirs, point, block.steps), strict=True)
        for row, (found, (expected, info)) in enumerate(every):
            assert list(found) == list(expected)
            for name, value in expected.items():
                scale = 1.0 + np.abs(value).max()
                np.testing.assert_allclose(found[name], value, rtol=0, atol=ROUNDING * scale)
            assert block.log_density[row] == pytest.approx(info.log_density, rel=1e-9, abs=1e-6)
            assert block.log_evidence[row] == pytest.approx(info.log_evidence, rel=1e-9, abs=1e-6)
            assert block.evaluations[row] == info.evaluations
            assert (block.slices[row], block.trials[row]) == (info.slices, info.trials)
            moved.append(next(iter(found.values())).ravel()[0])
            point = expected
        assert ours.bit_generator.state == theirs.bit_generator.state
        if block.steps < left:
            # A step whose evidence has no digits, of some models one in a hundred, is Python's.
            ((point, _),) = python_steps(step, theirs, point, 1)
            ours.bit_generator.state = theirs.bit_generator.state
    assert np.unique(moved).size == STEPS


def test_which_solvers_are_made():
    kinds = {
        type(both(build)[0]._sampler.parts[0].solver.preferred) for build in (slopes, processes)
    }
    assert kinds == {GramSolver, WeightSolver}


def test_one_type_is_compiled_for_all():
    found = set()
    for build in (centred_effects, slopes, two_groups, observed_processes):
        step, loop, _ = both(build)
        for order in "CF":
            for move in ("collapsed", "likelihood"):
                update = step._updates[move]
                update.state["axes"] = np.array(np.eye(update.size), order=order)
                found.add(
                    typeof(
                        (
                            loop._problem,
                            loop._entries,
                            loop._work,
                            loop._learned(update, update.size, False),
                        )
                    )
                )
    assert len(found) == 1


def test_what_is_learned():
    step, loop, point = both(slopes)
    update = step._updates["collapsed"]
    before, state = {k: np.copy(v) for k, v in update.state.items()}, step._sampler.state
    loop.run(np.random.default_rng(3), step._sampler, point, step._updates, 10, tune=True)
    ours = {name: np.copy(value) for name, value in update.state.items()}
    update.state |= before | {"count": int(before["count"])}
    step._sampler.state = state
    list(python_steps(step, np.random.default_rng(3), point, 10, tune=True))
    assert ours["count"] == update.state["count"] == before["count"] + 10
    for name, value in ours.items():
        np.testing.assert_allclose(value, update.state[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("build", [effects_on_noise, held_sites])
def test_coordinates_while_there_are_no_axes(build):
    step, loop, point = both(build, tune=0)
    found, start, state = [], step._updates, step._sampler.state
    for native in (True, False):
        updates, rng = copy.deepcopy(start), np.random.default_rng(3)
        step._updates, step._sampler.state = updates, state
        if native:
            block = loop.run(rng, step._sampler, point, updates, 5, tune=True)
            *_, last = block.points()
            evaluations = block.evaluations.tolist()
        else:
            every = list(python_steps(step, rng, point, 5, tune=True))
            last, evaluations = every[-1][0], [info.evaluations for _, info in every]
        found.append((last, evaluations, {move: own.state for move, own in updates.items()}))
    (ours, first, learned), (theirs, second, expected) = found
    assert first == second
    assert expected["collapsed"]["axes"] is None
    for move, state in expected.items():
        # Updates by entry learn widths alone.
        for name in {"count", "n_tunes", "widths", "mean", "scatter"}.intersection(state):
            np.testing.assert_allclose(learned[move][name], state[name], rtol=1e-8, atol=1e-12)
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-8, atol=1e-9)


def test_blocks_do_not_change_the_draws():
    for build in (slopes, nothing_learned, binomial_and_normal, student_t):
        step, loop, point = both(build)
        updates, state = step._updates, step._sampler.state
        rng = np.random.default_rng(3)
        whole = loop.run(rng, step._sampler, point, updates, STEPS, tune=False).outputs
        step._sampler.state = state
        rng, rows = np.random.default_rng(3), []
        for steps in (1, 7, 12, 20):
            block = loop.run(rng, step._sampler, point, updates, steps, tune=False)
            rows.append(block.outputs)
            *_, point = block.points()
        np.testing.assert_array_equal(np.concatenate(rows), whole)


def test_steps_without_digits_are_left_to_python():
    step, loop, point = both(slopes)
    updates, p, state = step._updates, loop._problem, step._sampler.state

    def run(digits):
        step._sampler.state = state
        loop._problem, rng = p._replace(digits=digits), np.random.default_rng(3)
        block = loop.run(rng, step._sampler, point, updates, STEPS, tune=False)
        return block.outputs, list(block.points()), rng

    whole, _, _ = run(p.digits)
    assert len(whole) == STEPS
    # As if rounding were so large that it leaves none of the steps its digits, and then some.
    none, _, rng = run(1.0)
    assert not len(none)
    assert rng.bit_generator.state == np.random.default_rng(3).bit_generator.state
    made, points, rng = next(
        found for found in map(run, np.geomspace(1e-1, 1e-6, 100)) if 0 < len(found[0]) < STEPS - 5
    )
    np.testing.assert_array_equal(made, whole[: len(made)])
    # The generator is where the step that was not made begins.
    loop._problem = p
    rest = loop.run(rng, step._sampler, points[-1], updates, 5, tune=False)
    np.testing.assert_array_equal(rest.outputs, whole[len(made) : len(made) + 5])


def test_a_wrong_loop_is_found():
    step, loop, point = both(slopes)
    updates, rng = step._updates, np.random.default_rng(3)
    ((after, info),) = python_steps(step, rng, point, 1)
    loop.check_evidence(step._sampler, after, updates, info.log_evidence)
    block = loop.run(rng, step._sampler, after, updates, 5, tune=False)
    *_, last = block.points()
    loop.check_density(step._sampler, last, block.log_density[-1])
    sums = loop._problem.sums
    loop._problem = loop._problem._replace(sums=sums._replace(fixed=1.5 * sums.fixed))
    with pytest.raises(pac.AugmentationError, match="expected a log evidence of"):
        loop.check_evidence(step._sampler, after, updates, info.log_evidence)
    with pytest.raises(pac.AugmentationError, match="expected a log density of"):
        loop.check_density(step._sampler, last, block.log_density[-1] + 0.2)


def test_a_walk_wider_than_flat_latents_is_for_python():
    def build():
        tau = pm.Exponential("tau", 1.0)
        z = pm.GaussianRandomWalk("z", sigma=tau**-0.5, init_dist=pm.Normal.dist(0, 1), shape=20)
        pm.Normal("y", z, tau=tau, observed=np.sin(np.arange(20.0)))

    step, loop, point = both(build)
    part, found = step._sampler.parts[0], []
    for log_tau, steps in ((-50.0, 1), (-120.0, 0), (-300.0, 0)):
        wide = point | {"tau_log__": np.array(log_tau)}
        part.take([data for data, _ in part.members], wide)
        given = part.given_sites(wide)
        found.append(given.posterior.log_normalizer + given.constant)
        loop.check_evidence(step._sampler, wide, step._updates, found[-1])
        block = loop.run(
            np.random.default_rng(3), step._sampler, wide, step._updates, 1, tune=False
        )
        assert block.steps == steps
    # K grows as Λ falls.
    np.testing.assert_allclose(found, found[0], rtol=1e-10)


def test_rounding_of_latents_far_smaller_than_their_mean_is_no_mistake():
    # At τ = e⁻⁴⁵ ten effects are equal to their mean in the point, though not in the loop.
    step, loop, point = both(slopes)
    effects, z = np.full(10, point["mu"][1]), np.linspace(-2.0, 2.0, 10)
    tiny = point | {"tau_log__": np.array([0.0, -45.0]), "b": effects}
    expected = step._sampler.chain.log_density(tiny) - 0.5 * z @ z
    assert z @ z > 15.0
    loop.check_density(step._sampler, tiny, expected)
    # A scale that rounding does not reach has no such tolerance.
    small = tiny | {"tau_log__": np.array([0.0, -15.0]), "b": effects + np.exp(-15.0) * z}
    expected = step._sampler.chain.log_density(small)
    loop.check_density(step._sampler, small, expected)
    with pytest.raises(pac.AugmentationError, match="expected a log density of"):
        loop.check_density(step._sampler, small, expected - 0.2)


def large_covariance():
    gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=pm.Gamma("ls", 3, 3)))
    pm.Normal("y", gp.prior("f", X=np.arange(100.0)[:, None]), 1.0, observed=reals("y", 100))


def another_auxiliary_variable():
    p = pm.math.invprobit(pm.Normal("b", 0.0, pm.HalfNormal("tau"), shape=2)[GROUP[:8] % 2])
    pm.Bernoulli("y", p=p, observed=np.arange(8) % 2)


def density_without_a_tape():
    nu = pm.Gamma("nu", 2.0, 2.0)
    pm.Potential("prior", -pm.math.log(1.0 + pm.math.sum(pm.math.dot(np.eye(2), [nu, nu]) ** 2)))
    pm.Potential("bessel", pt.j0(nu))
    pm.Normal("y", pm.Normal("a", 0.0, nu, shape=10)[GROUP], 1.0, observed=reals("y"))


def neighbours_of_a_learned_scale():
    phi = pac.ICAR("phi", NEIGHBOURS, sigma=pm.HalfNormal("scale", 1.0))
    pm.Normal("y", phi, 1.0, observed=reals("y", 12))


def neighbours_beside_a_walk():
    init = pm.Normal.dist(0.0, 1.0)
    walk = pm.GaussianRandomWalk("walk", 0.0, pm.HalfNormal("s"), init_dist=init, shape=12)
    pm.Normal("y", pm.ICAR("phi", W=NEIGHBOURS) + walk, 1.0, observed=reals("y", 12))


def walks_with_scales_of_their_own():
    """Precisions with entries of a vector that is updated by entry."""
    init, s = pm.Normal.dist(0.0, 1.0), pm.HalfNormal("s", shape=10)
    walk = pm.GaussianRandomWalk("walk", 0.0, s, init_dist=init, shape=(10, 4))
    pm.Normal("y", walk.ravel(), 1.0, observed=reals("y"))


def columns_with_other_factors_in_other_rows():
    lam, tau = pm.Gamma("lam", 3.0, 3.0, shape=12), pm.Gamma("tau", 4.0, 8.0)
    b, scales = pm.Normal("b", 0.0, tau * lam, shape=12), pm.HalfNormal.dist(1.0)
    chol = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=scales, compute_corr=True)[0]
    v = pt.dot(pm.Normal("u", 0.0, 1.0, shape=(5, 2)), chol.T)[GROUP[:20]]
    x = np.random.default_rng(0).normal(size=(20, 13))
    eta = pt.dot(x[:, :12], b) + v[:, 0] + v[:, 1] * x[:, 12]
    pm.Bernoulli("y", logit_p=eta, observed=counts("y", 20) > 1)


@pytest.mark.parametrize(
    "build",
    [
        *(large_covariance, another_auxiliary_variable, density_without_a_tape),
        *(neighbours_of_a_learned_scale, neighbours_beside_a_walk),
        *(columns_with_other_factors_in_other_rows, walks_with_scales_of_their_own),
    ],
)
def test_other_models_have_no_loop(build):
    sites = "augmented" if build is another_auxiliary_variable else "auto"
    with pytest.raises(NoTapeError):
        both(build, sites=sites)


def rates_and_priors():
    """Held sites, a learned number of trials, and coefficients with priors of their own."""
    tau, alpha = pm.HalfNormal("tau", 0.7), pm.Gamma("alpha", 4.0, 2.0)
    a = pm.Normal("a", 0.0, tau, shape=5)
    b, c = pm.Laplace("b", 0.0, 0.5, shape=2), pm.Uniform("c", -1.0, 0.5, shape=2)
    eta = a[GROUP[:20]] + pm.math.dot(DESIGN[:20, :4], pm.math.concatenate([b, c]))
    pm.Poisson("y", pm.math.exp(eta), observed=counts("y", 20))
    pm.NegativeBinomial("y2", mu=pm.math.exp(a), alpha=alpha, observed=counts("y2", 5))


def classes():
    """Cutpoints that move with the level of effects, and a shape that sites follow."""
    a = pm.Normal("a", 0.0, pm.HalfNormal("tau", 0.5), shape=2)
    c = cutpoints("c", [-2.0, 2.0], 0.6)
    y = pm.Data("y data", np.arange(40) % 3)
    pm.OrderedLogistic("y", a[GROUP % 2], cutpoints=c, observed=y)
    times, rate = pm.Data("y2 data", np.ones(20)), pm.math.exp(a[GROUP[:20] % 2])
    pm.Gamma("y2", pm.Gamma("shape", 6.0, 4.0), rate, observed=times)


def items():
    """Slopes of an item response, and noise of groups: both by entry."""
    theta, b = pm.Normal("theta", 0.0, 1.0, shape=2), pm.Normal("b", 0.5, 1.0, shape=10)
    slope, sigma = pm.LogNormal("slope", 0.0, 0.5, shape=10), pm.Gamma("sigma", 4.0, 4.0, shape=10)
    y = pm.Data("y data", np.zeros((2, 10), dtype="int64"))
    pm.Binomial("y", n=8, logit_p=slope * (theta[:, None] - b), observed=y)
    own = np.arange(30) % 10
    pm.Normal("y2", b[own], sigma[own], observed=reals("y2", 30))


@pytest.fixture
def native(joint_distribution):
    """The joint distribution test with native steps, which cost little, in place of Python's."""

    class Native(joint_distribution):
        steps, factor, tilt = STEPS, 1.0, 1.0
        shift, follows = 0, True

        def _moved(self, point, observed, learned):
            self.put(observed)
            self.step.setup_chain(self.rng, 0, 1)
            self.step.learned = learned
            sampler = self.step.make_sampler(point)
            loop = NativeLoop(sampler, point)
            p = loop._problem
            sums, moves = p.sums, p.moves_sites and self.follows
            is_gram = sums.place < sums.place.max() - p.std.size - 2
            fixed = np.where(is_gram, self.factor, 1.0) * sums.fixed
            by_row = np.roll(loop._entries.by_row, self.shift, axis=1)
            loop._entries = loop._entries._replace(by_row=by_row)
            sums = sums._replace(fixed=fixed, by=self.tilt * sums.by)
            loop._problem = p._replace(sums=sums, moves_sites=moves)
            updates = self.step._updates
            block = loop.run(self.rng, sampler, point, updates, self.steps, tune=False)
            # A wrong target leads to where rounding leaves no digits.
            is_right = self.follows and self.factor * self.tilt == 1.0 and not self.shift
            assert len(block.outputs) == self.steps or not is_right
            return [point, *block.points()][-1]

    return Native


@pytest.mark.parametrize(
    "build", [slopes, binomial_and_normal, two_groups, rates_and_priors, classes, items]
)
def test_the_joint_distribution_is_kept(native, build):
    z = native(build, seed=1).z_scores(20, steps=2, draws=400)
    wrong = {label: value for label, value in z.items() if abs(value) > 5.0}
    assert not wrong


@pytest.mark.parametrize(
    ("build", "wrong", "size"),
    [
        (slopes, {"factor": 2.0}, (12, 2)),
        (rates_and_priors, {"tilt": 3.0}, (20, 2)),
        (items, {"shift": 1}, (12, 2)),
        (classes, {"follows": False, "steps": 10}, (40, 4)),
    ],
)
def test_that_of_a_wrong_loop_is_not(native, build, wrong, size):
    joint = native(build, seed=1)
    vars(joint).update(wrong)
    z = joint.z_scores(*size, draws=400)
    assert max(abs(value) for value in z.values()) > 5.0


def test_sums_of_pieces_are_those_of_all(monkeypatch):
    rng, found = np.random.default_rng(5), []
    factors = tuple(rng.integers(3, size=200) for _ in range(3))
    place, of = rng.integers(4, size=200), rng.integers(-1, 2, size=200)
    value = rng.integers(-2, 3, size=200).astype(float)
    for together in (1 << 18, 7):
        monkeypatch.setattr(native_rows, "_TOGETHER", together)
        builder = native_rows.SumBuilder()
        builder.add(factors, place, value, of)
        builder.add(factors[:1] * 3, 2, np.zeros(200))
        found.append(builder.finish())
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
