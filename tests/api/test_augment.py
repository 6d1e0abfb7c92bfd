"""``pac.augment``: integrating ω out of the written-out model gives the original one.

Every quadrature node of ω is an observation of its own: their log densities come from one call.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.special import logsumexp

import pymc_augconj as pac
from pymc_augconj.likelihoods.base import Likelihood
from pymc_augconj.likelihoods.registry import known_likelihoods

STEP = 0.04
LOG_NODES = np.arange(-42.0, 26.0, STEP)
COUNTS = np.arange(45)  # of Poisson(4): the rest weighs 1e-30

# Likelihood, its PyMC spelling, an observation.
CASES = {
    "StudentT": (lambda f, y: pm.StudentT("y", nu=3, mu=f, sigma=0.7, observed=y), 1.3),
    "Cauchy": (lambda f, y: pm.Cauchy("y", f, 0.7, observed=y), 1.3),
    "Laplace": (lambda f, y: pm.Laplace("y", f, 0.7, observed=y), 1.3),
    "AsymmetricLaplace": (
        lambda f, y: pm.AsymmetricLaplace("y", b=0.7, kappa=2.0, mu=f, observed=y),
        1.3,
    ),
    "Logistic": (lambda f, y: pm.Logistic("y", f, 0.7, observed=y), 1.3),
    "BernoulliLogit": (lambda f, y: pm.Bernoulli("y", logit_p=f, observed=y), 1),
    "BernoulliProbit": (lambda f, y: pm.Bernoulli("y", p=pm.math.invprobit(f), observed=y), 1),
    "BinomialLogit": (lambda f, y: pm.Binomial("y", 9, logit_p=f, observed=y), 4),
    "BinomialLogit without trials": (lambda f, y: pm.Binomial("y", 0, logit_p=f, observed=y), 0),
    "NegativeBinomial": (
        lambda f, y: pm.NegativeBinomial("y", mu=pm.math.exp(f), alpha=1.7, observed=y),
        3,
    ),
    "PoissonSigmoid": (lambda f, y: pm.Poisson("y", 4 * pm.math.sigmoid(f), observed=y), 3),
    "PoissonSigmoid of zero": (lambda f, y: pm.Poisson("y", 4 * pm.math.sigmoid(f), observed=y), 0),
    "MaternNoise": (lambda f, y: pac.MaternNoise("y", 1.5, f, 0.7, observed=y), 1.3),
    "BayesianSVM": (lambda f, y: pac.BayesianSVM("y", f, observed=y), -1),
    "SuperGaussian": (
        lambda f, y: pac.SuperGaussian("y", f, log_phi=lambda r: 1 - (1 + r) ** 0.3, observed=y),
        1.3,
    ),
    "SuperGaussian in closed form": (
        lambda f, y: pac.SuperGaussian(
            "y", f, log_phi=lambda r: -pt.sqrt(r) / 0.7, closed_form=True, observed=y
        ),
        1.3,
    ),
    "SuperGaussian in general form": (
        lambda f, y: pac.SuperGaussian(
            "y",
            f,
            log_phi=lambda r: -pt.log(pt.cosh(pt.sqrt(r) / 2)),
            g=lambda y: y / 2,
            log_c=-np.log(2),
            observed=y,
        ),
        1,
    ),
}


def nodes_of(name):
    """Nodes of the auxiliary variables by their value variables, and their log measure."""
    if name == "BernoulliProbit":
        z = np.exp(LOG_NODES[LOG_NODES < 4.0])
        measure = np.log(z * STEP)
        return {"y_omega": np.concatenate([-z, z])}, np.tile(measure, 2)
    log_omega = LOG_NODES
    if not name.startswith("Poisson"):
        return {"y_omega_log__": log_omega}, log_omega + np.log(STEP)
    nodes = {
        "y_thinned": np.repeat(COUNTS, log_omega.size),
        "y_omega_log__": np.tile(log_omega, COUNTS.size),
    }
    return nodes, nodes["y_omega_log__"] + np.log(STEP)


def difference(name, distort=0.0):
    """log ∫ p(y, ω | f) dω − log p(y | f), at three f."""
    likelihood, y = CASES[name]
    nodes, log_measure = nodes_of(name)
    with pm.Model() as model:
        f = pm.Normal("f", 0.3, 1.7)
        likelihood(f, np.full(log_measure.size, y))
    augmented = pac.augment(model)
    names = [rv.name for rv in augmented.basic_RVs]
    terms = augmented.compile_fn(augmented.logp(sum=False, jacobian=False))
    original = model.compile_fn(model.logp(vars=model.observed_RVs, sum=False)[0])
    found = []
    for f in (-1.2, 0.4, 2.0):
        at = dict(zip(names, terms({"f": np.array(f), **nodes}), strict=True))
        joint = sum(value for key, value in at.items() if key != "f") + log_measure
        omega = np.exp(nodes["y_omega_log__"]) if distort else 0.0
        found.append(logsumexp(joint - distort * omega) - original({"f": np.array(f)})[0])
    return np.array(found)


@pytest.mark.parametrize("name", CASES)
def test_integrating_the_auxiliary_variable_out_gives_the_likelihood(name):
    # The densities that are inverted are good to 1e-8, quadrature to 1e-10.
    np.testing.assert_allclose(difference(name), 0.0, atol=1e-8)


def test_wrong_precision_is_found_out():
    assert np.abs(difference("Laplace", distort=0.05)).min() > 1e-4


def test_every_likelihood_with_an_auxiliary_variable_has_a_case():
    known = [cls for cls in known_likelihoods().values() if issubclass(cls, Likelihood)]
    with_auxiliary = {cls.__name__ for cls in known if cls.has_auxiliary}
    assert {name.split()[0] for name in CASES} == with_auxiliary


def gp_model(**latent):
    x = np.linspace(0, 1, 6)[:, None]
    with pm.Model(coords={"site": range(6)}) as model:
        ls, s = pm.InverseGamma("ls", 5, 5), pm.HalfNormal("s", initval=0.7)
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls)).prior("f", X=x, **latent)
        level = pm.Normal("level")
        pm.Laplace("y", level + f, s, observed=np.sin(6 * x[:, 0]), dims="site")
        pm.Normal("z", level, 1.0, observed=0.3)
    return model


@pytest.mark.parametrize("latent", [{}, {"reparameterize": False}], ids=["whitened", "plain"])
def test_process_model_keeps_its_variables_and_gains_omega(latent):
    model = gp_model(**latent)
    before = {name: id(variable) for name, variable in model.named_vars.items()}
    augmented = pac.augment(model)
    assert {name: id(variable) for name, variable in model.named_vars.items()} == before
    assert set(augmented.named_vars) == {*before, "y_omega"}
    assert augmented.named_vars_to_dims["y_omega"] == ("site",)
    assert augmented.named_vars_to_dims["y"] == ("site",)
    assert [rv.name for rv in augmented.observed_RVs] == ["y", "z"]

    # y | ω is N(level + f, 1/ω), and ω ~ InvGamma(1, 1/2s²).
    point = augmented.initial_point()
    assert point["s_log__"] == pytest.approx(np.log(0.7))
    rng = np.random.default_rng(1)
    point = {k: v + 0.3 * rng.standard_normal(v.shape) for k, v in point.items()}
    omega, s = np.exp(point["y_omega_log__"]), np.exp(point["s_log__"])
    natural = augmented.compile_fn(
        augmented.replace_rvs_by_values([augmented["f"]])[0],
        inputs=augmented.value_vars,
        on_unused_input="ignore",
    )
    f = point["f"] if "f" in point else natural(point)
    e = np.sin(6 * np.linspace(0, 1, 6)) - point["level"] - f
    normal = 0.5 * np.log(omega / (2 * np.pi)) - 0.5 * omega * e**2
    prior = -np.log(2 * s**2) - 2 * np.log(omega) - 0.5 / (s**2 * omega)
    rest = model.compile_logp(vars=[*model.free_RVs, model["z"]])
    expected = normal.sum() + prior.sum() + rest({k: point[k] for k in model.initial_point()})
    assert augmented.compile_logp(jacobian=True)(point) == pytest.approx(
        float(expected + point["y_omega_log__"].sum())
    )


def test_graph_shows_the_auxiliary_variable():
    # What pm.model_to_graphviz draws, in a form that needs no Graphviz.
    source = pm.model_to_mermaid(pac.augment(gp_model()))
    assert "y_omega ~ Invgamma" in source
    assert "y ~ GaussianSite" in source
    assert "y_omega --> y" in source


def test_model_that_cannot_be_augmented_is_refused():
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Normal("f")), observed=3)
    with pytest.raises(pac.UnknownLikelihoodError, match="'y'"):
        pac.augment(model)


def test_derivative_of_a_numerical_prior_is_refused():
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=pm.Normal("f"), observed=[1, 0])
    augmented = pac.augment(model)
    with pytest.raises(NotImplementedError, match=r"PolyaGamma is computed by NumPy .* pac.sample"):
        augmented.dlogp()


def test_prior_of_omega_can_be_drawn():
    with pm.Model() as model:
        f = pm.Normal("f")
        pac.SuperGaussian("y", f, log_phi=lambda r: -2.0 * pt.log1p(r), observed=np.zeros(4000))
    omega = pm.draw(pac.augment(model)["y_omega"], random_seed=1)
    # Gamma(2, 1)
    assert abs(omega.mean() - 2.0) < 5.0 * np.sqrt(2.0 / omega.size)
