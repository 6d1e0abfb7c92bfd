"""What works on any PyMC trace works on the sampler's."""

from __future__ import annotations

import arviz as az
import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac

X = np.linspace(0.0, 1.0, 30)[:, None]
X_NEW = np.array([[0.25], [0.5], [1.5]])
Y = np.random.default_rng(3).binomial(4, 1 / (1 + np.exp(-4 * np.sin(6 * X[:, 0]))))
QUIET = {"progressbar": False, "random_seed": 5, "compute_convergence_checks": False}


def write():
    ls, eta = pm.InverseGamma("ls", 5, 2), pm.HalfNormal("eta", 1)
    gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=ls))
    f = gp.prior("f", X=X)
    pm.Binomial("y", n=4, logit_p=f, observed=Y)
    return gp


@pytest.fixture(scope="module", params=["pac.sample", "pm.sample"])
def fitted(request):
    """A model, its GP and a result, by either entrance."""
    with pm.Model() as model:
        gp = write()
        options = {"draws": 300, "tune": 100, "chains": 2, "cores": 1, **QUIET}
        if request.param == "pac.sample":
            idata = pac.sample(**options)
        else:
            idata = pm.sample(step=pac.AugmentedGibbs(), **options)
    return model, gp, idata


def test_posterior_predictive(fitted, compiled):
    model, _, idata = fitted
    with model, compiled():
        drawn = pm.sample_posterior_predictive(idata, progressbar=False, random_seed=1)
    predicted = drawn.posterior_predictive["y"]
    assert predicted.shape == (2, 300, 30)
    expected = 4 / (1 + np.exp(-idata.posterior["f"].values))
    assert np.abs(predicted.values.mean(axis=(0, 1)) - expected.mean(axis=(0, 1))).max() < 0.5


def test_prediction_at_new_inputs(fitted):
    _, _, idata = fitted
    # A model of its own, so that the fixture's stays without the new variable.
    with pm.Model():
        write().conditional("f_new", X_NEW)
        drawn = pm.sample_posterior_predictive(
            idata, var_names=["f_new"], progressbar=False, random_seed=1
        )
    new = (drawn.predictions if "predictions" in drawn.children else drawn.posterior_predictive)[
        "f_new"
    ].values
    assert new.shape == (2, 300, 3)
    f = idata.posterior["f"].values
    # Between inputs f is interpolated; beyond them only the prior speaks.
    between = np.array([np.interp(0.5, X[:, 0], row) for row in f.reshape(-1, 30)])
    assert np.corrcoef(new[..., 1].ravel(), between)[0, 1] > 0.9
    assert new[..., 2].std() > new[..., 1].std()


@pytest.mark.filterwarnings("ignore:Detected variables likely created by GP objects")
# Of 600 draws the shape is a rough estimate, and some seeds have one above ArviZ's limit.
@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto distribution")
def test_log_likelihood_and_loo(fitted):
    model, _, idata = fitted
    with model:
        with_likelihood = pm.compute_log_likelihood(
            idata, progressbar=False, extend_inferencedata=False
        )
    log_likelihood = with_likelihood["y"]
    assert log_likelihood.shape == (2, 300, 30)
    tree = idata.copy()
    tree["log_likelihood"] = with_likelihood
    result = az.loo(tree)
    assert -30 * np.log(5) * 2 < result.elpd < 0
    assert result.p < 15


def test_summary_and_diagnostics(fitted):
    _, _, idata = fitted
    summary = az.summary(idata, var_names=["ls", "eta", "f"])
    assert len(summary) == 32
    rhat = az.rhat(idata, var_names=["ls", "eta", "f"])
    assert max(float(rhat[name].max()) for name in rhat.data_vars) < 1.1
