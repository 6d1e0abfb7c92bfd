"""Crossed and nested effects: a step, effective samples a second, and both beside NUTS.

Data are simulated. The first size is that of InstEval, lecturers' ratings by students; the
others are rows in many groups, in few, and at MovieLens' size.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from typing import Any

import arviz as az
import numpy as np
import pymc as pm

import pymc_augconj as pac
from benchmarks.harness import Row, Settings, measure
from benchmarks.sampling import against_nuts, timed

#: Rows; levels of the factors, the last of which has those of the second nested in it.
SIZES = {
    "InstEval": (73_421, (2_972, 1_128, 14)),
    "15 000 groups": (100_000, (15_000,)),
    "1 000 groups": (1_000_000, (1_000,)),
    "10 000 cells": (1_000_000, (100, 100)),
    "covariates": (1_000_000, (1_000,)),
    "MovieLens": (1_000_000, (6_040, 3_706, 14)),
}
COVARIATES = {"covariates": 5}
CUTPOINTS = np.linspace(-1.5, 1.5, 4)
# Kind and size, milliseconds of a step at most, effective samples a second at least.
BARS = (
    ("Bernoulli", "InstEval", 25.0, 20.0),
    ("Normal", "InstEval", 25.0, 20.0),
    ("Poisson", "InstEval", 100.0, 5.0),
    ("Bernoulli", "15 000 groups", 50.0, 10.0),
    ("Normal", "15 000 groups", 50.0, 10.0),
    ("Bernoulli", "1 000 groups", 50.0, 10.0),
    ("Normal", "1 000 groups", 50.0, 10.0),
    ("ordinal", "InstEval", 150.0, 20.0),
    ("Normal", "10 000 cells", 50.0, 100.0),
    ("Bernoulli", "10 000 cells", 50.0, 100.0),
    ("Normal", "covariates", 50.0, 16.7),
    ("Bernoulli", "covariates", 500.0, 1.67),
    ("Bernoulli", "MovieLens", 250.0, 2.0),
)
# Steps of tuning, and draws.
_TUNING, _DRAWS, _FEWER = 300, 1_000, 300
_LONG = ("MovieLens", "covariates")
# Bar of the quotient of effective samples a second, draws of NUTS, and the seconds it may take.
_AGAINST_NUTS, _NUTS_DRAWS, _LIMIT = 8.0, 300, 600.0


def rows(settings: Settings) -> Iterator[Row]:
    """Yield the rows."""
    for kind, size, most, least in BARS[:1] if settings.quick else BARS:
        length = {"tune": _TUNING, "draws": _FEWER if size in _LONG else _DRAWS}
        if settings.quick:
            length = {"tune": 30, "draws": 30}
        found = measure("benchmarks.crossed:chain", cores=1, kind=kind, size=size, **length)
        print(
            f"  {kind}, {size}: {found['step_ms']:.2f} ms a step, read in {found['read_s']:.1f} s, "
            f"{found['peak_gb']:.2f} GB"
        )
        label = f"a step, {kind}, {size}"
        yield Row(label, found["step_ms"], None, "ms", most, "at most", details=found)
        label = f"scales of {kind}, {size}: least ESS/s of one chain"
        yield Row(label, found["ess_per_second"], None, "ESS/s", least, "at least", details=found)
    for kind in ("Bernoulli",) if settings.quick else ("Bernoulli", "Normal"):
        usual = 20 if settings.quick else _NUTS_DRAWS
        draws = settings.nuts_draws or usual
        ours = {"draws": 50, "tune": 50} if settings.quick else {"draws": _DRAWS, "tune": None}
        yield against_nuts(
            settings,
            f"{kind}, InstEval's size: least ESS/s of the scales",
            _AGAINST_NUTS,
            gibbs=ours,
            nuts={"draws": draws, "tune": draws},
            limit=_LIMIT,
            function="benchmarks.crossed:run",
            kind=kind,
        )


def chain(*, kind: str, size: str, tune: int, draws: int) -> dict[str, Any]:
    """Time the steps of one chain of ``pac.sample``; count the effective samples of its scales."""
    model, scales = build(kind, *SIZES[size], COVARIATES.get(size, 0))
    names = [model.rvs_to_values[model[name]].name for name in scales]
    start = time.process_time()
    step = pac.AugmentedGibbs(model=model)
    step.prepare(None, tune + draws)
    read, point, found = time.process_time() - start, model.initial_point(), []
    step.setup_chain(np.random.default_rng(1), tune, draws)
    for i in range(tune + draws):
        if i == tune:
            step.stop_tuning()
            start = time.process_time()
        point, _ = step.step(point)
        found.append([float(point[name]) for name in names])
    seconds = time.process_time() - start
    ess = [float(az.ess(column[None])) for column in np.array(found[tune:]).T]
    return {
        "read_s": read,
        "step_ms": 1e3 * seconds / draws,
        "ess": dict(zip(scales, ess, strict=True)),
        "ess_per_second": min(ess) / seconds,
        "peak_gb": 1e-6 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def run(*, sampler: str, data: str, kind: str, draws: int, tune: int | None) -> dict[str, Any]:
    """Run :func:`benchmarks.sampling.timed` at InstEval's size."""
    return timed(*build(kind, *SIZES["InstEval"]), sampler=sampler, draws=draws, tune=tune)


