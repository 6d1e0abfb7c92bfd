"""Copies of models, whose variables are not those that the user's processes are made of."""

from __future__ import annotations

import warnings

import numpy as np
import pymc as pm
import pytest
from pymc.model.transform.optimization import freeze_model

import pymc_augconj as pac

QUIET = {"progressbar": False, "hyper": "fixed"}
XNEW = np.array([[0.3], [2.1]])


@pytest.fixture(scope="module")
def original():
    rng = np.random.default_rng(8)
    X = np.linspace(0.0, 4.0, 15)[:, None]
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 5, 10)
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
        y = np.sin(X[:, 0]) + 0.2 * rng.standard_t(3, 15)
        pm.StudentT("y", nu=3, mu=gp.prior("f", X=X), sigma=0.2, observed=y)
    return model, gp


def copies(model):
    with warnings.catch_warnings():
        # PyMC warns that processes do not follow.
        warnings.simplefilter("ignore", UserWarning)
        return {"frozen": freeze_model(model), "with a value given": pm.do(model, {"ls": 1.5})}


@pytest.fixture(scope="module", params=["frozen", "with a value given"])
def copy(original, request):
    return copies(original[0])[request.param]


def test_a_copy_is_fitted_as_its_original(original):
    model, _ = original
    frozen = copies(model)["frozen"]
    ours, theirs = (pac.fit("cavi", model=m, **QUIET) for m in (frozen, model))
    assert ours.log_evidence == pytest.approx(theirs.log_evidence, abs=1e-12)
    np.testing.assert_array_equal(ours.mean["f"], theirs.mean["f"])


def test_predictions_by_the_original_are_those_of_the_original(original):
    model, gp = original
    fits = [pac.fit("cavi", model=m, **QUIET) for m in (copies(model)["frozen"], model)]
    ours, theirs = (pac.predict(fit, gp, XNEW, model=model).predictions for fit in fits)
    np.testing.assert_array_equal(ours["f_mean"], theirs["f_mean"])


def test_predictions_by_a_copy_are_refused(original, copy):
    _, gp = original
    fit = pac.fit("cavi", model=copy, **QUIET)
    with pytest.raises(pac.AugmentationError, match=r"'f' to depend .* found 'ls' of another"):
        pac.predict(fit, gp, XNEW, model=copy)


def test_inducing_points_in_a_copy_are_refused(original, copy):
    _, gp = original
    with pytest.raises(pac.AugmentationError, match=r"'f' to depend .* found 'ls' of another"):
        pac.fit("cavi", model=copy, gp=gp, inducing=5, **QUIET)


def test_a_value_that_the_fit_has_not_is_refused(original):
    model, gp = original
    fit = pac.fit("cavi", model=copies(model)["with a value given"], **QUIET)
    with pytest.raises(pac.AugmentationError, match=r"found \['ls'\] without one"):
        pac.predict(fit, gp, XNEW, model=model)
