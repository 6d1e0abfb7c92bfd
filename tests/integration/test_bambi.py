"""Models that bambi writes are sampled as they are."""

from __future__ import annotations

import arviz as az
import numpy as np
import pandas as pd
import pytest

import pymc_augconj as pac

# Of pandas, in formulae.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

GROUPS = 6


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    group = np.arange(120) % GROUPS
    x = rng.standard_normal(120)
    eta = 0.4 + 0.8 * x + np.linspace(-1, 1, GROUPS)[group]
    return pd.DataFrame(
        {
            "x": x,
            "group": group.astype(str),
            "yes": rng.binomial(1, 1 / (1 + np.exp(-eta))),
            "count": rng.poisson(np.exp(eta)),
            "y": eta + 0.5 * rng.standard_t(3, 120),
        }
    )


@pytest.mark.parametrize(
    ("response", "family", "expected"),
    [
        ("yes", "bernoulli", "held sites"),
        ("y", "t", "gamma"),
        ("count", "negativebinomial", "held sites"),
        ("count", "poisson", "held sites"),
    ],
)
def test_families_are_recognised(data, response, family, expected):
    bmb = pytest.importorskip("bambi")
    formula = f"{response} ~ x + (1|group)"
    built = bmb.Model(formula, data, family=family, noncentered=False)
    built.build()
    report = pac.recognize(built.backend.model)
    assert expected in str(report)
    latents = {block.name for block in report.model.blocks}
    assert {"Intercept", "x", "1|group"} <= latents


def test_a_bambi_model_is_sampled(data):
    bmb = pytest.importorskip("bambi")
    built = bmb.Model("yes ~ x + (1|group)", data, family="bernoulli", noncentered=False)
    built.build()
    idata = pac.sample(
        400, model=built.backend.model, chains=2, cores=1, random_seed=1, progressbar=False
    )
    assert float(az.rhat(idata, var_names=["x"])["x"]) < 1.05
    assert 0.2 < float(idata.posterior["x"].mean()) < 1.5
