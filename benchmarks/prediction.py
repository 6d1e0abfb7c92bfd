"""Predictions from draws against PyMC's own: ``gp.conditional`` and posterior predictive."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pymc as pm

import pymc_augconj as pac
from benchmarks.harness import Row, Settings, measure

PREDICTION = {"n": 500, "n_new": 200, "chains": 4, "draws": 1000}


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
    """Yield rows for draws with the kernel fixed and learned."""
    for learned in (False, True):
        found = measure(
            "benchmarks.prediction:measure_prediction",
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
