"""The Gibbs step leaves the posterior invariant, for models that between them use every part.

Each model is simulated as it is: draw everything from the prior, then alternate one step given
the observations with new observations given the latents. If the step is exact, every function of
parameters and observations keeps its distribution. About 60 comparisons a model; at five standard
errors, those of the thirty means of chains, false alarms are rare. The negative controls are found
with as many chains.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_augconj as pac
from pymc_augconj.likelihoods.base import DensityLikelihood
from pymc_augconj.likelihoods.mixture import MixtureLikelihood
from pymc_augconj.likelihoods.multivariate_normal import MultivariateNormal
from pymc_augconj.likelihoods.registry import known_likelihoods

STANDARD_ERRORS = 5.0
CHAINS, FEWER = 30, 20

X5 = np.linspace(0.0, 1.0, 5)[:, None]
_RNG = np.random.default_rng(20_260_801)
DESIGN = _RNG.normal(size=(14, 2))
X_TWO = _RNG.normal(size=(4, 2))
X_MANY = _RNG.normal(size=(4, 6))


def reals(name, size):
    return pm.Data(f"{name} data", np.zeros(size))


def counts(name, size):
    return pm.Data(f"{name} data", np.zeros(size, dtype="int64"))


def formulas_of(likelihood):
    """Return the name of the class with the formulas, of one predictor or of several."""
    return type(getattr(likelihood, "formulas", likelihood)).__name__


def gp_prior(name, X, ls, eta=1.0, mean=None, **kwargs):
    options = {} if mean is None else {"mean_func": mean}
    cov = eta**2 * pm.gp.cov.ExpQuad(X.shape[1], ls=ls)
    return pm.gp.Latent(cov_func=cov, **options).prior(name, X=X, **kwargs)


def bernoulli_logit_and_probit():
    """Two observed variables of one GP and an intercept; whitened; ls and eta learned."""
    ls, eta = pm.InverseGamma("ls", 5, 3), pm.HalfNormal("eta", 1.5)
    b0 = pm.Normal("b0", 0, 1)
    f = gp_prior("f", X5, ls, eta)
    pm.Bernoulli("y", logit_p=b0 + f, observed=counts("y", 5))
    pm.Bernoulli("y2", p=pm.math.invprobit(f), observed=counts("y2", 5))


def negative_binomial_hierarchy():
    """Group effects with a random mean and scale; merged rows; α also in the offset."""
    group = np.array([0, 1, 2, 0, 1, 2, 2, 1])
    mu, tau = pm.Normal("mu", 0, 0.5), pm.HalfNormal("tau", 0.7)
    a = pm.Normal("a", mu, tau, shape=3)
    alpha = pm.Gamma("alpha", 4, 2)
    pm.NegativeBinomial("y", mu=pm.math.exp(a[group]), alpha=alpha, observed=counts("y", 8))


def negative_binomial_both_spellings():
    """The two parametrisations, with opposite signs of the predictor, share α."""
    alpha = pm.Gamma("alpha", 4, 2)
    f = gp_prior("f", X5, 0.4)
    pm.NegativeBinomial("y", mu=pm.math.exp(f), alpha=alpha, observed=counts("y", 5))
    pm.NegativeBinomial("y2", n=alpha, p=pm.math.invlogit(f), observed=counts("y2", 5))


def student_t_centred():
    """Centred GP with a learned mean; ν and σ learned."""
    ls, c = pm.InverseGamma("ls", 5, 3), pm.HalfNormal("c", 1)
    nu, sigma = pm.Gamma("nu", 6, 1), pm.Gamma("sigma", 3, 3)
    f = gp_prior("f", X5, ls, mean=pm.gp.mean.Constant(c), reparameterize=False)
    pm.StudentT("y", nu=nu, mu=f, sigma=sigma, observed=reals("y", 5))


def laplace_weight_space():
    """X @ beta with more observations than coefficients; b and the prior scale learned."""
    tau, b = pm.HalfNormal("tau", 1), pm.Gamma("b", 4, 4)
    beta = pm.Normal("beta", 0, tau, shape=2)
    pm.Laplace("y", mu=pm.math.dot(DESIGN, beta), b=b, observed=reals("y", 14))


def asymmetric_laplace_scaled():
    """A design scaled by a hyperparameter, and an intercept; b and κ learned."""
    s, b, kappa = pm.Gamma("s", 3, 3), pm.Gamma("b", 4, 4), pm.Gamma("kappa", 4, 4)
    beta, b0 = pm.Normal("beta", 0, 1, shape=2), pm.Normal("b0", 0.5, 1)
    mu = b0 + s * pm.math.dot(DESIGN[:6], beta)
    pm.AsymmetricLaplace("y", mu=mu, b=b, kappa=kappa, observed=reals("y", 6))


def logistic_sum():
    """The sum of a whitened and a centred GP; the likelihood's scale learned."""
    ls, eta, s = pm.InverseGamma("ls", 5, 3), pm.HalfNormal("eta", 1), pm.Gamma("s", 3, 3)
    f = gp_prior("f1", X5, ls) + gp_prior("f2", X5, 0.3, eta, reparameterize=False)
    pm.Logistic("y", mu=f, s=s, observed=reals("y", 5))


