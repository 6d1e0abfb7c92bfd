"""A likelihood stated by its φ has the posterior of the same likelihood's closed form."""

from __future__ import annotations

from functools import cache

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_augconj as pac

N = 12
DRAWS, CHAINS = {"Laplace": 450, "Student-t": 550, "Matérn": 450, "logit": 400}, 2
FEWEST_EFFECTIVE = 250
LARGEST_ERROR = 5.0

RNG = np.random.default_rng(8)
X = np.sort(RNG.uniform(0, 4, N))[:, None]
Y = np.sin(2 * X[:, 0]) + 0.4 * RNG.standard_t(3, N)
SIGNS = np.where(Y > 0, 1, -1)

LOG_PHI = {
    "Laplace": lambda r, s: -pt.sqrt(r) / s,
    "Student-t": lambda r, s: -2 * pt.log1p(r / (3 * s**2)),
    "Matérn": lambda r, s: pt.log1p(pt.sqrt(3 * r) / s) - pt.sqrt(3 * r) / s,
}
CLOSED = {
    "Laplace": lambda f, s: pm.Laplace("y", f, s, observed=Y),
    "Student-t": lambda f, s: pm.StudentT("y", nu=3, mu=f, sigma=s, observed=Y),
    "Matérn": lambda f, s: pac.MaternNoise("y", nu=1.5, mu=f, rho=s, observed=Y),
    "logit": lambda f, s: pm.Bernoulli("y", logit_p=f, observed=SIGNS > 0),
}


def stated(name, wrong=1.0):
    """The likelihood by its φ; ``wrong`` multiplies the scale."""
    if name != "logit":
        return lambda f, s: pac.SuperGaussian(
            "y", f, log_phi=lambda r: LOG_PHI[name](r, wrong * s), observed=Y
        )
    return lambda f, s: pac.SuperGaussian(
        "y",
        f / wrong,
        log_phi=lambda r: -pt.log(pt.cosh(pt.sqrt(r) / 2)),
        g=SIGNS / 2,
        log_c=-np.log(2),
        observed=SIGNS,
    )


def posterior(likelihood, draws, seed):
    with pm.Model():
        s = pm.HalfNormal("s")
        f = pm.gp.Latent(cov_func=2.0 * pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=X)
        likelihood(f, s)
        idata = pac.sample(
            draws,
            tune=100,
            chains=CHAINS,
            cores=1,
            random_seed=seed,
            progressbar=False,
            compute_convergence_checks=False,
        )
    return idata["posterior"].to_dataset()[["s", "f"]]


@cache
def closed(name):
    return posterior(CLOSED[name], DRAWS[name], seed=1)


def largest_error(a, b):
    """Largest difference of means and of second moments, in standard errors."""
    errors = []
    for power in (1, 2):
        first, second = a**power, b**power
        for draws in (first, second):
            ess = az.ess(draws)
            assert min(float(ess[v].min()) for v in ess.data_vars) > FEWEST_EFFECTIVE
        mcse = [az.mcse(draws) for draws in (first, second)]
        for v in first.data_vars:
            difference = (
                first[v].mean(("chain", "draw")).values - second[v].mean(("chain", "draw")).values
            )
            error = np.sqrt(mcse[0][v].values ** 2 + mcse[1][v].values ** 2)
            errors.append(np.max(np.abs(difference) / error))
    return max(errors)


@pytest.mark.parametrize("name", CLOSED)
def test_stated_by_its_phi_it_is_the_closed_form(name):
    assert largest_error(posterior(stated(name), DRAWS[name], seed=2), closed(name)) < LARGEST_ERROR


@pytest.mark.parametrize("name", ["Laplace", "logit"])
def test_wrong_scale_is_found_out(name):
    assert (
        largest_error(posterior(stated(name, wrong=1.5), DRAWS[name], seed=3), closed(name))
        > LARGEST_ERROR
    )


def test_hyperparameters_that_leave_no_mixture_are_refused_where_they_are_met():
    """exp(−rᵖ) is completely monotone up to p = 1; what the data ask for lies above."""
    rng = np.random.default_rng(0)
    X = np.linspace(0.0, 3.0, 30)[:, None]
    y = np.sin(2.0 * X[:, 0]) + rng.uniform(-0.3, 0.3, 30)
    with pm.Model():
        p = pm.Uniform("p", 0.2, 2.5, initval=0.7)
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=X)
        pac.SuperGaussian("y", f, log_phi=lambda r: -((r / 0.1) ** p), observed=y)
        with pytest.raises(pac.NotSuperGaussianError, match=r"'y': log_phi .*completely monotone"):
            pac.fit("cavi", progressbar=False, max_iter=20)
        with pytest.raises(pac.NotSuperGaussianError, match="no auxiliary variable; give them"):
            pac.sample(draws=50, tune=50, chains=1, progressbar=False, random_seed=1)
        # Its density needs no auxiliary variable.
        assert pac.fit("vgp", progressbar=False).theta["p"] > 1.0
