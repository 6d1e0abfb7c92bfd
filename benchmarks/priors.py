"""Priors and outcomes beyond normal coefficients and one normal outcome, beside NUTS.

Horseshoes, lasso and Student-t coefficients; item response, factor analysis; outcomes that are
vectors; mixtures. Data are simulated, but for ``ovarian.npz`` and ``prostate.npz`` of the posterior
database, which are left out where the folder of data has none. Chains run one after the other: the
smallest bulk effective sample size a second of a whole call by processor time, and alone, from the
time that the samplers record. That has no compilation: the package's kernels are those of the
machine, compiled by a first run that is not timed.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from benchmarks.harness import CORES, Row, Settings, compile_kernels, measure
from benchmarks.sampling import timed

# Seconds that NUTS may take.
_LIMIT = 900.0
# Draws and tuning of models whose steps take some microseconds, of which a call's start is none.
_CHEAP = 20_000, 500
#: Builders by name, of the model and the names of what is compared.
PROBLEMS: dict[str, Callable[[Path], tuple[pm.Model, list[str]]]] = {}
#: Bars of the quotient; whether it is of the whole call; draws and tuning of ours, and of NUTS.
LENGTHS: dict[str, tuple[float, bool, tuple[int, int], tuple[int, int]]] = {}


def _problem(
    name: str,
    bar: float,
    ours: tuple[int, int] = (1_000, 300),
    nuts: tuple[int, int] = (1_000, 1_000),
    *,
    whole: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(build: Callable[..., Any]) -> Callable[..., Any]:
        PROBLEMS[name] = build
        LENGTHS[name] = bar, whole, ours, nuts
        return build

    return register


def _horseshoe(X: np.ndarray, y: np.ndarray, scale: float, slab: tuple[float, float]) -> pm.Model:
    """Return a regularised horseshoe (Piironen & Vehtari 2017) in PyMC's usual spelling."""
    width, nu = slab
    with pm.Model() as model:
        alpha = pm.Normal("alpha", 0.0, 5.0)
        tau, lam = pm.HalfCauchy("tau", scale), pm.HalfCauchy("lam", 1.0, shape=X.shape[1])
        c2 = pm.InverseGamma("c2", 0.5 * nu, 0.5 * nu * width**2)
        shrunk = lam * pt.sqrt(c2 / (c2 + tau**2 * lam**2))
        z = pm.Normal("z", 0.0, 1.0, shape=X.shape[1])
        beta = pm.Deterministic("beta", z * tau * shrunk)
        pm.Bernoulli("y", logit_p=alpha + pt.dot(X, beta), observed=y)
    return model


_OF_HORSESHOE = ["alpha", "tau", "c2", "lam", "beta"]


@_problem("rhs logistic, 100 × 200", 20.0, whole=True)
def _rhs(_: Path) -> tuple[pm.Model, list[str]]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100, 200))
    eta = X[:, :5] @ np.array([2.0, -2.0, 2.0, -2.0, 2.0])
    y = (rng.random(100) < 1.0 / (1.0 + np.exp(-eta))).astype(int)
    return _horseshoe(X, y, 5.0 / 195.0 * 2.0 / 10.0, (2.0, 4.0)), _OF_HORSESHOE


def _expression(data: Path, name: str, scale: float) -> tuple[pm.Model, list[str]]:
    found = np.load(data / f"{name}.npz")
    return _horseshoe(found["X"], found["y"].astype(int), scale, (2.0, 100.0)), _OF_HORSESHOE


@_problem("ovarian, 54 × 1 536", 20.0, (600, 200), (500, 500), whole=True)
def _ovarian(data: Path) -> tuple[pm.Model, list[str]]:
    return _expression(data, "ovarian", 4.44e-4)


@_problem("prostate, 102 × 5 966", 20.0, (400, 100), (200, 300), whole=True)
def _prostate(data: Path) -> tuple[pm.Model, list[str]]:
    return _expression(data, "prostate", 8.31e-5)


