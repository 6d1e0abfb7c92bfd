"""The registry finds every file, and refuses a name twice."""

from __future__ import annotations

import numpy as np
import pytest

import pymc_augconj as pac
from pymc_augconj.likelihoods.bernoulli_logit import BernoulliLogit
from pymc_augconj.likelihoods.pattern import Pattern, PredictorInput
from pymc_augconj.likelihoods.registry import known_likelihoods, register


def test_keys_are_name_and_link():
    known = known_likelihoods()
    assert known["Bernoulli (logit)"] is BernoulliLogit
    assert list(known) == [f"{cls.name} ({cls.link})" for cls in known.values()]


def test_a_name_taken_is_refused():
    with pytest.raises(ValueError, match=r"'Bernoulli \(logit\)' is registered already"):
        register(BernoulliLogit)


def test_the_registry_handed_out_is_a_copy():
    known_likelihoods().clear()
    assert known_likelihoods()


def test_parameter_names_follow_pymcs_order():
    pattern = Pattern(
        "SomeRV", ("a", "p", "c"), "p", "scaled_logit", scale="r", rename=(("c", "C"),)
    )
    assert pattern.parameter_names() == ("a", "C", "r")


def test_the_former_name_of_a_pattern_warns():
    own = (PredictorInput("mu"), PredictorInput("sigma", "log"))
    with pytest.warns(FutureWarning, match=r"use Pattern\(rv, inputs, predictors=…\)"):
        former = pac.MultiPattern("NormalRV", ("mu", "sigma"), own)
    assert isinstance(former, pac.Pattern)
    assert former.predictors == pac.Pattern("NormalRV", ("mu", "sigma"), predictors=own).predictors


def test_traits_stated_as_class_attributes_are_read_with_a_warning():
    with pytest.warns(FutureWarning, match=r"Step: state factorises as traits = pac\.Traits"):

        class Step(pac.MultiDensity):
            factorises = True

            def log_density_and_gradient(self, y, eta, params):
                return eta[0], np.ones_like(eta)

    assert Step.traits == pac.Traits(factorises=True, has_gradient=True)
