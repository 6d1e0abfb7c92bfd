"""The step with held sites leaves the posterior invariant; see :mod:`.test_joint_distribution`."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac
from pymc_augconj.engines.gibbs.held_sites import HeldSites
from pymc_augconj.latents import by_precision, choice
from pymc_augconj.latents.by_observations import ObservationPosterior
from pymc_augconj.latents.by_precision import FactorPosterior

STANDARD_ERRORS = 5.0
CHAINS, STEPS = 30, 5
X5 = np.linspace(0.0, 1.0, 5)[:, None]
DESIGN = np.random.default_rng(20_260_801).normal(size=(10, 2))
exp, ordered = pm.math.exp, pm.distributions.transforms.ordered


@pytest.fixture(autouse=True)
def _by_observations(monkeypatch):
    """Condition few latents in the space of observations too."""
    monkeypatch.setattr(choice, "_FEW_LATENTS", 0)


def reals(name, size):
    return pm.Data(f"{name} data", np.ones(size))


def counts(name, size):
    return pm.Data(f"{name} data", np.zeros(size, dtype="int64"))


def gp_prior(name, ls, eta=1.0, mean=None, **kwargs):
    options = {} if mean is None else {"mean_func": mean}
    cov = eta**2 * pm.gp.cov.ExpQuad(1, ls=ls)
    return pm.gp.Latent(cov_func=cov, **options).prior(name, X=X5, **kwargs)


def poisson_whitened():
    """An intercept and a GP with a learned kernel, merged rows, in observation space."""
    ls, eta, b0 = pm.InverseGamma("ls", 5, 3), pm.HalfNormal("eta", 0.7), pm.Normal("b0", 0.5, 0.5)
    f = gp_prior("f", ls, eta)
    index = np.array([0, 1, 2, 3, 4, 4, 1])
    pm.Poisson("y", mu=exp((b0 + f)[index]), observed=counts("y", 7))


def poisson_by_dense_weights():
    """A GP in weight space, its values seen through a matrix."""
    f = gp_prior("f", pm.InverseGamma("ls", 5, 3), 0.7)
    weights = np.random.default_rng(3).dirichlet(np.ones(5), size=15)
    pm.Poisson("y", mu=exp(pm.math.dot(weights, f)), observed=counts("y", 15))


def augmented_and_held():
    """A Bernoulli with its ω beside a Gamma by its density alone, and a normal; centred."""
    ls, alpha = pm.InverseGamma("ls", 5, 3), pm.Gamma("alpha", 6, 2)
    c, sigma = pm.HalfNormal("c", 0.5), pm.Gamma("sigma", 4, 4)
    f = gp_prior("f", ls, 0.8, mean=pm.gp.mean.Constant(c), reparameterize=False)
    pm.Bernoulli("y", logit_p=f, observed=counts("y", 5))
    pm.Gamma("y2", alpha=alpha, beta=alpha * exp(-f), observed=reals("y2", 5))
    pm.Normal("y3", f[:2], sigma, observed=reals("y3", 2))


def ordinal_by_weights():
    """Random cutpoints; the scale of the coefficients learned."""
    # So far apart that draws from PyMC's prior, which is not of ordered numbers, are ordered.
    cutpoints = pm.Normal("c", [-1.0, 1.0], 0.3, transform=ordered, initval=[-1.0, 1.0])
    beta = pm.Normal("beta", 0, pm.HalfNormal("tau", 1), shape=2)
    eta = pm.math.dot(DESIGN, beta)
    pm.OrderedLogistic("y", eta=eta, cutpoints=cutpoints, observed=counts("y", 10))


def censored_with_one_scale():
    """One scale in the kernel and in the likelihood."""
    s = pm.Gamma("s", 4, 4)
    f = gp_prior("f", 0.4, s)
    pm.Censored("y", pm.Normal.dist(f, s), lower=-0.5, upper=None, observed=reals("y", 5))


def priors_by_their_density():
    """Coefficients between bounds, on one side of a bound, and skewed, of a normal likelihood."""
    u, sigma = pm.Uniform("u", -0.5, 1.0, shape=2), pm.Gamma("sigma", 4, 4)
    v = pm.TruncatedNormal("v", 0.2, 0.5, lower=0.0)
    w = pm.SkewNormal("w", mu=v, sigma=1.0, alpha=2.0)
    eta = pm.math.dot(DESIGN[:4], u) + v * DESIGN[4:8, 0] + w * DESIGN[4:8, 1]
    pm.Normal("y", eta, sigma, observed=reals("y", 4))


def map_of_counts():
    """A lattice of areas with a sparse precision, and a level."""
    W = [[i, i + 1] for i in range(12) if i % 4 < 3] + [[i, i + 4] for i in range(8)]
    u = pac.CAR("u", np.array(W), pm.Beta("alpha", 4, 2), pm.Gamma("tau", 5, 5))
    pm.Poisson("y", mu=exp(pm.Normal("b", 0.5, 0.5) + u), observed=counts("y", 12))


MODELS = {
    poisson_whitened: {},
    poisson_by_dense_weights: {"hyper_sampler": "nuts"},
    augmented_and_held: {},
    ordinal_by_weights: {},
    censored_with_one_scale: {},
    priors_by_their_density: {},
}


def wrong_ones(joint):
    z = joint.z_scores(CHAINS, STEPS)
    return {label: value for label, value in z.items() if abs(value) > STANDARD_ERRORS}


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_the_step_keeps_the_joint_distribution(joint_distribution, build):
    assert not wrong_ones(joint_distribution(build, seed=1, **MODELS[build]))


def test_so_it_does_with_badly_chosen_sites(joint_distribution, monkeypatch):
    joint = joint_distribution(poisson_whitened, seed=2)
    learned = joint.tuned()
    sites = learned["held sites"]
    sites["h"], sites["lam"] = sites["h"] + 3.0, 10.0 * sites["lam"]
    monkeypatch.setattr(joint, "tuned", lambda: learned)
    assert not wrong_ones(joint)


@pytest.mark.parametrize(("factor", "kept"), [(1.0, True), (1.25, False)])
def test_trajectories_over_a_map_do(joint_distribution, monkeypatch, factor, kept):
    root = FactorPosterior.root
    monkeypatch.setattr(FactorPosterior, "root", lambda *given: factor * root(*given))
    monkeypatch.setattr(HeldSites, "fit_badly", True)
    # Small maps are dense otherwise.
    monkeypatch.setattr(by_precision, "_CALLS", 0.0)
    z = joint_distribution(map_of_counts, seed=5).z_scores(CHAINS // 3, STEPS)
    assert all(abs(value) < STANDARD_ERRORS for value in z.values()) == kept


def test_a_wrong_step_does_not(joint_distribution, monkeypatch):
    """Here ε is drawn without regard to the latents."""

    def solve(self, rng, v):
        nu = rng.standard_normal(self.size)
        nu[: self._n_latent] += v - self.apply(nu)
        return nu

    monkeypatch.setattr(ObservationPosterior, "solve", solve)
    assert wrong_ones(joint_distribution(poisson_whitened, seed=3))