def simulate(
    rng: np.random.Generator, kind: str, n_rows: int, levels: tuple[int, ...], covariates: int = 0
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray, np.ndarray]:
    """Return the observations, the level of each factor, covariates, and the linear predictor."""
    index = [rng.integers(size, size=n_rows) for size in levels[:2]]
    if len(levels) > len(index):
        index.append(rng.integers(levels[2], size=levels[1])[index[1]])
    eta = np.zeros(n_rows)
    for k, (own, size) in enumerate(zip(index, levels, strict=True)):
        eta += (0.3 + 0.1 * k) * rng.normal(size=size)[own]
    X = rng.normal(size=(n_rows, covariates))
    eta += X @ (0.3 * rng.normal(size=covariates))
    if kind == "Normal":
        y = eta + rng.normal(size=n_rows)
    elif kind == "Poisson":
        y = rng.poisson(np.exp(eta))
    elif kind == "ordinal":
        y = np.digitize(eta + rng.logistic(size=n_rows), CUTPOINTS)
    else:
        y = rng.random(n_rows) < 1.0 / (1.0 + np.exp(-eta))
    return y, index, X, eta


def build(
    kind: str, n_rows: int, levels: tuple[int, ...], covariates: int = 0
) -> tuple[pm.Model, list[str]]:
    """Return a model, and the names of its scales."""
    y, index, X, _ = simulate(np.random.default_rng(0), kind, n_rows, levels, covariates)
    with pm.Model() as model:
        eta, scales = pm.Normal("intercept", 0, 2), []
        if covariates:
            eta = eta + pm.math.dot(X, pm.Normal("slopes", 0, 1, shape=covariates))
        for k, (own, size) in enumerate(zip(index, levels, strict=True)):
            scales.append(f"scale {k}")
            eta = eta + pm.Normal(f"effects {k}", 0, pm.HalfNormal(scales[-1], 1), shape=size)[own]
        if kind == "Normal":
            pm.Normal("y", eta, pm.HalfNormal("noise", 1), observed=y)
            return model, [*scales, "noise"]
        if kind == "Poisson":
            pm.Poisson("y", pm.math.exp(eta), observed=y)
        elif kind == "ordinal":
            ordered = pm.distributions.transforms.ordered
            c = pm.Normal("cutpoints", CUTPOINTS, 2, transform=ordered, initval=CUTPOINTS)
            pm.OrderedLogistic("y", eta=eta, cutpoints=c, observed=y)
        else:
            pm.Bernoulli("y", logit_p=eta, observed=y.astype(int))
    return model, scales