def normal_collapsed():
    """A normal likelihood, whose σ is sampled with the latents integrated out; and a binomial."""
    ls, sigma = pm.InverseGamma("ls", 5, 3), pm.Gamma("sigma", 3, 3)
    f = gp_prior("f", X5, ls)
    pm.Normal("y", f, sigma, observed=reals("y", 5))
    pm.Binomial("y2", n=4, logit_p=f, observed=counts("y2", 5))


def log_normal_collapsed():
    """A log-normal likelihood, whose σ is sampled with the latents integrated out."""
    f = pm.Normal("f", 0.0, 0.5, shape=3)
    sigma = pm.Uniform("sigma", 0.2, 0.6)
    y = pm.Data("y data", np.ones(4))
    pm.LogNormal("y", f[np.array([0, 0, 1, 2])], sigma, observed=y)


def same_scale_in_prior_and_likelihood():
    """One scale in the latents' prior, in their mean and in two likelihoods."""
    s = pm.Gamma("s", 3, 3)
    f = pm.Normal("f", s, s, shape=3)
    index = np.array([0, 0, 1, 2])
    pm.StudentT("y", nu=4, mu=f[index], sigma=s, observed=reals("y", 4))
    pm.Cauchy("y2", f, s, observed=reals("y2", 3))


def same_scale_whitened():
    """The amplitude of a whitened GP is the likelihood's scale."""
    s = pm.Gamma("s", 3, 3)
    f = gp_prior("f", X5, 0.4, s)
    pm.Laplace("y", mu=f, b=s, observed=reals("y", 5))


def same_scale_in_both_kinds_of_likelihood():
    """One σ in a normal and in a Student-t likelihood."""
    sigma, m, t = pm.Gamma("sigma", 3, 3), pm.Normal("m", 0, 1), pm.HalfNormal("t", 1)
    f = pm.Normal("f", m, t, shape=3)
    pm.Normal("y", f, sigma, observed=reals("y", 3))
    pm.StudentT("y2", nu=4, mu=f, sigma=sigma, observed=reals("y2", 3))


def likelihood_scale_in_the_prior_mean():
    """A parameter of the likelihood that is the prior mean of centred latents."""
    s = pm.Gamma("s", 2, 1.5)
    f = pm.Normal("f", -2.0 * s, 1)
    pm.Laplace("y", mu=f * np.ones(2), b=s, observed=reals("y", 2))


def likelihood_scale_in_the_map():
    """A parameter of the likelihood that also scales the predictor."""
    s = pm.Gamma("s", 3, 3)
    f = pm.Normal("f", s, 1, shape=3)
    pm.Laplace("y", mu=f * s, b=s, observed=reals("y", 3))


def poisson_sigmoid():
    """A bounded rate with a learned bound; some latent values seen twice."""
    rate, ls = pm.Gamma("rate", 5, 1), pm.InverseGamma("ls", 5, 3)
    f = gp_prior("f", X5, ls, 1.5, reparameterize=False)
    index = np.array([0, 1, 2, 3, 4, 2, 3])
    pm.Poisson("y", mu=rate * pm.math.sigmoid(f[index]), observed=counts("y", 7))


