"""EP and QP: evidences against references, time a site, and QP's time a sweep."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Row, Settings, measure

# (log lengthscale, log amplitude) and log Z of a probit model with a squared exponential kernel.
# The last two of ionosphere are not those that were handed down (−102.343301 and −96.771347):
# these are what GPy's parallel updates stand at after hundreds of sweeps without converging. GPy's
# sequential updates, a textbook implementation by Cholesky factorisation and this package in both
# of its schedules all give the values here.
REFERENCES = {
    "sonar": {(1.0, 1.0): -116.670393, (1.5, 2.0): -93.135528, (2.5, 3.0): -88.664926},
    "ionosphere": {(1.0, 1.0): -118.550360, (1.5, 2.0): -102.366461, (2.5, 3.0): -96.888519},
}
EVIDENCE_BAR, SITE_BAR, SWEEP_BAR = 1e-4, 30.0, 1.5
LIKELIHOODS = ("probit", "logit", "student_t", "laplace", "negative_binomial")
REPEATS = 7


def load(data: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return standardised features, constant ones dropped, and y ∈ {0, 1}."""
    table = np.loadtxt(Path(data) / f"{name}.csv", delimiter=",")
    X = table[:, 1:][:, table[:, 1:].std(axis=0) > 0.0]
    return (X - X.mean(axis=0)) / X.std(axis=0), (table[:, 0] > 0) * 1.0


def squared_exponential(X: np.ndarray, lengthscale: float, amplitude: float) -> np.ndarray:
    """Return the covariance matrix."""
    square = (X**2).sum(axis=1)
    distance = np.maximum(square[:, None] + square - 2.0 * X @ X.T, 0.0)
    return amplitude**2 * np.exp(-0.5 * distance / lengthscale**2)


def density(name: str, y: np.ndarray) -> Any:
    """Return one of the likelihoods that are timed; y ∈ {0, 1}."""
    from pymc_augconj.likelihoods.bernoulli_logit import BernoulliLogit
    from pymc_augconj.likelihoods.bernoulli_probit import BernoulliProbit
    from pymc_augconj.likelihoods.contract import LikelihoodDensity
    from pymc_augconj.likelihoods.laplace import Laplace
    from pymc_augconj.likelihoods.powers_of_sigmoid import NegativeBinomial
    from pymc_augconj.likelihoods.student_t import StudentT

    noise = 0.3 * np.random.default_rng(0).standard_normal(y.size)
    likelihood, y, params = {
        "probit": (BernoulliProbit(), y, {}),
        "logit": (BernoulliLogit(), y, {}),
        "student_t": (StudentT(), y + noise, {"nu": 3.0, "sigma": 0.5}),
        "laplace": (Laplace(), y + noise, {"b": 0.5}),
        "negative_binomial": (NegativeBinomial(), 4.0 * y, {"alpha": 2.0}),
    }[name]
    return LikelihoodDensity(likelihood, y, {k: np.asarray(v) for k, v in params.items()})


def least_time(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return the least time of several calls, in seconds, and what was returned."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        result = function()
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


def evidence(data: str, name: str, log_lengthscale: float, log_amplitude: float, tol: float):
    """Run EP on a probit model; for :func:`benchmarks.harness.measure`."""
    from benchmarks.ep_on_arrays import run_ep

    X, y = load(data, name)
    C = squared_exponential(X, np.exp(log_lengthscale), np.exp(log_amplitude))
    sites = density("probit", y)
    seconds, (_, info) = least_time(lambda: run_ep(C, np.zeros(y.size), sites, tol=tol))
    return {
        "evidence": info.evidence,
        "seconds": seconds,
        "sweeps": info.sweeps,
        "residual": info.residual,
        "converged": info.converged,
    }


def microseconds(name: str, delta: bool):
    """Time tilted moments by quadrature, over cavities of many widths."""
    from pymc_augconj.quadrature.tilted import tilted_moments

    rng = np.random.default_rng(0)
    sites = density(name, rng.integers(0, 2, 400) * 1.0)
    m, v = 2.0 * rng.standard_normal(400), np.exp(2.0 * rng.standard_normal(400))
    seconds, _ = least_time(lambda: tilted_moments(sites, m, v, delta=delta))
    return {"microseconds": seconds / 400.0 * 1e6}


def sweeps(data: str, name: str, likelihood: str):
    """Time EP's and QP's runs, by their evaluations of all sites."""
    from benchmarks.ep_on_arrays import run_ep, run_qp

    X, y = load(data, name)
    C, m = squared_exponential(X, np.exp(1.5), np.exp(2.0)), np.zeros(y.size)
    sites = density(likelihood, y)
    ep_seconds, (state, ep) = least_time(lambda: run_ep(C, m, sites, tol=1e-6))
    qp_seconds, (_, qp) = least_time(lambda: run_qp(C, m, sites, (state.h, state.lam), tol=1e-6))
    return {
        "ep": ep_seconds / ep.evaluations,
        "qp": qp_seconds / qp.evaluations,
        "ep_sweeps": ep.sweeps,
        "qp_sweeps": qp.sweeps,
        "converged": ep.converged and qp.converged,
    }


def rows(settings: Settings) -> Iterator[Row]:
    """Yield evidences, times a site and times a sweep."""
    data = str(settings.data.resolve())
    for name, values in REFERENCES.items():
        for (log_l, log_a), reference in values.items():
            found = measure(
                "benchmarks.ep:evidence",
                data=data,
                name=name,
                log_lengthscale=log_l,
                log_amplitude=log_a,
                tol=1e-8,
            )
            label = f"EP, {name}, log ℓ {log_l:g}, log amplitude {log_a:g}: log Z off by"
            distance = abs(found["evidence"] - reference)
            yield Row(label, distance, None, "nats", EVIDENCE_BAR, "at most", found)
    for likelihood in LIKELIHOODS:
        for delta in (False, True):
            found = measure("benchmarks.ep:microseconds", name=likelihood, delta=delta)
            label = f"tilted moments{' and δ' if delta else ''}, {likelihood}: time a site"
            yield Row(label, found["microseconds"], None, "µs", SITE_BAR, "at most", found)
    for likelihood in LIKELIHOODS[:-1]:
        found = measure("benchmarks.ep:sweeps", data=data, name="ionosphere", likelihood=likelihood)
        label = f"QP against EP, ionosphere, {likelihood}: time a sweep"
        yield Row(label, 1e3 * found["qp"], 1e3 * found["ep"], "ms", SWEEP_BAR, "at most", found)
