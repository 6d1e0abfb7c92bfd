"""What ``pac.fit`` takes of EP alone, and what EP says about its state."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac

QUIET = {"progressbar": False}
DIAGNOSTICS = {
    "residual",
    "sweeps",
    "damping",
    "n_negative",
    "smallest_cavity_precision",
    "method",
}


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(3)
    X = np.linspace(-2.0, 2.0, 20)[:, None]
    y = np.sin(2.0 * X[:, 0]) + 0.1 * rng.standard_normal(20)
    y[[4, 13]] += [3.0, -4.0]
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 5, 5)
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls)).prior("f", X=X)
        pm.StudentT("y", nu=3, mu=f, sigma=0.2, observed=y)
    return model


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        ("vgp", {"power": 0.5}, r"power: expected it with method='ep' only, got it with .*'vgp'"),
        ("cavi", {"damping": 0.5}, "damping: expected it with method='ep' only"),
        ("qp", {"schedule": "sequential"}, "schedule: expected it with method='ep' only"),
        ("ep", {"power": 0.0}, r"power: expected a number in \(0, 1\], got 0.0"),
        ("ep", {"power": 1.5}, r"power: expected a number in \(0, 1\], got 1.5"),
        ("ep", {"power": float("nan")}, r"power: expected a number in \(0, 1\], got nan"),
        ("ep", {"damping": 0.001}, r"damping: expected a number in \[0.01, 1\], got 0.001"),
        ("ep", {"damping": "half"}, r"damping: expected a number .*, got 'half'"),
        ("ep", {"damping": True}, r"damping: expected a number .*, got True"),
        ("cavi", {"max_iter": 0}, "max_iter: expected a positive integer, got 0"),
        ("ep", {"max_iter": 2.5}, "max_iter: expected a positive integer, got 2.5"),
        ("svi", {"max_iter": None}, "max_iter: expected a positive integer, got None"),
        ("vgp", {"tol": 0}, "tol: expected a finite number above 0, got 0"),
        ("qp", {"tol": float("nan")}, "tol: expected a finite number above 0, got nan"),
        ("cavi", {"optimize_inducing": True}, r"optimize_inducing: expected it with method='svi'"),
        ("ep", {"schedule": "random"}, r"schedule: expected one of .*'sequential'\], got 'random'"),
    ],
)
def test_options_are_refused_before_anything_is_computed(method, options, sentence):
    # Nothing here can be recognised, and not even that has been found out.
    with pm.Model(), pytest.raises(pac.AugmentationError, match=sentence):
        pac.fit(method, **options, **QUIET)


@pytest.mark.parametrize("call", [pac.fit, lambda **options: pac.predict(None, None, **options)])
def test_an_unknown_option_is_named(call):
    with pm.Model(), pytest.raises(TypeError, match="unexpected keyword argument 'powr'"):
        call(powr=0.5)


def test_options_arrive(model):
    fixed = {"model": model, "hyper": "fixed", "tol": 1e-8, **QUIET}
    plain = pac.fit("ep", **fixed)
    assert plain.diagnostics["method"] == "parallel"
    one_by_one = pac.fit("ep", schedule="sequential", damping=0.7, **fixed)
    assert one_by_one.diagnostics["method"] == "sequential"
    assert one_by_one.diagnostics["damping"] <= 0.7
    assert one_by_one.log_evidence == pytest.approx(plain.log_evidence, abs=1e-7)
    half = pac.fit("ep", power=0.5, **fixed)
    assert abs(half.log_evidence - plain.log_evidence) > 1e-4
    # As η falls, the sites go to those of the VGP.
    vgp = pac.fit("vgp", **fixed)
    tiny = pac.fit("ep", power=0.02, damping=0.5, **fixed)
    distance = [np.abs(one.std["f"] - vgp.std["f"]).max() for one in (plain, half, tiny)]
    assert distance[2] < distance[1] < distance[0]


@pytest.mark.parametrize("method", ["ep", "qp"])
def test_diagnostics_are_kept(model, method, tmp_path):
    fit = pac.fit(method, model=model, **QUIET)
    found = fit.diagnostics
    assert set(found) >= DIAGNOSTICS
    assert fit.converged
    assert 0.0 <= found["residual"] <= 1e-6
    assert found["n_negative"] == np.count_nonzero(fit.lam < 0.0)
    assert found["n_negative"] > 0
    assert found["smallest_cavity_precision"] > 0.0
    assert 0.0 < found["damping"] <= 1.0
    assert pickle.loads(pickle.dumps(fit)).diagnostics == found
    fit.save(tmp_path / "fit")
    assert pac.Approximation.load(tmp_path / "fit").diagnostics == found


def test_other_methods_have_none(model):
    assert pac.fit("cavi", model=model, hyper="fixed", **QUIET).diagnostics == {}


@pytest.mark.parametrize("hyper", ["fixed", "map"])
@pytest.mark.parametrize("method", ["ep", "qp"])
def test_no_convergence_is_told_once_and_recorded(model, method, hyper):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit = pac.fit(method, model=model, hyper=hyper, max_iter=1, **QUIET)
    told = [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]
    assert len(told) == 1
    assert f"method={method!r}" in told[0]
    assert "increase max_iter" in told[0]
    assert not fit.converged
    assert fit.message in told[0]
    assert not fit.diagnostics["converged"]
    assert fit.diagnostics["residual"] > 1e-6
    assert np.isfinite(fit.mean["f"].values).all()