def potential_and_factor():
    """A potential and an observed variable without latents both act on hyperparameters."""
    z = pm.Normal("z", 0, np.sqrt(2.0))
    pm.Potential("halves the variance of z", -0.25 * z**2)
    ls = pm.LogNormal("ls", 0, 0.5, shape=2)
    f = gp_prior("f", X_TWO, ls)
    pm.Bernoulli("y", logit_p=z**2 + f, observed=counts("y", 4))
    pm.Normal("y2", pm.math.log(ls), 1.0, observed=reals("y2", 2))


def correct_for_potential(prior):
    prior["z"] = prior["z"] / np.sqrt(2.0)


def many_length_scales():
    """As many hyperparameters as a gradient sampler is used for, and a linear mean function."""
    ls = pm.InverseGamma("ls", 5, 5, shape=6)
    coefficient = pm.Gamma("coefficient", 2, 2)
    f = gp_prior("f", X_MANY, ls, mean=pm.gp.mean.Linear(coeffs=coefficient * np.ones(6)))
    pm.Bernoulli("y", logit_p=f, observed=counts("y", 4))


def hsgp():
    """Coefficients of a Hilbert space approximation, in weight space."""
    ls, eta = pm.InverseGamma("ls", 5, 3), pm.HalfNormal("eta", 1)
    gp = pm.gp.HSGP(m=[3], c=1.5, cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=ls))
    f = gp.prior("f", X=np.linspace(-1.0, 1.0, 10)[:, None])
    pm.Bernoulli("y", logit_p=f, observed=counts("y", 10))


def scaled_selections():
    """Indexed latents scaled by a hyperparameter; a hyperprior that touches no latent."""
    s, t = pm.Gamma("s", 3, 3), pm.HalfNormal("t", 1)
    h = pm.HalfNormal("h", t)
    f, g = pm.Normal("f", 0, 1, shape=3), pm.Normal("g", 0, h, shape=2)
    eta = s * f[np.array([0, 1, 2, 2, 0])] + g[np.array([0, 1, 1, 1, 0])]
    pm.Binomial("y", n=3, logit_p=eta, observed=counts("y", 5))


def differences():
    """A paired comparison: f[i] − f[j]; one entry is compared with nothing."""
    s = pm.HalfNormal("s", 1.5)
    f = pm.Normal("f", 0, s, shape=4)
    first, second = np.array([0, 1, 0]), np.array([1, 2, 2])
    pm.Bernoulli("y", logit_p=f[first] - f[second], observed=counts("y", 3))


def two_outputs():
    """Two GPs of one covariance, both in every predictor."""
    ls, s = pm.InverseGamma("ls", 5, 3), pm.Gamma("s", 3, 3)
    f = gp_prior("f", X5[:3], ls, n_outputs=2)
    pm.Laplace("y", mu=f[0] - s * f[1], b=1.0, observed=reals("y", 3))


def forward_variables():
    """Free variables that nothing observed depends on."""
    ls, sigma = pm.InverseGamma("ls", 5, 3), pm.Gamma("sigma", 3, 3)
    gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
    f = gp.prior("f", X=X5[:3])
    pm.StudentT("y", nu=4, mu=f, sigma=sigma, observed=reals("y", 3))
    w = pm.Gamma("w", mu=pm.math.exp(f[0]), sigma=0.3)
    pm.Normal("w2", w, sigma)


def stated_by_its_phi():
    """A likelihood given by φ alone, and Matérn noise; both scales learned."""
    s, rho = pm.Gamma("s", 4, 4), pm.Gamma("rho", 4, 4)
    f = gp_prior("f", X5, 0.4)
    pac.SuperGaussian("y", f, log_phi=lambda r: 1 - (1 + r / s**2) ** 0.6, observed=reals("y", 5))
    pac.MaternNoise("y2", nu=1.5, mu=f, rho=rho, observed=reals("y2", 5))


def stated_in_general_form():
    """A logistic likelihood of ±1 given by φ."""
    f = gp_prior("f", X5, pm.InverseGamma("ls", 5, 3), 1.5)
    pac.SuperGaussian(
        "y",
        f,
        log_phi=lambda r: -pt.log(pt.cosh(pt.sqrt(r) / 2)),
        g=lambda y: y / 2,
        log_c=-np.log(2),
        support=(-1, 1),
        observed=counts("y", 5),
    )