def _linear(n: int, p: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    return X, X[:, :3] @ np.array([2.0, -1.0, 0.5]) + rng.standard_normal(n)


@_problem("Student-t coefficients, 200 × 10", 5.0, _CHEAP, (5_000, 1_000))
def _student(_: Path) -> tuple[pm.Model, list[str]]:
    X, y = _linear(200, 10, 1)
    with pm.Model() as model:
        b = pm.StudentT("b", nu=3, mu=0.0, sigma=pm.HalfNormal("s", 1.0), shape=10)
        pm.Normal("y", pt.dot(X, b), pm.HalfNormal("sigma", 2.0), observed=y)
    return model, ["b", "s", "sigma"]


@_problem("Laplace lasso, 100 × 50", 5.0, _CHEAP, (5_000, 1_000))
def _lasso(_: Path) -> tuple[pm.Model, list[str]]:
    X, y = _linear(100, 50, 2)
    with pm.Model() as model:
        b = pm.Laplace("b", 0.0, pm.HalfCauchy("s", 1.0), shape=50)
        pm.Normal("y", pt.dot(X, b), pm.HalfNormal("sigma", 2.0), observed=y)
    return model, ["b", "s", "sigma"]


def _item_response(persons: int, items: int, *, slopes: bool) -> tuple[pm.Model, list[str]]:
    rng = np.random.default_rng(3)
    a = np.exp(0.3 * rng.standard_normal(items)) if slopes else np.ones(items)
    eta = a * (rng.standard_normal(persons)[:, None] - rng.standard_normal(items))
    y = (rng.random(eta.shape) < 1.0 / (1.0 + np.exp(-eta))).astype(int)
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, 1.0, shape=persons)
        b = pm.Normal("b", 0.0, pm.HalfNormal("sd", 2.0), shape=items)
        found = pm.LogNormal("a", 0.0, 0.5, shape=items) if slopes else 1.0
        pm.Bernoulli("y", logit_p=found * (theta[:, None] - b), observed=y)
    return model, ["theta", "b", "sd", *(["a"] if slopes else [])]


@_problem("item response 1PL, 100 × 20", 5.0)
def _one_small(_: Path) -> tuple[pm.Model, list[str]]:
    return _item_response(100, 20, slopes=False)


@_problem("item response 1PL, 1 000 × 50", 5.0, (600, 200), (300, 300))
def _one_large(_: Path) -> tuple[pm.Model, list[str]]:
    return _item_response(1_000, 50, slopes=False)


@_problem("item response 2PL, 100 × 20", 2.0)
def _two_small(_: Path) -> tuple[pm.Model, list[str]]:
    return _item_response(100, 20, slopes=True)


@_problem("item response 2PL, 1 000 × 50", 2.0, (600, 200), (300, 300))
def _two_large(_: Path) -> tuple[pm.Model, list[str]]:
    return _item_response(1_000, 50, slopes=True)


@_problem("factor analysis, 100 × 8, k = 2", 2.0)
def _factors(_: Path) -> tuple[pm.Model, list[str]]:
    rng = np.random.default_rng(4)
    W = rng.standard_normal((8, 2))
    y = rng.standard_normal((100, 2)) @ W.T + 0.5 * rng.standard_normal((100, 8))
    with pm.Model() as model:
        f = pm.Normal("f", 0.0, 1.0, shape=(100, 2))
        w = pm.Normal("w", 0.0, 1.0, shape=(8, 2))
        # Rotations leave the density as it is.
        pm.Deterministic("common", w @ w.T)
        pm.Normal("y", f @ w.T, pm.HalfNormal("sigma", 1.0), observed=y)
    return model, ["common", "sigma"]


@_problem("two outcomes, LKJ, n = 300", 5.0, _CHEAP, (5_000, 1_000))
def _lkj(_: Path) -> tuple[pm.Model, list[str]]:
    rng = np.random.default_rng(5)
    X = rng.standard_normal((300, 4))
    noise = rng.multivariate_normal(np.zeros(2), [[1.0, 0.6], [0.6, 1.5]], 300)
    y = X @ rng.standard_normal((4, 2)) + noise
    with pm.Model() as model:
        B = pm.Normal("B", 0.0, 2.0, shape=(4, 2))
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0))
        pm.MvNormal("y", mu=pt.dot(X, B), chol=chol, observed=y)
    return model, ["B", "chol_corr", "chol_stds"]


@_problem("VAR(2) of three series, n = 200", 5.0, _CHEAP, (5_000, 1_000))
def _var(_: Path) -> tuple[pm.Model, list[str]]:
    rng = np.random.default_rng(6)
    series = np.zeros((202, 3))
    for t in range(2, 202):
        series[t] = 0.5 * series[t - 1] - 0.2 * series[t - 2] + rng.standard_normal(3)
    lags = np.hstack([series[1:-1], series[:-2]])
    with pm.Model() as model:
        level = pm.Normal("level", 0.0, 1.0, shape=3)
        B = pm.Normal("B", 0.0, pm.HalfNormal("s", 0.5), shape=(6, 3))
        chol, _, _ = pm.LKJCholeskyCov("chol", n=3, eta=2.0, sd_dist=pm.Exponential.dist(1.0))
        pm.MvNormal("y", mu=level + pt.dot(lags, B), chol=chol, observed=series[2:])
    return model, ["level", "B", "s", "chol_stds"]


