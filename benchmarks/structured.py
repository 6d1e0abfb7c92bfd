"""Random walks and maps: growth of a step with n, and effective samples a second beside NUTS.

All data are simulated. The stochastic volatility model is that of PyMC's gallery, whose data are as
many daily returns. The map of 56 areas has as many as Scotland's districts, on a grid of 7 × 8.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pymc as pm
import statsmodels.api as sm

import pymc_augconj as pac
from benchmarks.harness import Row, Settings, measure
from benchmarks.sampling import against_nuts, timed

SIZES = (1_000, 10_000, 100_000, 1_000_000)
# Milliseconds of a step at n = 100 000; what ten times as many may take beyond ten times that.
_STEP_BAR, _GROWTH_BAR = 60.0, 1.5
# Steps in which the update of the hyperparameters learns their scales: two of its windows.
_TUNING_STEPS = 80
# Problem, bar of the quotient of effective samples a second, draws of either sampler.
AGAINST_NUTS = (
    ("stochastic volatility, n = 2906", 20.0, 1000, 300),
    ("counts of a random walk, n = 2000", 20.0, 1000, 300),
    ("map of 56 areas", 5.0, 1000, 500),
    ("map of 2500 areas", 20.0, 400, 150),
)
# Seconds that NUTS may take.
_LIMIT = 420.0


def rows(settings: Settings) -> Iterator[Row]:
    """Yield the rows."""
    times: dict[int, Any] = {}
    for n in SIZES[:2] if settings.quick else SIZES:
        found = measure("benchmarks.structured:step_time", cores=1, n=n, repetitions=20)
        times[n] = found
        print(f"  random walk with Student-t noise, n = {n:,}: {found['step_ms']:.2f} ms a step")
        if n == 100_000:
            label = "a step, random walk with Student-t noise, n = 100 000"
            yield Row(label, found["step_ms"], None, "ms", _STEP_BAR, "at most", details=found)
    largest, before = sorted(times)[:-3:-1]
    growth = times[largest]["step_ms"] / times[before]["step_ms"] * before / largest
    label = f"growth of a step from n = {before:,} to {largest:,}, over that of n"
    yield Row(
        label, growth, None, "", _GROWTH_BAR, "at most", details={str(n): times[n] for n in times}
    )
    found = measure("benchmarks.structured:smoother", cores=1, n=10_000)
    label = "level of a random walk with normal noise, n = 10 000: fit beside Kalman smoother"
    yield Row(label, found["ours"], found["theirs"], "ms", 1.0, "at most", details=found)
    for problem, bar, draws, usual in AGAINST_NUTS:
        nuts = settings.nuts_draws or (20 if settings.quick else usual)
        yield against_nuts(
            settings,
            f"{problem}: least ESS/s",
            bar,
            gibbs={"draws": 50, "tune": 50} if settings.quick else {"draws": draws, "tune": None},
            nuts={"draws": nuts, "tune": nuts},
            limit=_LIMIT,
            function="benchmarks.structured:run",
            problem=problem,
        )


def step_time(*, n: int, repetitions: int) -> dict[str, Any]:
    """Time steps of a random walk with Student-t noise, its steps and the noise's scale learned.

    They are those of a tuned chain, as nearly all steps are.
    """
    rng = np.random.default_rng(1)
    y = np.cumsum(0.1 * rng.normal(size=n)) + 0.3 * rng.standard_t(4, size=n)
    with pm.Model() as model:
        step_size, noise = pm.HalfNormal("step", 1), pm.HalfNormal("noise", 1)
        level = _walk("level", step_size, n)
        pm.StudentT("y", nu=4, mu=level, sigma=noise, observed=y)
        start = time.perf_counter()
        step = pac.AugmentedGibbs()
        built = time.perf_counter() - start
        point = model.initial_point(random_seed=1)
    step.setup_chain(np.random.default_rng(1), _TUNING_STEPS, repetitions)
    for _ in range(_TUNING_STEPS):
        point, _ = step.step(point)
    step.stop_tuning()
    seconds, evaluations = np.empty(repetitions), 0
    for i in range(repetitions):
        start = time.perf_counter()
        point, (stats,) = step.step(point)
        seconds[i] = time.perf_counter() - start
        evaluations += stats["evaluations"]
    quartiles = (1e3 * np.quantile(seconds, [0.25, 0.75])).tolist()
    return {
        "n": n,
        "built_s": built,
        "step_ms": 1e3 * float(np.median(seconds)),
        "step_ms_quartiles": quartiles,
        "evaluations": evaluations / repetitions,
    }


def smoother(*, n: int) -> dict[str, Any]:
    """Time mean and variances of a level given normal noise, beside statsmodels' smoother.

    Reading the model is not counted, nor is writing statsmodels' own.
    """
    rng = np.random.default_rng(1)
    y = np.cumsum(0.1 * rng.normal(size=n)) + 0.3 * rng.normal(size=n)
    with pm.Model() as model:
        pm.Normal("y", _walk("level", 0.1, n), 0.3, observed=y)
    theirs = sm.tsa.UnobservedComponents(y, "llevel")
    theirs.ssm.initialize_known(np.zeros(1), np.ones((1, 1)))
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(6):
        fit = pac.fit("vgp", model=model, progressbar=False)
        mean, std = fit.mean["level"].values, fit.std["level"].values
        seconds["ours"].append(fit.timings["optimisation"])
        start = time.perf_counter()
        smoothed = theirs.smooth([0.09, 0.01])
        seconds["theirs"].append(time.perf_counter() - start)
    np.testing.assert_allclose(smoothed.smoothed_state[0], mean, atol=1e-6)
    np.testing.assert_allclose(smoothed.smoothed_state_cov[0, 0], std**2, rtol=1e-6)
    # The first call of either compiles.
    return {name: 1e3 * float(np.median(found[1:])) for name, found in seconds.items()}


def run(*, sampler: str, data: str, problem: str, draws: int, tune: int | None) -> dict[str, Any]:
    """Run :func:`benchmarks.sampling.timed` on one of the problems."""
    model, names = build(problem)
    return timed(model, names, sampler=sampler, draws=draws, tune=tune)


def build(problem: str) -> tuple[pm.Model, list[str]]:
    """Return a model, and the variables of which the least effective sample size is taken."""
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        if problem.startswith("stochastic"):
            n = 2906
            log_scale = np.cumsum(0.05 * rng.normal(size=n)) - 4.5
            returns = np.exp(log_scale) * rng.standard_t(10, size=n)
            step_size, nu = pm.Exponential("step", 10), pm.Exponential("nu", 0.1)
            init = pm.Normal.dist(-4.5, 3)
            h = pm.GaussianRandomWalk("h", sigma=step_size, init_dist=init, shape=n)
            pm.StudentT("y", nu=nu, lam=pm.math.exp(-2 * h), observed=returns)
            return model, ["h", "step", "nu"]
        if problem.startswith("counts"):
            n = 2000
            counts = rng.poisson(np.exp(1.0 + np.cumsum(0.05 * rng.normal(size=n))))
            h = _walk("h", pm.HalfNormal("step", 0.5), n)
            level = pm.Normal("level", 0, 2)
            pm.Poisson("y", pm.math.exp(level + h), observed=counts)
            return model, ["h", "step", "level"]
        height, width = (7, 8) if "56" in problem else (50, 50)
        return model, _map(rng, height, width)


def _map(rng: np.random.Generator, height: int, width: int) -> list[str]:
    """Besag, York & Mollié's model of counts in areas."""
    along = [np.eye(k, k=1) + np.eye(k, k=-1) for k in (height, width)]
    W = np.kron(along[0], np.eye(width)) + np.kron(np.eye(height), along[1])
    n = len(W)
    smooth = np.sin(np.arange(height) / 3)[:, None] * np.cos(np.arange(width) / 4)
    exposure = rng.gamma(3.0, 3.0, size=n)
    risk = np.exp(0.5 * smooth.ravel() + 0.2 * rng.normal(size=n))
    level = pm.Normal("level", 0, 2)
    structured, own = pm.HalfNormal("structured", 1), pm.HalfNormal("own", 1)
    phi, theta = pm.ICAR("phi", W=W.astype(int)), pm.Normal("theta", 0, 1, shape=n)
    eta = level + structured * phi + own * theta
    pm.Poisson("y", exposure * pm.math.exp(eta), observed=rng.poisson(exposure * risk))
    return ["level", "structured", "own", "phi"]


def _walk(name: str, step_size: Any, n: int) -> Any:
    init = pm.Normal.dist(0, 1)
    return pm.GaussianRandomWalk(name, sigma=step_size, init_dist=init, shape=n)
