"""Variational fits against GPflow's, and predictions against PyMC's own.

GPflow (with TensorFlow) does not install beside PyMC. Its side of a row is what a separate
environment measured once on comparable hardware: VGP with natural gradients, kernel fixed, took
5 to 8 s to the converged bound with tracing; natural gradients and Adam, kernel learned, 16 s. The
bars are a twentieth of that. The converged bounds are GPflow's too.

Ours is timed as a user meets it: the call of ``pac.fit``, recognition included, once in a process
that has fitted nothing (the row's number) and once more after that (in the details).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pymc as pm

import pymc_augconj as pac
from benchmarks.harness import Row, Settings, measure
from benchmarks.problems import build, load, median_distance

JITTER = 1e-6
# Data, noise, converged VGP bound with the kernel fixed, GPflow's least seconds to it.
PROBLEMS = (("heart", "logit", -127.5384, 5.0), ("housing", "student_t", -593.0049, 5.0))
LEARNED_SECONDS = 16.0
SPEED_UP = 20.0
BOUND_TOLERANCE = 1e-4
PREDICTION = {"n": 500, "n_new": 200, "chains": 4, "draws": 1000}


def measure_fit(*, data: str, name: str, noise: str, learned: bool, method: str) -> dict[str, Any]:
    """Fit twice; return the bounds and the seconds."""
    X, y = load(data, name)
    model = build(X, y, noise, learned=True) if learned else _fixed(X, y, noise)
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        vi = pac.fit(method, model=model, progressbar=False)
        seconds.append(time.perf_counter() - start)
    return {
        "first_seconds": seconds[0],
        "second_seconds": seconds[1],
        "bound": vi.evidence,
        "iterations": len(vi.history),
        "converged": vi.converged,
        "timings": vi.timings,
        "theta": {key: np.asarray(value).tolist() for key, value in vi.theta.items()},
    }


def _fixed(X, y, noise: str) -> pm.Model:
    with pm.Model() as model:
        cov = pm.gp.cov.ExpQuad(X.shape[1], ls=median_distance(X))
        f = pm.gp.Latent(cov_func=cov).prior("f", X=X, jitter=JITTER)
        if noise == "logit":
            pm.Bernoulli("y", logit_p=f, observed=y > 0)
        else:
            pm.StudentT("y", nu=3, mu=f, sigma=1, observed=y)
    return model


def measure_prediction(*, learned: bool, pymc_draws: int) -> dict[str, Any]:
    """Predict f at new inputs from 4 × 1000 draws, with either package."""
    import arviz as az

    rng = np.random.default_rng(0)
    n, chains, draws = (PREDICTION[key] for key in ("n", "chains", "draws"))
    X, Xnew = rng.uniform(-3.0, 3.0, (n, 2)), rng.uniform(-3.0, 3.0, (PREDICTION["n_new"], 2))
    y = np.sin(X.sum(axis=1)) + 0.3 * rng.standard_t(3, size=n)
    with pm.Model():
        ls = pm.InverseGamma("ls", 5, 5) if learned else 1.0
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=ls))
        pm.StudentT("y", nu=4, mu=gp.prior("f", X=X), sigma=0.3, observed=y)
        vi = pac.fit("cavi", progressbar=False)
        posterior = vi.sample(chains * draws, random_seed=0).posterior
        shape = {k: v.values.reshape(chains, draws, *v.shape[2:]) for k, v in posterior.items()}
        if learned:
            shape["ls"] = shape["ls"] * np.exp(0.1 * rng.standard_normal((chains, draws)))
        tree = az.from_dict({"posterior": shape})
        start = time.perf_counter()
        pac.predict(tree, gp, Xnew, random_seed=0)
        ours = time.perf_counter() - start
        gp.conditional("f_new", Xnew)
        some = tree.isel(draw=slice(0, pymc_draws // chains))
        start = time.perf_counter()
        pm.sample_posterior_predictive(some, var_names=["f_new"], progressbar=False, random_seed=0)
        theirs = time.perf_counter() - start
    return {"seconds": ours, "pymc_seconds": theirs, "pymc_draws": pymc_draws}


def rows(settings: Settings) -> Iterator[Row]:
    """Yield rows for bounds, times with the kernel fixed and learned, and predictions."""
    data = str(settings.data.resolve())
    for name, noise, reference, seconds in PROBLEMS:
        for learned in (False, True):
            for method in ("vgp", "cavi"):
                found = measure(
                    "benchmarks.variational:measure_fit",
                    data=data,
                    name=name,
                    noise=noise,
                    learned=learned,
                    method=method,
                )
                kernel = "learned" if learned else "fixed"
                yield Row(
                    benchmark=f"{method}, kernel {kernel}, {name}, {noise}: converged fit",
                    ours=found["first_seconds"],
                    floor=LEARNED_SECONDS if learned else seconds,
                    unit="s",
                    bar=1.0 / SPEED_UP,
                    bar_is="at most",
                    details=found,
                )
                if method == "vgp" and not learned:
                    yield Row(
                        benchmark=f"vgp, {name}, {noise}: bound, distance from {reference}",
                        ours=abs(found["bound"] - reference),
                        floor=None,
                        unit="nats",
                        bar=BOUND_TOLERANCE,
                        bar_is="at most",
                        details=found,
                    )
    for learned in (False, True):
        found = measure(
            "benchmarks.variational:measure_prediction",
            learned=learned,
            pymc_draws=200 if settings.quick else 4000,
        )
        yield Row(
            benchmark=f"predict f, kernel {'learned' if learned else 'fixed'}, 4 × 1000 draws",
            ours=found["seconds"],
            floor=found["pymc_seconds"],
            unit="s",
            bar=0.5,
            bar_is="at most",
            details=found,
        )
