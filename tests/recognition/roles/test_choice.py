"""Which Gaussian variables are integrated out, and the part every other variable plays."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_augconj.api.recognize import recognize
from pymc_augconj.engines.gibbs import choice as choice_of_sites
from pymc_augconj.engines.gibbs.moves.given_latents import update_likelihood
from pymc_augconj.engines.gibbs.state import State
from pymc_augconj.errors import NotAffineError, RecognitionError
from pymc_augconj.recognition.observed import generic, match

N = 8
RNG = np.random.default_rng(4)
X = RNG.standard_normal((N, 2))
BINARY = RNG.integers(0, 2, N)
REAL = RNG.standard_normal(N)
GROUP = np.array([0, 2, 1, 1, 0, 2, 2, 0])

exp = pm.math.exp


def observe(eta):
    pm.Bernoulli("y", logit_p=eta, observed=BINARY)


def process(name="f", eta=1.0):
    cov = eta**2 * pm.gp.cov.ExpQuad(2, ls=pm.InverseGamma(f"ls_{name}", 5, 5))
    return pm.gp.Latent(cov_func=cov).prior(name, X=X)


# -- Gaussian variables that cannot all be latents ---------------------------------------------


def test_bilinear_predictor_keeps_the_process(read):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1)
        observe(beta * process() + pm.Normal("b0", 0, 1))
    reading = read(model)
    assert list(reading.kinds) == ["f", "b0"]
    assert reading.roles == {"beta": "prior", "ls_f": "prior"}


def test_process_goes_before_a_longer_vector_of_normals(read):
    with pm.Model() as model:
        weights = pm.Normal("w", 0, 1, shape=3 * N)
        observe(process() * weights[:N])
    reading = read(model)
    assert list(reading.kinds) == ["f"]
    assert reading.roles == {"w": "prior", "ls_f": "prior"}


def test_a_vector_goes_before_its_loading_whatever_the_likelihoods(read):
    """Counts have no augmentation, binary data do; the loading alone was a latent."""
    with pm.Model() as model:
        u, loading = pm.Normal("u", 0, 1, shape=2 * N), pm.Normal("loading", 1, 0.5)
        observe(loading * u[:N])
        pm.Poisson("counts", exp(u[N:] + u[:N]), observed=BINARY)
    reading = read(model)
    assert list(reading.kinds) == ["u"]
    assert reading.roles == {"loading": "prior"}


def test_levels_shared_with_a_density_alone_are_latents(read):
    with pm.Model() as model:
        levels, shape = pm.Normal("u", 0, 1, shape=3), pm.HalfNormal("shape", 1)
        observe(levels[GROUP] + pm.Normal("a", 0, 1))
        pm.Weibull("t", shape, exp(levels[GROUP]), observed=REAL**2)
    reading = read(model)
    assert set(reading.kinds) == {"u", "a"}
    assert [site.likelihood.name for site in reading.lgm.sites] == ["Bernoulli", "Weibull"]
    # Control: a number is as well a hyperparameter.
    with pm.Model() as model:
        observe(pm.Normal("a", 0, 1) + np.zeros(N))
        pm.Weibull("t", 1.5, exp(pm.Normal("b", 0, 1) * X[:, 0]), observed=REAL**2)
    assert set(read(model).kinds) == {"a"}


def test_item_response_model(read):
    """a (θ − b) is bilinear: the abilities and difficulties stay, the discriminations go."""
    with pm.Model() as model:
        theta, b = pm.Normal("theta", 0, 1, shape=4), pm.Normal("b", 0, 1, shape=2)
        a = pm.Normal("a", 0, 1, shape=2)
        eta = a[None, :] * (theta[:, None] - b[None, :])
        pm.Bernoulli("y", logit_p=eta, observed=RNG.integers(0, 2, (4, 2)))
    reading = read(model)
    assert set(reading.kinds) == {"theta", "b"}
    assert reading.roles == {"a": "prior"}


def test_a_factor_of_an_exponential_gives_way_to_its_coefficients(read):
    """Its logarithm is part of their predictor, in any density, if it is positive."""
    counts = np.arange(N)

    def rate(factor):
        return factor * exp(pm.Normal("a", 0, 1) + pm.Normal("b", 0, 1) * X[:, 0])

    with pm.Model() as model:
        pm.Poisson("y", rate(pm.math.sigmoid(pm.Normal("l", 0, 1))), observed=counts)
    reading = read(model)
    assert (set(reading.kinds), reading.roles) == ({"a", "b"}, {"l": "prior"})
    names = []
    for factor in (pm.Beta.dist(2, 2), pm.Normal.dist(4, 1)):
        with pm.Model() as model:
            mu = rate(model.register_rv(factor, "c"))
            pm.NegativeBinomial("y", mu=mu, alpha=2.0, observed=counts)
        names += [site.likelihood.name for site in read(model).lgm.sites]
    # Control: of one that may be negative, if hardly in 100 draws, there is no augmentation.
    assert names == ["Negative binomial", "NegativeBinomial"]


LOG_SCALES = {
    "in a covariance": lambda s: observe(process(eta=exp(s))),
    "in a prior": lambda s: observe(pm.Normal("a", 0, exp(s), shape=3)[GROUP]),
    "in a predictor": lambda s: observe(exp(s) * process()),
    "in a likelihood": lambda s: pm.Normal("y", process(), exp(s), observed=REAL),
}


@pytest.mark.parametrize("where", LOG_SCALES)
def test_normal_log_scale_is_a_hyperparameter(where, read):
    with pm.Model() as model:
        LOG_SCALES[where](pm.Normal("s", 0, 1))
    reading = read(model)
    assert "s" not in reading.kinds
    assert reading.roles["s"] == "prior"


def test_log_scale_of_an_augmented_likelihood(read):
    with pm.Model() as model:
        s = pm.Normal("s", 0, 1)
        pm.StudentT("y", nu=4, mu=process() + pm.Normal("b", 0, 1), sigma=exp(s), observed=REAL)
    assert read(model).roles == {"s": "likelihood", "ls_f": "prior"}


def test_what_is_left_out_takes_its_parents_along(read):
    """c is in two places at once; then its prior's mean m and that mean's mean are not latent."""
    with pm.Model() as model:
        m = pm.Normal("m", pm.Normal("m0", 0, 1), 1)
        c = pm.Normal("c", m, 1)
        observe(c * process() + pm.Normal("b", 0, 1))
    reading = read(model)
    assert list(reading.kinds) == ["f", "b"]
    assert reading.roles == {"m0": "none", "m": "none", "c": "prior", "ls_f": "prior"}


def test_normal_in_a_potential_is_a_hyperparameter(read):
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1, shape=3)
        pm.Potential("sum to zero", pm.logp(pm.Normal.dist(0, 0.1), a.sum()))
        observe(a[GROUP] + pm.Normal("b", 0, 1))
    reading = read(model)
    assert list(reading.kinds) == ["b"]
    assert reading.recognition.factors == ("sum to zero",)


# -- hyperparameters and factors ---------------------------------------------------------------


def test_discrete_and_unused_hyperparameters(read):
    with pm.Model() as model:
        k = pm.Poisson("k", 2)
        tau = pm.HalfNormal("tau", 1)
        s = pm.HalfNormal("s", tau)
        observe(s * process() + k)
    reading = read(model)
    assert reading.roles == {"k": "prior", "tau": "none", "s": "prior", "ls_f": "prior"}
    assert {h.name: h.continuous for h in reading.lgm.hyperparameters}["k"] is False


def test_observed_on_hyperparameters_alone_is_a_factor(read):
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1)
        pm.Exponential("z", s, observed=[1.0, 2.0])
        observe(s * process())
    reading = read(model)
    assert list(reading.likelihoods) == ["y"]
    assert reading.recognition.factors == ("z",)


def test_variable_given_a_value_is_a_constant(read):
    """``pm.observe`` makes a variable that depends on nothing an observed one."""
    with pm.Model() as model:
        observe(pm.Normal("f", 0, 1, shape=N) + pm.Normal("b", 0, 1))
    reading = read(pm.observe(model, {"b": 0.3}))
    assert reading.kinds == {"f": "identity"}
    assert reading.recognition.factors == ("b",)
    np.testing.assert_allclose(reading.lgm.offset(reading.recognition.start), 0.3)


@pytest.mark.parametrize("role", ["prior", "likelihood"])
def test_mean_that_no_predictor_sees(role, read):
    """Values move with their means, whether or not an observation uses them."""
    with pm.Model() as model:
        m = pm.Gamma("m", 2, 1)
        a = pm.Normal("a", pt.stack([0.0, m]), 1)
        pm.Laplace("y", a[0], 1.0 if role == "prior" else m, observed=REAL)
    reading = read(model)
    assert reading.roles == {"m": role}
    (point,) = reading.points(1)
    updates = {
        move: lambda target, start, rng: start + 0.3
        for move in ("prior_only", "likelihood", "collapsed")
    }
    state = State(dict(point), updates)
    update_likelihood(np.random.default_rng(0), reading.sampler.chain, state)
    moved = state.point
    if role == "likelihood":
        assert moved["m_log__"] != point["m_log__"]
        assert moved["a"][1] > point["a"][1]
    before, after = (reading.innovations(p)[1]["a"] for p in (point, moved))
    np.testing.assert_allclose(after, before, rtol=1e-12)


@pytest.mark.parametrize("prior", [pm.Normal, pm.Laplace])
def test_coefficients_beside_a_normal_number_that_curves(read, prior):
    """Whatever their prior: the log of their scale is a hyperparameter."""
    X = np.random.default_rng(0).standard_normal((N, 3))
    with pm.Model() as model:
        log_scale, b = pm.Normal("log_scale", -1, 2), prior("b", 0, 1, shape=3)
        pm.Normal("y", X @ (pt.exp(log_scale) * b), 1.0, observed=REAL)
    reading = read(model)
    assert (list(reading.kinds), list(reading.roles)) == (["b"], ["log_scale"])


def test_factor_with_missing_observations(read):
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1)
        with pytest.warns(UserWarning, match="will be automatically imputed"):
            pm.Exponential("z", s, observed=np.ma.masked_array([1.0, 2.0], [False, True]))
        observe(s * process())
    reading = read(model)
    assert reading.recognition.factors == ("z_observed",)
    assert reading.forward == ["z_unobserved"]


def test_factor_of_observed_and_missing_entries_together(read):
    with pm.Model() as model:
        a, rate = pm.HalfNormal("a", 1), pm.HalfNormal("rate", 1)
        observed = np.ma.masked_array([1.0, 2.0], [False, True])
        with pytest.warns(UserWarning, match="will be automatically imputed"):
            # PyMC keeps the entries of a distribution that it rewrites in one variable.
            pm.Weibull("z", alpha=a, beta=1.0 * pt.exp(rate), observed=observed)
        observe(process())
    reading = read(model)
    assert reading.recognition.factors == ("z_observed",)
    assert reading.forward == []
    assert "z_unobserved" in reading.roles


def test_potential_on_hyperparameters_is_a_factor(read):
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1)
        pm.Potential("p", -(s**2))
        observe(s * process())
    reading = read(model)
    assert reading.recognition.factors == ("p",)
    assert "p: depends on hyperparameters alone" in str(reading.recognition)


# -- the variables asked for ---------------------------------------------------------------------


def test_only_the_variables_asked_for_are_latent(read):
    with pm.Model() as model:
        f = process()
        observe(f + pm.Normal("b", 0, 1))
    reading = read(model, vars=[f])
    assert list(reading.kinds) == ["f"]
    assert reading.roles == {"ls_f": "prior", "b": "prior"}
    # The rotated variable, and its value, name the same latent.
    assert list(read(model, vars=[model["f_rotated_"]]).kinds) == ["f"]


def test_mean_of_a_variable_not_asked_for_is_not_latent(read):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        a = pm.Normal("a", mu, 1, shape=3)
        b = pm.Normal("b", 0, 1)
        observe(a[GROUP] + b)
    reading = read(model, vars=[mu, b])
    assert list(reading.kinds) == ["b"]
    assert reading.roles == {"mu": "none", "a": "prior"}


def test_no_latent_among_the_variables_asked_for():
    with pm.Model() as model:
        observe(process())
    with pytest.raises(RecognitionError, match=r"at least one Gaussian latent.*\['ls_f'\]"):
        recognize(model, vars=[model["ls_f"]])


def test_process_whose_child_is_not_asked_for():
    with pm.Model() as model:
        f = process()
        observe(pm.Normal("noise", f, 1))
    with pytest.raises(NotAffineError, match="the prior of 'noise' depends on it"):
        recognize(model, vars=[f])


def test_model_is_not_changed(read):
    with pm.Model() as model:
        observe(process() + pm.Normal("b", pm.Normal("m", 0, 1), 1))
    before = model.compile_logp(mode="FAST_COMPILE")(model.initial_point())
    names = [v.name for v in model.basic_RVs], [v.name for v in model.value_vars]
    read(model)
    assert names == ([v.name for v in model.basic_RVs], [v.name for v in model.value_vars])
    assert model.compile_logp(mode="FAST_COMPILE")(model.initial_point()) == before


def test_context_is_the_default_model(monkeypatch):
    with pm.Model():
        observe(process())
        recognition = recognize()
    assert repr(recognition) == "<Recognition: latents f; observed y>"
    html = recognition._repr_html_()
    assert html.startswith("<pre")
    assert "Gaussian latents" in html
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert "Gaussian latents" in str(recognition)


def test_the_table_names_everything(read, monkeypatch):
    monkeypatch.setattr(choice_of_sites, "_MANY_LEARNED", 0)
    with pm.Model() as model:
        f = process()
        alpha = pm.Gamma("alpha", 2, 1)
        counts = RNG.poisson(3, N)
        pm.NegativeBinomial("y", mu=exp(f + pm.Normal("b", 0, 1)), alpha=alpha, observed=counts)
        pm.Normal("unused", pt.sum(f), 1)
    text = str(read(model).recognition)
    for words in (
        "GP (whitened)",
        "identity",
        "Negative binomial",
        "Pólya–Gamma",
        "ls_f",
        "latents integrated out",
        "ω integrated out",
        "unused: drawn from its distribution given the rest",
    ):
        assert words in text


def test_what_was_found_for_some_latents_is_found_no_second_time(monkeypatch):
    """Scopes are tried one after the other, with the same sets of latents."""
    tried = []
    augmented = match._Reading._augmented

    def counted(self):
        tried.append(tuple(latent.name for latent in self._latents))
        return augmented(self)

    monkeypatch.setattr(match._Reading, "_augmented", counted)
    with pm.Model() as model:
        pm.Normal("y", process("f"), exp(process("g")), observed=REAL)
    assert recognize(model).model.blocks[1].name == "g"
    assert len(tried) == len(set(tried)) > 1


def test_parameters_of_a_covariance_are_not_tried_as_coefficients(monkeypatch):
    """Derivatives of a Cholesky factor took PyTensor 20 s, to find that it is not affine."""
    distance = np.abs(np.subtract.outer(np.arange(20.0), np.arange(20.0)))
    with pm.Model() as model:
        share, rate = (pm.TruncatedNormal(name, 1, 1, lower=0) for name in ("share", "rate"))
        cov = share * pm.math.exp(-rate * distance) + 0.1 * np.eye(20)
        pm.MvNormal("y", pm.Normal("b") * np.ones(20), cov=cov, observed=np.zeros(20))
    monkeypatch.setattr(generic, "find_predictors", None)
    assert [h.name for h in recognize(model).model.hyperparameters] == ["share", "rate"]
