"""Reading likelihoods that are stated by a formula: SuperGaussian and pm.CustomDist."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_augconj as pac

X = np.linspace(0, 3, 12)[:, None]
Y = np.sin(2 * X[:, 0]) + 0.3
SIGNS = np.where(Y > 0, 1, -1)


def model_of(likelihood, s_initval=0.8):
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=X)
        likelihood(pm.Normal("level") + f, pm.HalfNormal("s", initval=s_initval))
    return model


LOCATION = {
    "Laplace": (lambda r, s: -pt.sqrt(r) / s, "generalised inverse Gaussian"),
    "Matérn 5/2": (
        lambda r, s: pt.log1p(pt.sqrt(5 * r) / s + 5 * r / (3 * s**2)) - pt.sqrt(5 * r) / s,
        "generalised inverse Gaussian",
    ),
    "Student-t": (lambda r, s: -2 * pt.log1p(r / (3 * s**2)), "gamma"),
    "logistic": (lambda r, s: -2 * pt.log(pt.cosh(pt.sqrt(r) / (2 * s))), "Pólya–Gamma"),
}


@pytest.mark.parametrize("name", LOCATION)
def test_closed_form_is_taken_where_asked_for(name, read):
    log_phi, distribution = LOCATION[name]
    for asked, expected in ((False, "inverse Laplace of φ (numerical)"), (True, distribution)):
        model = model_of(
            lambda f, s, asked=asked: pac.SuperGaussian(
                "y", f, log_phi=lambda r: log_phi(r, s), closed_form=asked, observed=Y
            )
        )
        reading = read(model)
        assert reading.likelihoods == {"y": "super-Gaussian, identity"}
        assert reading.lgm.sites[0].likelihood.augmentation.startswith(expected)
        assert expected in str(reading.recognition)
        assert reading.roles["s"] == "likelihood"


def test_closed_form_that_there_is_none_of_is_refused():
    model = model_of(
        lambda f, s: pac.SuperGaussian(
            "y", f, log_phi=lambda r: 1 - (1 + r / s**2) ** 0.3, closed_form=True, observed=Y
        )
    )
    with pytest.raises(pac.RecognitionError, match=r"'y': .*tried Laplace, Matérn"):
        pac.recognize(model)


def test_general_forms_are_read(read):
    read(
        model_of(
            lambda f, s: pac.SuperGaussian(
                "y",
                f,
                log_phi=lambda r: -pt.log(pt.cosh(pt.sqrt(r) / 2)),
                g=lambda y: y / 2,
                log_c=-np.log(2),
                observed=SIGNS,
            )
        )
    )
    read(
        model_of(
            lambda f, s: pac.SuperGaussian(
                "y",
                f,
                log_phi=lambda r: -pt.sqrt(r) / s,
                g=SIGNS,
                alpha=1,
                beta=2 * SIGNS,
                gamma=1,
                log_c=-1 / s,
                observed=SIGNS,
            )
        )
    )


def test_hyperparameter_of_every_observation_is_read(read):
    s = np.linspace(0.5, 2.0, 12)
    read(
        model_of(
            lambda f, _: pac.SuperGaussian("y", f, log_phi=lambda r: -pt.sqrt(r) / s, observed=Y)
        )
    )


def test_noise_and_support_vector_machine_are_read(read):
    matern = read(model_of(lambda f, s: pac.MaternNoise("y", nu=1.5, mu=f, rho=s, observed=Y)))
    assert matern.likelihoods == {"y": "Matérn noise, identity"}
    svm = read(model_of(lambda f, s: pac.BayesianSVM("y", f, observed=SIGNS)))
    assert "pseudo-likelihood" in str(svm.recognition)


def test_c_squared_that_can_be_negative_is_refused():
    model = model_of(
        lambda f, s: pac.SuperGaussian(
            "y", f, log_phi=lambda r: -pt.sqrt(r), alpha=0.1, beta=1, log_c=0, observed=Y
        )
    )
    with pytest.raises(pac.DataError, match="α − βf"):
        pac.recognize(model)


def test_parameter_that_depends_on_a_latent_is_refused():
    model = model_of(
        lambda f, s: pac.SuperGaussian(
            "y", f, log_phi=lambda r: -pt.sqrt(r) / pt.exp(f), observed=Y
        )
    )
    with pytest.raises(pac.UnknownLikelihoodError, match="only the predictor f"):
        pac.recognize(model)


# -- pm.CustomDist ----------------------------------------------------------------------

CUSTOM = {
    "Laplace": lambda v, f, s: -pt.abs(v - f) / s - pt.log(2 * s),
    "its mirror image": lambda v, f, s: -pt.abs((f - v) / s) - pt.log(2 * s),
    "Student-t": lambda v, f, s: pm.logp(pm.StudentT.dist(nu=4.5, mu=f, sigma=s), v),
    "hyperbolic secant": lambda v, f, s: -pt.log(pt.cosh((v - f) / s)) - pt.log(np.pi * s),
    "stretched": lambda v, f, s: 1 - (1 + ((v - f) / s) ** 2) ** 0.3,
    "Gaussian": lambda v, f, s: -0.5 * ((v - f) / s) ** 2 - pt.log(s),
    "weighted": lambda v, f, s: np.linspace(0.5, 2.0, Y.size) * (-pt.abs(v - f) / s - pt.log(s)),
    "scales": lambda v, f, s: -pt.abs(v - f) / (s * np.linspace(1.0, 2.0, Y.size)) - pt.log(s),
}


def custom(logp):
    return model_of(lambda f, s: pm.CustomDist("y", f, s, logp=logp, observed=Y))


@pytest.mark.parametrize("name", CUSTOM)
def test_custom_distribution_is_read(name, read):
    reading = read(custom(CUSTOM[name]))
    assert reading.likelihoods == {"y": "super-Gaussian, identity"}
    assert reading.roles["s"] == "likelihood"
    # ω is drawn, too: a Gaussian's is a constant.
    (site,) = reading.lgm.sites
    point = reading.recognition.start
    rng, y = np.random.default_rng(1), site.y(point)
    omega = site.likelihood.draw_auxiliary(rng, y, 0.9 * y[None], site.params(point), 0)
    assert omega.shape == y.shape
    assert np.all(omega > 0.0)


def test_custom_distribution_with_a_parameter_of_each_observation(read):
    def logp(v, f, s):
        return -pt.abs(v - f) / s - pt.log(2 * s)

    with pm.Model() as model:
        f, s = pm.Normal("f", shape=Y.size), pm.HalfNormal("s", 1, shape=Y.size)
        pm.CustomDist("y", f, s, logp=logp, observed=Y)
    assert read(model).roles == {"s": "likelihood"}


def test_custom_distribution_whose_scale_has_a_mixture_for_its_prior(read):
    with pm.Model() as model:
        f = pm.Normal("f", 0, 1)
        log_s = pm.NormalMixture("log_s", [0.4, 0.6], [-1.0, 1.0], [0.5, 0.5])
        logp = CUSTOM["hyperbolic secant"]
        pm.CustomDist("y", f * np.ones(Y.size), pm.math.exp(log_s / 2), logp=logp, observed=Y)
    reading = read(model)
    assert reading.likelihoods == {"y": "super-Gaussian, identity"}
    assert reading.roles == {"log_s": "likelihood"}


@pytest.mark.parametrize(
    ("logp", "sentence"),
    [
        (lambda v, f, s: -pt.exp(v - f) + v - f, r"not the same at f \+ e and f − e"),
        (lambda v, f, s: -pt.abs(v - 2 * f) / s, r"at y = f \+ e leaves f in it"),
        (lambda v, f, s: -((v - f) ** 4) / s, r"derivative of order 2.* at r = .*parameter 1 ="),
        (lambda v, f, s: -pt.log(pt.abs(v - f)), "zero or infinite at y = f"),
        (lambda v, f, s: -0.2 * pt.log1p((v - f) ** 2), "integrable"),
    ],
)
def test_other_custom_distributions_say_what_was_tried(logp, sentence):
    with pytest.raises(pac.UnknownLikelihoodError, match=sentence) as caught:
        pac.recognize(custom(logp)).model.require_augmentation()
    assert "'y': its pm.CustomDist was tried as a super-Gaussian" in str(caught.value)
    assert "NUTS" in str(caught.value)


def test_custom_distribution_without_density_is_refused():
    with pytest.raises((pac.UnknownLikelihoodError, NotImplementedError), match="logp"):
        pac.recognize(custom(None))


def test_coefficients_follow_the_data():
    with pm.Model() as model:
        data = pm.Data("data", np.ones(3))
        f = pm.Normal("f", shape=3)
        pac.SuperGaussian(
            "y", f, log_phi=lambda r: -pt.sqrt(r), g=lambda y: y, log_c=0.0, observed=data
        )
    recognition = pac.recognize(model)
    (site,) = recognition.model.sites
    np.testing.assert_array_equal(site.params(recognition.start)["g"], 1.0)
    pm.set_data({"data": np.array([-1.0, 2.0, 0.5])}, model=model)
    np.testing.assert_array_equal(site.params(recognition.start)["g"], [-1.0, 2.0, 0.5])
    pm.set_data({"data": np.array([-1.0, np.inf, 0.5])}, model=model)
    with pytest.raises(pac.DataError, match=r"'y'.* has the value inf at position"):
        site.y(recognition.start)
