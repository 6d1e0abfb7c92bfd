"""Noise that varies, on the motorcycle data: held-out density with it, without, and GPflow's.

All on the same ten folds. GPflow's is an SVGP with the logarithm of the standard deviation as its
second process, HeteroskedasticTFPConditional, until its loss stands still; seconds are those of ten
fits and predictions, of GPflow's ten fits alone. At the end NUTS beside the Gibbs sampler, on all
the data.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm

import pymc_augconj as pac
from benchmarks.gpflow_environment import run_script
from benchmarks.harness import Row, Settings, measure
from benchmarks.sampling import against_nuts, timed

FOLDS = 10
# GPflow's inducing points, at even distances, and the most steps in a fold.
INDUCING, STEPS = 30, 3000
SPEED_UP = 10.0
# Draws of the Gibbs sampler and of NUTS, whose seconds are limited.
LENGTHS = {"gibbs": 1000, "nuts": 500}
LIMIT = 400.0
DRAWS = {"draws": 500, "tune": 200, "chains": 1, "random_seed": 0}


def load_folds(data: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return times (n, 1) and accelerations (n,), both standardised, and folds (n,)."""
    table = np.loadtxt(Path(data) / "mcycle.csv", delimiter=",")
    x, y = ((column - column.mean()) / column.std() for column in table.T)
    fold = np.random.default_rng(0).permutation(len(x)) % FOLDS
    return x[:, None], y, fold


def process(name: str, scale: float, X: np.ndarray) -> tuple[Any, Any]:
    """Return a process with a learned kernel, and its values at X."""
    ls, eta = pm.InverseGamma(f"ls_{name}", 3, 1), pm.HalfNormal(f"eta_{name}", scale)
    gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.Matern52(1, ls=ls))
    return gp, gp.prior(name, X=X)


def constant_noise(X: np.ndarray, y: np.ndarray) -> Any:
    """Write the model without processes for the noise; return what predicts y."""
    gp, f = process("f", 1.0, X)
    pm.Normal("y", f, pm.HalfNormal("sigma", 1.0), observed=y)
    return gp


def bounded_precision(X: np.ndarray, y: np.ndarray) -> Any:
    """Write y ~ N(f, 1/(r σ(g))); return what predicts y."""
    (gp_f, f), (gp_g, g) = process("f", 1.0, X), process("g", 3.0, X)
    tau = pm.Gamma("r", 1.5, 0.01) * pm.math.sigmoid(g)
    pm.Normal("y", f, tau=tau, observed=y)
    return [gp_f, gp_g]


def log_link(X: np.ndarray, y: np.ndarray) -> Any:
    """Write y ~ N(f, exp(2 (level + g))); return what predicts y."""
    (gp_f, f), (gp_g, g) = process("f", 1.0, X), process("g", 1.0, X)
    pm.Normal("y", f, sigma=pm.math.exp(pm.Normal("level", -1.0, 1.0) + g), observed=y)
    return [gp_f, gp_g]


MODELS = {
    "constant noise": constant_noise,
    "bounded precision": bounded_precision,
    "log link": log_link,
}


def held_out(*, data: str, name: str, method: str, folds: int) -> dict[str, Any]:
    """Return the held-out log density a point, of ``folds`` folds, and the seconds they took.

    After a colon ``method`` has the structure of q.
    """
    engine, _, structure = method.partition(":")
    X, y, fold = load_folds(data)
    values, start, cpu = [], time.perf_counter(), time.process_time()
    for k in range(folds):
        left = fold != k
        with pm.Model():
            gps = MODELS[name](X[left], y[left])
            if method == "gibbs":
                result = pac.sample(**DRAWS, progressbar=False)
            else:
                result = pac.fit(engine, structure=structure or None, progressbar=False)
            found = pac.predict(result, gps, X[~left], kind="y", ynew=y[~left], random_seed=0)
        values.append(found.predictions["y_log_density"].values)
    return {
        "log_density": float(np.concatenate(values).mean()),
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
    }


def sample_all(
    *, sampler: str, data: str, name: str, draws: int, tune: int | None
) -> dict[str, Any]:
    """Sample the posterior of all the data; see :func:`benchmarks.sampling.timed`."""
    X, y, _ = load_folds(data)
    with pm.Model() as model:
        MODELS[name](X, y)
    names = [rv.name for rv in model.free_RVs if not rv.name.endswith("_rotated_")]
    return timed(model, ["f", "g", *names], sampler=sampler, draws=draws, tune=tune)


def rows(settings: Settings) -> Iterator[Row]:
    """Yield a row for each model and method beside constant noise, and beside GPflow."""
    folds = 1 if settings.quick else FOLDS
    X, y, fold = load_folds(str(settings.data))
    problem = {"X": X, "y": y, "fold": fold, "folds": folds}
    theirs = run_script(
        "gpflow_two_predictors.py", problem, INDUCING, 200 if settings.quick else STEPS
    )
    missing = theirs.get("missing")
    suffix = f" (GPflow could not be installed: {missing})" if missing else ""
    print(f"  GPflow: {theirs}", flush=True)
    # GPflow's q has a factor for each process.
    plans = (("vgp:factorised", "bounded precision"), ("vgp:factorised", "log link"))
    plans += (("vgp", "bounded precision"), ("vgp", "log link"), ("cavi", "bounded precision"))
    plans += (("gibbs", "bounded precision"), ("gibbs", "log link"))
    constant: dict[str, dict[str, Any]] = {}
    for method, name in plans:
        arguments = {"data": str(settings.data.resolve()), "method": method, "folds": folds}
        engine = method.partition(":")[0]
        if engine not in constant:
            constant[engine] = _measure(arguments | {"name": "constant noise", "method": engine})
            print(f"  constant noise, {engine}: {constant[engine]}", flush=True)
        found = _measure(arguments | {"name": name})
        print(f"  {name}, {method}: {found}", flush=True)
        details = {"varying": found, "constant": constant[engine], "theirs": theirs}
        yield Row(
            f"mcycle, {name}, {method}: held-out log density above that of constant noise",
            found["log_density"] - constant[engine]["log_density"],
            None,
            "nats a point",
            0.0,
            "at least",
            details,
        )
        yield Row(
            f"mcycle, {name}, {method}: held-out log density above GPflow's{suffix}",
            found["log_density"] - theirs.get("log_density", np.nan),
            None,
            "nats a point",
            0.0,
            "at least",
            details,
        )
        if method != "gibbs":
            yield Row(
                f"mcycle, {name}, {method}: seconds of {folds} folds beside GPflow's{suffix}",
                found["seconds"],
                theirs.get("seconds", np.nan),
                "s",
                1.0 / SPEED_UP,
                "at most",
                details,
            )
    few = {name: 100 if settings.quick else draws for name, draws in LENGTHS.items()}
    for name in ("bounded precision", "log link"):
        yield against_nuts(
            settings,
            f"mcycle, {name}, learned kernels: least ESS/s",
            20.0,
            gibbs={"draws": few["gibbs"], "tune": None},
            nuts={"draws": few["nuts"], "tune": few["nuts"]},
            limit=LIMIT,
            function="benchmarks.heteroscedastic:sample_all",
            name=name,
        )


def _measure(arguments: dict[str, Any]) -> dict[str, Any]:
    return measure("benchmarks.heteroscedastic:held_out", cores=1, **arguments)
