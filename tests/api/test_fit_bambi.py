"""``pac.fit_bambi`` returns what bambi's own fit does."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pymc as pm
import pytest

import pymc_augconj as pac

bmb = pytest.importorskip("bambi")
# Of bambi's own code.
pytestmark = pytest.mark.filterwarnings("ignore:For backward compatibility, 'str' dtypes")

QUIET = {"progressbar": False, "quiet": True, "compute_convergence_checks": False, "cores": 1}
OPTIONS = {"tune": 1, "chains": 2, "random_seed": 1, **QUIET}

rng = np.random.default_rng(1)
N = 60
X = 2.0 + rng.standard_normal(N)
GROUP = rng.integers(0, 4, N)
ETA = -1.5 + 0.8 * X + np.linspace(-1.0, 1.0, 4)[GROUP]
DATA = pd.DataFrame(
    {
        "x": X,
        "group": GROUP.astype(str),
        "yes": rng.binomial(1, 1.0 / (1.0 + np.exp(-ETA))),
        "count": rng.poisson(np.exp(0.3 * ETA)),
        "real": ETA + rng.standard_t(4, N),
        "rating": pd.Categorical(np.digitize(ETA + rng.logistic(size=N), [-1, 1]), ordered=True),
    }
)
NEW = pd.DataFrame({"x": [1.0, 3.0], "group": ["0", "3"]})
MODELS = {
    "bernoulli": "yes ~ x + (1|group)",
    "poisson": "count ~ x + (1|group)",
    "t": "real ~ x + (1|group)",
    "cumulative": "rating ~ x",
    "sratio": "rating ~ x",
}


@pytest.mark.parametrize("family", MODELS)
def test_two_lines(family):
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        # That families of ordinal data have no intercept.
        data = DATA[:20] if family == "sratio" else DATA
        model = bmb.Model(MODELS[family], data, family=family)
    idata = pac.fit_bambi(model, 6, **OPTIONS)

    assert not any(name.endswith("_offset") for name in idata.posterior)
    assert idata.posterior.attrs["modeling_interface"] == "bambi"
    assert "__obs__" not in idata.posterior.dims
    predicted = model.predict(idata, data=NEW, inplace=False)
    (name,) = set(predicted.posterior.data_vars) - set(idata.posterior.data_vars)
    assert predicted.posterior[name].sizes["__obs__"] == 2
    model.predict(idata, kind="response")
    response = idata["posterior_predictive"][model.response_term.name]
    assert response.sizes["__obs__"] == len(data)


def test_the_same_groups_as_bambis_and_the_same_numbers():
    model = bmb.Model(MODELS["bernoulli"], DATA, family="bernoulli")
    theirs = model.fit(draws=4, inference_method="pymc", **OPTIONS)
    ours = pac.fit_bambi(model, 400, include_response_params=True, **{**OPTIONS, "tune": 100})
    for name, values in theirs.posterior.data_vars.items():
        assert ours.posterior[name].dims == values.dims
        for dim in values.dims[2:]:
            np.testing.assert_array_equal(ours.posterior[dim], values[dim])
    # The intercept is that of predictors that are not centred: it gives bambi's own p.
    p = ours.posterior["p"].values
    draws = ours.posterior
    effects = draws["1|group"].sel({"group__factor_dim": DATA["group"].tolist()}).values
    eta = draws["Intercept"].values[..., None] + draws["x"].values[..., None] * X + effects
    np.testing.assert_allclose(p, 1.0 / (1.0 + np.exp(-eta)), rtol=1e-9)
    slope = draws["x"].values
    assert abs(slope.mean() - 0.8) < 4.0 * slope.std()


def test_what_is_no_model_of_bambi_is_refused():
    with pytest.raises(TypeError, match=r"expected a bambi.Model, got Model; use pac.sample"):
        pac.fit_bambi(pm.Model())
    model = bmb.Model(MODELS["t"], DATA, family="t")
    with pytest.raises(TypeError, match="expected no 'blocking'; leave it out"):
        pac.fit_bambi(model, blocking=False)