def priors_that_are_not_normal():
    """Effects with heavy tails about a mean, an asymmetric and a doubly exponential coefficient."""
    m, t, kappa = pm.Normal("m", 0, 1), pm.Gamma("t", 4, 4), pm.Gamma("kappa", 6, 6)
    a = pm.StudentT("a", nu=5, mu=m, sigma=t, shape=3)
    b, c = pm.AsymmetricLaplace("b", b=2, kappa=kappa, mu=0.3), pm.Laplace("c", 0, 0.5)
    eta = a[np.array([0, 1, 2, 0])] + pt.stack([b, c]) @ DESIGN[:4].T
    pm.Bernoulli("y", logit_p=eta, observed=counts("y", 4))


def many_slopes():
    """Slopes and noise levels whose entries are independent given the latents, and their priors."""
    m, tau = pm.Normal("m", 0, 0.5, shape=2), pm.LogNormal("tau", -1, 0.4, shape=2)
    a, z = pm.LogNormal("a", m[0], tau[0], shape=10), pm.Normal("z", 0, 1, shape=10)
    s = pm.math.exp(m[1] + tau[1] * z)
    f = pm.Normal("f", 0, 1, shape=2)[np.arange(10) % 2]
    pm.Bernoulli("y", logit_p=a * f, observed=counts("y", 10))
    pm.Normal("y2", f, s, observed=reals("y2", 10))


def scales_that_multiply():
    """Local scales of coefficients and the global one, which moves against them."""
    tau, lam = pm.Gamma("tau", 4, 4), pm.Gamma("lam", 3, 3, shape=10)
    beta = pm.Normal("beta", 0, tau * lam, shape=10)
    pm.Normal("y", beta[np.arange(10)], 1.0, observed=reals("y", 10))


def vectors():
    """Vectors of normal observations, whose covariance is learned; a process in both entries."""
    s, r = pm.Gamma("s", 4, 4), pm.Uniform("r", -0.8, 0.8)
    b, f = pm.Normal("b", 0, 1, shape=2), gp_prior("f", X5, 0.4)
    cov = s**2 * pt.stack([pt.stack([1.0, r]), pt.stack([r, 1.0])])
    mu = pt.stack([b[0] + f, b[1] - f], axis=1)
    pm.MvNormal("y", mu, cov=cov, observed=reals("y", (5, 2)))


def vectors_by_entries():
    """A long vector, whose covariance is learned."""
    s, b = pm.Gamma("s", 4, 4), pm.Normal("b", 0, 1)
    cov = s * (0.5 * np.eye(17) + np.exp(-np.abs(np.subtract.outer(*[np.arange(17)] * 2))))
    pm.MvNormal("y", b * np.linspace(-1.0, 1.0, 17), cov=cov, observed=reals("y", 17))


def allocations():
    """Coefficients of spike and slab about a common mean, with learned weights and scale."""
    w, s, m = pm.Beta("w", 3, 3), pm.Gamma("s", 4, 4), pm.Normal("m", 0, 1)
    kinds = [pm.Normal.dist(0.0, 0.2), pm.StudentT.dist(nu=5, mu=m, sigma=s)]
    b = pm.Mixture("b", pt.stack([w, 1 - w]), kinds, shape=3)
    pm.Normal("y", pt.dot(X_TWO, b[:2]) + b[2], 0.5, observed=reals("y", 4))


def softmax():
    """Several predictors an observation, in groups that are drawn one after the other."""
    eta = pm.Gamma("eta", 6, 4)
    F = gp_prior("F", X5[:4], 0.4, eta, n_outputs=3)
    logits = F.T[np.repeat(np.arange(4), 3)] + pm.Normal("b", 0, 0.7, shape=3)
    pm.Categorical("y", logit_p=logits, observed=counts("y", 12))


