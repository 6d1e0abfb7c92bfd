"""The Gibbs sampler and long NUTS runs find the same posterior, on real data.

Each pair of means and standard deviations must agree within five combined Monte Carlo standard
errors, once every quantity has 250 effective draws in both runs.
"""

from __future__ import annotations

from functools import cache, partial

import arviz as az
import numpy as np
import nutpie
import pymc as pm
import pytest
from nutpie.compiled_pyfunc import from_pyfunc
from pymc.blocking import DictToArrayBijection, RaveledVars
from sklearn.datasets import load_breast_cancer, load_diabetes
from statsmodels.datasets import randhie

import pymc_augconj as pac
from pymc_augconj.recognition.graph.functions import PointFunction

FEWEST_EFFECTIVE = 250
STANDARD_ERRORS = 5.0


def standardized(x):
    return (x - x.mean(axis=0)) / x.std(axis=0)


def classification():
    """Breast cancer by two features; kernel and intercept learned."""
    data = load_breast_cancer()
    rows = np.random.default_rng(0).choice(data.target.size, 25, replace=False)
    X = standardized(data.data[rows][:, [0, 1]])
    with pm.Model() as model:
        ls, eta = pm.InverseGamma("ls", 5, 10), pm.Gamma("eta", 4, 4)
        b0 = pm.Normal("b0", 0, 1)
        f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=ls)).prior("f", X=X)
        pm.Bernoulli("y", logit_p=b0 + f, observed=data.target[rows])
    return model, ["ls", "eta"], ["b0", "f"]


def visits(wrong=1.0):
    """Visits to a doctor, negative binomial; group effects, a slope and α learned."""
    data = randhie.load_pandas().data
    data = data.iloc[np.random.default_rng(1).choice(len(data), 150, replace=False)]
    levels, group = np.unique(data["lncoins"].to_numpy().round(3), return_inverse=True)
    with pm.Model() as model:
        b0, slope = pm.Normal("b0", 0, 1), pm.Normal("slope", 0, 1)
        tau, alpha = pm.Gamma("tau", 3, 6), pm.Gamma("alpha", 2, 1)
        # Not centred, for the sake of NUTS.
        a = pm.Deterministic("a", tau * pm.Normal("z", 0, 1, shape=levels.size))
        log_mean = b0 + a[group] + slope * standardized(data["disea"].to_numpy())
        pm.NegativeBinomial(
            "y",
            mu=pm.math.exp(wrong * log_mean),
            alpha=alpha,
            observed=data["mdvis"].to_numpy().astype(int),
        )
    return model, ["tau", "alpha"], ["b0", "slope", "a"]


def regression():
    """Progression of diabetes by body mass, Student-t; kernel, mean, ν and σ learned."""
    X, y = load_diabetes(return_X_y=True)
    rows = np.random.default_rng(2).choice(y.size, 20, replace=False)
    X, y = standardized(X[rows][:, [2]]), standardized(y[rows])
    with pm.Model() as model:
        ls, eta = pm.InverseGamma("ls", 5, 5), pm.Gamma("eta", 4, 4)
        c = pm.Normal("c", 0, 0.5)
        nu, sigma = pm.Gamma("nu", 2, 0.1), pm.HalfNormal("sigma", 1)
        gp = pm.gp.Latent(
            mean_func=pm.gp.mean.Constant(c), cov_func=eta**2 * pm.gp.cov.Matern52(1, ls=ls)
        )
        f = gp.prior("f", X=X)
        pm.StudentT("y", nu=nu, mu=f, sigma=sigma, observed=y)
    return model, ["ls", "eta", "nu", "sigma"], ["c", "f"]


def quantities(idata, positive, real):
    """Return the draws of every scalar, shape (chain, draw); positive ones as logarithms."""
    found = {}
    for name in (*positive, *real):
        x = idata.posterior[name].values
        x = x.reshape(*x.shape[:2], -1)
        for k in range(x.shape[-1]):
            found[f"{name}[{k}]"] = np.log(x[..., k]) if name in positive else x[..., k]
    return found


def largest_difference(first, second):
    """Return the largest difference of a mean or sd, in Monte Carlo standard errors."""
    assert first.keys() == second.keys()
    worst = {}
    for name in first:
        a, b = first[name], second[name]
        for draws in (a, b):
            effective = [float(az.ess(draws, method=m)) for m in ("bulk", "mean", "sd")]
            assert min(effective) > FEWEST_EFFECTIVE, (name, effective)
        for what, moment in (("mean", np.mean), ("sd", np.std)):
            error = np.hypot(*(float(az.mcse(draws, method=what)) for draws in (a, b)))
            worst[f"{what} of {name}"] = abs(moment(a) - moment(b)) / error
    name = max(worst, key=worst.get)
    return worst[name], name


@cache
def gibbs(build, draws):
    model, *names = build()
    idata = pac.sample(
        draws, tune=200, chains=2, cores=1, model=model, random_seed=3, progressbar=False
    )
    return quantities(idata, *names)


def nuts(build, draws):
    """NUTS on PyMC's log density and its gradient, executed uncompiled: compiling takes longer."""
    model, *names = build()
    start = DictToArrayBijection.map(model.initial_point())
    names_of = [name for group in names for name in group]
    values = {value.name: value for value in model.value_vars}
    density = PointFunction([model.logp(), model.dlogp()], values).compile()
    shown = model.replace_rvs_by_values([model[name] for name in names_of])
    constrained = PointFunction(shown, values).compile()

    def point(x):
        return DictToArrayBijection.rmap(RaveledVars(x, start.point_map_info))

    found = constrained(point(start.data))
    compiled = from_pyfunc(
        start.data.size,
        make_logp_fn=lambda: lambda x: tuple(density(point(x))),
        make_expand_fn=lambda *_: lambda x: dict(zip(names_of, constrained(point(x)), strict=True)),
        make_initial_point_fn=lambda seed: (
            start.data + np.random.default_rng(seed).uniform(-1.0, 1.0, start.data.size)
        ),
        expanded_dtypes=[x.dtype for x in found],
        expanded_shapes=[x.shape for x in found],
        expanded_names=names_of,
    )
    options = {"chains": 2, "cores": 1, "target_accept": 0.9, "seed": 4, "progress_bar": False}
    return quantities(nutpie.sample(compiled, draws=draws, tune=400, **options), *names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "draws", "nuts_draws"),
    [(classification, 1200, 600), (regression, 450, 450), (visits, 500, 800)],
    ids=["classification", "regression", "visits"],
)
def test_the_posterior_is_that_of_nuts(build, draws, nuts_draws):
    found = largest_difference(gibbs(build, draws), nuts(build, nuts_draws))
    assert found[0] < STANDARD_ERRORS, found


@pytest.mark.slow
def test_another_posterior_is_told_apart():
    found = largest_difference(gibbs(visits, 500), gibbs(partial(visits, wrong=1.15), 500))
    assert found[0] > STANDARD_ERRORS