@_problem("mixture of two regressions, n = 200", 2.0, _CHEAP, (5_000, 1_000))
def _mixture(_: Path) -> tuple[pm.Model, list[str]]:
    rng = np.random.default_rng(7)
    x, first = rng.standard_normal(200), rng.random(200) < 0.4
    y = np.where(first, -2.0 - x, 2.0 + x) + 0.5 * rng.standard_normal(200)
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.ones(2))
        a = pm.Normal("a", np.array([-2.0, 2.0]), 1.0, shape=2)
        b = pm.Normal("b", 0.0, 2.0, shape=2)
        sigma = pm.HalfNormal("sigma", 1.0, shape=2)
        pm.NormalMixture("y", w=w, mu=a + b * x[:, None], sigma=sigma, observed=y)
    return model, ["w", "a", "b", "sigma"]


@_problem("process with outliers, n = 80", 2.0, (500, 300), (500, 500))
def _outliers(_: Path) -> tuple[pm.Model, list[str]]:
    rng = np.random.default_rng(8)
    x = np.sort(rng.uniform(0.0, 10.0, 80))
    y = np.sin(x) + np.where(rng.random(80) < 0.1, 3.0, 0.2) * rng.standard_normal(80)
    with pm.Model() as model:
        cov = pm.HalfNormal("eta", 2.0) ** 2 * pm.gp.cov.ExpQuad(1, pm.Gamma("ls", 4.0, 2.0))
        f = pm.gp.Latent(cov_func=cov).prior("f", x[:, None])
        w, sigma = pm.Beta("w", 2.0, 10.0), pm.HalfNormal("sigma", 1.0)
        pm.NormalMixture(
            "y", w=pt.stack([1.0 - w, w]), mu=pt.stack([f, f], axis=1),
            sigma=pt.stack([sigma, 10.0 * sigma]), observed=y,
        )  # fmt: skip
    return model, ["f", "eta", "ls", "w", "sigma"]


def run(*, sampler: str, name: str, draws: int, tune: int, data: str) -> dict[str, Any]:
    """Sample chains one after the other; the clocks start at the call, the model written."""
    model, names = PROBLEMS[name](Path(data))
    return timed(
        model, names, sampler=sampler, draws=draws, tune=tune, cores=1, clock=time.process_time
    )


def rows(settings: Settings) -> Iterator[Row]:
    """Yield a row per model; the kernels are compiled before."""
    with tempfile.TemporaryDirectory(prefix="augconj-kernels-") as folder:
        compile_kernels(Path(folder))
        data = settings.data.resolve()
        run_of = "benchmarks.priors:run"
        call = partial(measure, run_of, cores=1, data=str(data), kernels=Path(folder))
        yield from _rows(settings, data, call)


def _rows(settings: Settings, data: Path, call: Callable[..., dict[str, Any]]) -> Iterator[Row]:
    for name, (bar, whole, *lengths) in LENGTHS.items():
        file = data / f"{name.split(',')[0]}.npz"
        if name.split(",")[0] in ("ovarian", "prostate") and not file.exists():
            print(f"  {name}: left out, there is no {file}")
            continue
        runs: dict[str, Any] = {}
        for sampler, (draws, tune) in zip(("gibbs", "nuts"), lengths, strict=True):
            length = {"draws": 20, "tune": 20} if settings.quick else {"draws": draws, "tune": tune}
            try:
                found = call(limit=_LIMIT, sampler=sampler, name=name, **length)
            except subprocess.TimeoutExpired:
                found = {
                    "ess_min_per_second": 0.0,
                    "ess_min_per_sampling_second": 0.0,
                    "limit": _LIMIT,
                }
                print(f"  {name}, {sampler}: not finished in {_LIMIT:.0f} s")
            else:
                print(
                    f"  {name}, {sampler}: {found['seconds']:.1f} s of processor time, "
                    f"{found['sampling_seconds']:.1f} s sampling, least ESS "
                    f"{found['ess_min']:.0f} of {CORES * length['draws']}, largest R-hat "
                    f"{found['r_hat_max']:.3f}",
                    flush=True,
                )
            runs[sampler] = found
        key = "ess_min_per_second" if whole else "ess_min_per_sampling_second"
        yield Row(
            f"{name}: least ESS/s {'end to end' if whole else 'alone'}", runs["gibbs"][key],
            runs["nuts"][key], "ESS/s", bar, "at least", details=runs,
        )  # fmt: skip
