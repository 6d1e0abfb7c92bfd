"""A million observations never become an n × n array."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pymc as pm
import pytest

from pymc_augconj.api.recognize import recognize

N = 200_000
N_GROUPS = 100
LARGEST_PEAK = 400e6  # bytes; an n × n array of bits would be 5e9

RNG = np.random.default_rng(11)
X = RNG.standard_normal((N, 2))
BINARY = RNG.integers(0, 2, N)
COUNTS = RNG.poisson(2, N)
GROUP = RNG.integers(0, N_GROUPS, N)


def observe(eta):
    pm.Bernoulli("y", logit_p=eta + pm.Normal("b", 0, 1), observed=BINARY)


def process(inputs, **kwargs):
    ls, eta = pm.InverseGamma("ls", 5, 5), pm.HalfNormal("eta", 1)
    cov = eta**2 * pm.gp.cov.ExpQuad(2, ls=ls)
    mean = pm.gp.mean.Constant(pm.Normal("c", 0, 1))
    return pm.gp.Latent(mean_func=mean, cov_func=cov).prior("f", X=inputs, **kwargs)


MODELS = {
    "whitened process": (lambda: observe(process(X)), "identity"),
    "process": (lambda: observe(process(X, reparameterize=False)), "identity"),
    "process on data": (lambda: observe(process(pm.Data("X", X))), "identity"),
    "indexed process": (lambda: observe(process(X[:N_GROUPS])[GROUP]), "selection"),
    "noise": (
        lambda: pm.NegativeBinomial(
            "y",
            mu=pm.math.exp(pm.Normal("f", 0, pm.HalfNormal("s", 1), shape=N)),
            alpha=pm.Gamma("alpha", 2, 1),
            observed=COUNTS,
        ),
        "identity",
    ),
    "non-centred effects": (
        lambda: observe((pm.HalfNormal("s", 1) * pm.Normal("f", 0, 1, shape=N_GROUPS))[GROUP]),
        "selection, scaled by hyperparameters",
    ),
    "design": (lambda: observe(X @ pm.Normal("f", 0, 1, shape=2)), "design matrix"),
}


@pytest.mark.parametrize("case", MODELS)
def test_many_observations(case):
    build, kind = MODELS[case]
    with pm.Model() as model:
        build()
    tracemalloc.start()
    try:
        recognition = recognize(model)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    kinds = {b.name: k for b, k in zip(recognition.model.blocks, recognition.kinds, strict=True)}
    assert kinds["f"] == kind
    assert peak < LARGEST_PEAK
