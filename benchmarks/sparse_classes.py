"""Sampling classes through inducing points, beside the Gaussian fit that it starts from.

Three classes of a simulated process in the plane, 750 points of which are given and as many left
out (Hensman et al. 2015, section 4.3), and scikit-learn's digits, one fold. Robust-max as in the
paper: a probability of mistakes that is known, and no scale of the processes, on which the largest
of them does not depend. The Gaussian fit chooses the inducing inputs, which both share. Held-out
probabilities are averages over draws of the processes, as many for either.

Where the residual variance is small the expected log density of robust-max is close to a step, and
chains take trajectories. Softmax stands beside it for the toy; of ten classes its expectation is a
sum over a thousand nodes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pymc as pm

import pymc_augconj as pac
from benchmarks.harness import CORES, Row, Settings, measure
from benchmarks.sampling import SEED, diagnose
from benchmarks.several_classes import EPSILON, load_fold

POINTS, SIDE, CLASSES, LENGTH = 750, 10.0, 3, 2.0
# Data, likelihood, inducing points, steps of the fit, draws, steps of tuning.
PLANS = (
    ("toy", "robust-max", 40, 1000, 2000, 500),
    ("toy", "softmax", 40, 1000, 400, 200),
    ("digits", "robust-max", 200, 800, 60, 40),
)
CHAINS = 2
# Draws of the processes that predictions are averages over.
PREDICTED = 4000


def rows(settings: Settings) -> Iterator[Row]:
    """Yield the rows."""
    for name, likelihood, inducing, steps, draws, tune in PLANS:
        if settings.quick:
            steps, draws, tune = 20, 4, 2
        found = measure(
            "benchmarks.sparse_classes:compare",
            name=name, likelihood=likelihood, inducing=inducing, steps=steps, draws=draws,
            tune=tune,
        )  # fmt: skip
        label = f"sparse sampling, {name}, {likelihood}"
        above = found["free_form"]["log_density"] - found["gaussian"]["log_density"]
        yield Row(
            f"{label}: held-out log density above the Gaussian fit's",
            above, None, "nats a point", 0.0, "at least", found,
        )  # fmt: skip


def load(name: str) -> dict[str, np.ndarray]:
    """Return inputs and labels, and those that are left out."""
    if name != "toy":
        return load_fold(name, 0)
    rng = np.random.default_rng(SEED)
    X = rng.uniform(0.0, SIDE, (2 * POINTS, 2))
    squared = ((X[:, None] - X) ** 2).sum(axis=-1)
    K = np.exp(-0.5 * squared / LENGTH**2) + 1e-8 * np.eye(len(X))
    F = np.linalg.cholesky(K) @ rng.standard_normal((len(X), CLASSES))
    y = F.argmax(axis=1)
    return {"X": X[:POINTS], "y": y[:POINTS], "X_test": X[POINTS:], "y_test": y[POINTS:]}


def write(likelihood: str, X: np.ndarray, y: np.ndarray) -> tuple[pm.Model, pm.gp.Latent]:
    """Return a model of classes, and its process."""
    with pm.Model() as model:
        ls, scale = pm.InverseGamma("ls", 3, 6), 1.0
        if likelihood == "softmax":
            scale = pm.HalfNormal("scale", 5)
        gp = pm.gp.Latent(cov_func=scale**2 * pm.gp.cov.ExpQuad(X.shape[1], ls=ls))
        F = gp.prior("F", X=X, n_outputs=int(y.max()) + 1)
        if likelihood == "softmax":
            pm.Categorical("y", logit_p=F.T, observed=y)
        else:
            pac.RobustMax("y", F.T, epsilon=EPSILON, observed=y)
    return model, gp


def compare(
    *, name: str, likelihood: str, inducing: int, steps: int, draws: int, tune: int
) -> dict[str, Any]:
    """Fit and sample; return accuracies, held-out log densities, seconds and effective samples."""
    data = load(name)
    model, gp = write(likelihood, data["X"], data["y"])
    with model:
        start = time.perf_counter()
        fit = pac.fit(
            "svi", gp=gp, inducing=inducing, optimize_inducing=True, max_iter=steps,
            random_seed=SEED, progressbar=False,
        )  # fmt: skip
        found: dict[str, Any] = {"gaussian": {"seconds": time.perf_counter() - start}}
        found["gaussian"] |= _held_out(fit, gp, data, 1000)
        found["gaussian"]["theta"] = {h: float(value) for h, value in fit.theta.items()}
        _show(f"{name}, {likelihood}, Gaussian fit", found["gaussian"])
        start, cpu = time.perf_counter(), _cpu_seconds()
        idata = pac.sample(
            draws, tune=tune, gp=gp, inducing=fit, chains=CHAINS, cores=CORES, random_seed=SEED,
            progressbar=False,
        )  # fmt: skip
        found["free_form"] = {
            "seconds": time.perf_counter() - start,
            "cpu_seconds": _cpu_seconds() - cpu,
        }
        found["free_form"] |= _held_out(idata, gp, data, CHAINS * draws)
    names = ["F_u", *(h for h in ("ls", "scale") if h in model.named_vars)]
    ess, r_hat = diagnose(idata, names)
    stats = idata["sample_stats"]
    found["free_form"] |= {
        "draws": draws,
        "tune": tune,
        "ess": ess,
        "ess_min": min(ess.values()),
        "r_hat_max": r_hat,
        "evaluations": float(stats["evaluations"].mean()),
        "elliptical_trials": float(stats["elliptical_trials"].mean()),
        "residual_std": float(stats["residual_std"].mean()),
        "theta": {h: float(idata["posterior"][h].mean()) for h in names[1:]},
    }
    change = np.subtract(*(found[k]["log_densities"] for k in ("free_form", "gaussian")))
    found["standard_error"] = float(change.std(ddof=1) / np.sqrt(change.size))
    _show(f"{name}, {likelihood}, free-form", found["free_form"])
    print(f"  above: {change.mean():.4f} ± {found['standard_error']:.4f}", flush=True)
    return found


def _cpu_seconds() -> float:
    """Return CPU seconds so far, of processes that have ended too."""
    times = os.times()
    return times.user + times.children_user


def _show(label: str, found: dict[str, Any]) -> None:
    shown = {key: value for key, value in found.items() if key != "log_densities"}
    print(f"  {label}: {shown}", flush=True)


def _held_out(result: Any, gp: pm.gp.Latent, data: dict[str, np.ndarray], each: int) -> dict:
    """Return accuracy and log density a point, given how many draws a prediction takes."""
    repeats = -(-PREDICTED // each)
    # One at a time: each takes memory for all its draws.
    p = sum(
        pac.predict(
            result, gp, data["X_test"], kind="y", joint=False, random_seed=SEED + i
        ).predictions["y_probability"].to_numpy()
        for i in range(repeats)
    ) / repeats  # fmt: skip
    y = data["y_test"]
    log_p = np.log(p[np.arange(y.size), y])
    return {
        "accuracy": float((p.argmax(axis=1) == y).mean()),
        "log_density": float(log_p.mean()),
        "log_densities": log_p.tolist(),
        "size": y.size,
    }