# With the likelihoods that each of them uses.
MODELS = {
    bernoulli_logit_and_probit: {"BernoulliLogit", "BernoulliProbit"},
    negative_binomial_hierarchy: {"NegativeBinomial"},
    negative_binomial_both_spellings: {"NegativeBinomial"},
    student_t_centred: {"StudentT"},
    laplace_weight_space: {"Laplace"},
    asymmetric_laplace_scaled: {"AsymmetricLaplace"},
    logistic_sum: {"Logistic"},
    normal_collapsed: {"Normal", "BinomialLogit"},
    log_normal_collapsed: {"LogNormal"},
    same_scale_in_prior_and_likelihood: {"StudentT", "Cauchy"},
    same_scale_whitened: {"Laplace"},
    same_scale_in_both_kinds_of_likelihood: {"Normal", "StudentT"},
    likelihood_scale_in_the_prior_mean: {"Laplace"},
    likelihood_scale_in_the_map: {"Laplace"},
    poisson_sigmoid: {"PoissonSigmoid"},
    potential_and_factor: {"BernoulliLogit"},
    many_length_scales: {"BernoulliLogit"},
    hsgp: {"BernoulliLogit"},
    scaled_selections: {"BinomialLogit"},
    differences: {"BernoulliLogit"},
    two_outputs: {"Laplace"},
    forward_variables: {"StudentT"},
    priors_that_are_not_normal: {"BernoulliLogit", "StudentT", "AsymmetricLaplace", "Laplace"},
    many_slopes: {"BernoulliLogit", "Normal"},
    scales_that_multiply: {"Normal"},
    vectors: {"MultivariateNormal"},
    vectors_by_entries: {"Normal"},
    allocations: {"MixtureLikelihood", "Normal"},
    stated_by_its_phi: {"SuperGaussian", "MaternNoise"},
    stated_in_general_form: {"SuperGaussian"},
}

# Of these fewer chains are run.
SLOW = (
    many_length_scales,
    many_slopes,
    vectors,
    vectors_by_entries,
    allocations,
    stated_by_its_phi,
    stated_in_general_form,
)


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_the_step_keeps_the_joint_distribution(joint_distribution, build):
    reweigh = correct_for_potential if build is potential_and_factor else None
    chains = FEWER if build in SLOW else CHAINS
    joint = joint_distribution(build, seed=1, reweigh=reweigh, sites="augmented")
    sites = joint.step.recognition.model.sites
    assert {formulas_of(site.likelihood) for site in sites} == MODELS[build]
    z = joint.z_scores(chains)
    wrong = {label: value for label, value in z.items() if abs(value) > STANDARD_ERRORS}
    assert not wrong


def test_groups_of_predictors_keep_the_joint_distribution(joint_distribution):
    joint = joint_distribution(softmax, seed=6, sites="augmented")
    assert not joint.step.held
    # The scale of all classes is updated given their latents.
    assert [h.name for h in joint.step.plan.joint] == ["eta"]
    assert max(map(abs, joint.z_scores(FEWER).values())) < STANDARD_ERRORS


def test_allocations_that_ignore_the_observations_do_not(joint_distribution, monkeypatch):
    joint = joint_distribution(allocations, seed=2)

    def log_weights(self, y, eta, params):
        parts = [params[f"log_weight_{k}"] + 0.0 * y for k in range(2)]
        return np.stack(np.broadcast_arrays(*parts))

    draw = MixtureLikelihood.draw_auxiliary

    def wrong(self, rng, *given):
        with monkeypatch.context() as changed:
            changed.setattr(MixtureLikelihood, "_log_joint", log_weights)
            return draw(self, rng, *given)

    monkeypatch.setattr(MixtureLikelihood, "draw_auxiliary", wrong)
    z = joint.z_scores(CHAINS)
    assert max(abs(value) for value in z.values()) > STANDARD_ERRORS


@pytest.mark.parametrize(("mistake", "factor"), [("scale_precision", 1.15), ("tilt", 0.5)])
def test_a_wrong_step_does_not(joint_distribution, wrong, mistake, factor):
    joint = joint_distribution(poisson_sigmoid, seed=2, sites="augmented")
    getattr(wrong, mistake)(joint.step, factor)
    z = joint.z_scores(CHAINS)
    assert max(abs(value) for value in z.values()) > STANDARD_ERRORS


def test_the_models_use_every_likelihood():
    # A pseudo-likelihood cannot be simulated.
    known = [
        cls
        for cls in known_likelihoods().values()
        if cls.can_augment and (issubclass(cls, DensityLikelihood) or cls is MultivariateNormal)
    ]
    used = set().union(*MODELS.values()) - {"MixtureLikelihood"}
    assert used == {cls.__name__ for cls in known if cls.is_normalized}
