"""Distributions have the names that users write, not those of PyMC's random variables."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac
from pymc_augconj.recognition.graph.dependence import distribution_name

CUTPOINTS = np.array([-1.0, 1.0])
exp = pm.math.exp

AS_WRITTEN = {
    "OrderedLogistic": lambda f: pm.OrderedLogistic.dist(eta=f, cutpoints=CUTPOINTS),
    "OrderedProbit": lambda f: pm.OrderedProbit.dist(eta=f, cutpoints=CUTPOINTS),
    "Categorical": lambda f: pm.Categorical.dist(logit_p=f),
    "NegativeBinomial": lambda f: pm.NegativeBinomial.dist(mu=exp(f), alpha=1.0),
    "InverseGamma": lambda f: pm.InverseGamma.dist(2.0, exp(f)),
    "Weibull": lambda f: pm.Weibull.dist(1.0, exp(f)),
    "HalfStudentT": lambda f: pm.HalfStudentT.dist(3, exp(f)),
    "LogitNormal": lambda f: pm.LogitNormal.dist(f, 1.0),
    "ZeroInflatedPoisson": lambda f: pm.ZeroInflatedPoisson.dist(psi=0.5, mu=exp(f)),
    "ZeroInflatedNegativeBinomial": lambda f: pm.ZeroInflatedNegativeBinomial.dist(
        psi=0.5, mu=exp(f), alpha=1.0
    ),
    "HurdlePoisson": lambda f: pm.HurdlePoisson.dist(psi=0.5, mu=exp(f)),
    "HurdleGamma": lambda f: pm.HurdleGamma.dist(psi=0.5, mu=exp(f), sigma=1.0),
    "NormalMixture": lambda f: pm.NormalMixture.dist(
        pm.Dirichlet.dist(np.ones(2)), pm.math.stack([f, f + 1.0], axis=-1), 1.0
    ),
    "Mixture": lambda f: pm.Mixture.dist([0.5, 0.5], [pm.Normal.dist(f), pm.Laplace.dist(f, 1.0)]),
}


@pytest.mark.parametrize("name", AS_WRITTEN)
def test_name_is_the_users(name):
    with pm.Model():
        f = pm.Normal("f", shape=3)
        assert distribution_name(AS_WRITTEN[name](f)) == name


def test_name_of_a_density_of_the_users():
    with pm.Model():
        f = pm.Normal("f", shape=3)
        y = pm.CustomDist("y", f, logp=lambda v, f: -((v - f) ** 2), observed=np.zeros(3))
    assert distribution_name(y) == "CustomDist"


def test_messages_name_the_distribution():
    with pm.Model():
        f = pm.Normal("f", shape=3)
        pm.OrderedLogistic("y", eta=f, cutpoints=CUTPOINTS, observed=[0, 1, 2])
        sentence = "'y': no augmentation is known for the distribution OrderedLogistic; expected .*"
        with pytest.raises(pac.UnknownLikelihoodError, match=sentence + "NegativeBinomial"):
            pac.fit("cavi", progressbar=False)
