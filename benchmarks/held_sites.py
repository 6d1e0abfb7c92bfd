"""Held sites beside NUTS: effective samples a second, and a draw beside the augmentations.

Coal mining counts and the pines' locations are log-Gaussian Cox processes on a grid; the latter
with the priors of Hensman et al. (2015). Heart's kernel has a length scale for each feature. The
regressions are simulated; those on rare classes and counts are where auxiliary variables mix
slowly, and what counts there is the effective samples a draw.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pymc as pm
from scipy.special import expit

from benchmarks.harness import Row, Settings, measure
from benchmarks.problems import load
from benchmarks.sampling import against_nuts, timed

# Problem, bar of the quotient of effective samples a second, draws of either sampler.
AGAINST_NUTS = (
    ("coal", 15.0, 1000, 500),
    ("pines 16", 20.0, 1000, 200),
    ("pines 32", 20.0, 300, 40),
    ("heart, ARD", 1.0, 500, 100),
    ("Beta", 1.0, 2000, 1000),
    ("ordinal", 1.0, 2000, 1000),
    ("Binomial", 1.0, 2000, 1000),
    ("Bernoulli", 1.0, 2000, 1000),
)
# Seconds that NUTS may take.
_LIMIT = 1200.0
# Of effective samples a draw, beside those with auxiliary variables.
AGAINST_AUGMENTED = (("Binomial", 5.0), ("Bernoulli", 5.0))


def rows(settings: Settings) -> Iterator[Row]:
    """Yield the rows."""
    for problem, bar, draws, usual in AGAINST_NUTS:
        nuts = settings.nuts_draws or (20 if settings.quick else usual)
        yield against_nuts(
            settings,
            f"held sites, {problem}: least ESS/s",
            bar,
            gibbs={"draws": 50, "tune": 50} if settings.quick else {"draws": draws, "tune": None},
            nuts={"draws": nuts, "tune": nuts},
            limit=_LIMIT,
            function="benchmarks.held_sites:run",
            problem=problem,
        )
    for problem, bar in AGAINST_AUGMENTED:
        found: dict[str, Any] = {
            sites: measure(
                "benchmarks.held_sites:run",
                sampler="gibbs",
                data=str(settings.data.resolve()),
                problem=problem,
                draws=100 if settings.quick else 2000,
                tune=None,
                sites=sites,
            )
            for sites in ("auto", "augmented")
        }
        ours, theirs = (one["ess_min"] / one["draws"] / 2 for one in found.values())
        label = f"held sites, {problem} regression: least ESS a draw, beside auxiliary variables"
        yield Row(label, ours, theirs, "ESS/draw", bar, "at least", details=found)


def run(
    *,
    sampler: str,
    data: str,
    problem: str,
    draws: int,
    tune: int | None,
    sites: Literal["auto", "augmented", "held"] = "auto",
) -> dict[str, Any]:
    """Run :func:`benchmarks.sampling.timed` on one of the problems."""
    model, names = build(Path(data), problem)
    return timed(model, names, sampler=sampler, draws=draws, tune=tune, sites=sites)


def build(data: Path, problem: str) -> tuple[pm.Model, list[str]]:
    """Return a model, and the variables of which the least effective sample size is taken."""
    kind, _, size = problem.partition(" ")
    with pm.Model() as model:
        if kind == "coal":
            return model, _coal(data)
        if kind == "pines":
            return model, _pines(data, int(size))
        if kind == "heart,":
            return model, _heart(data)
        return model, _regression(kind)


def _coal(data: Path) -> list[str]:
    years = np.loadtxt(data / "coal_dates.txt", ndmin=1).ravel()
    counts = np.bincount(np.floor(years).astype(int) - 1851, minlength=112)[:112]
    ls, eta = pm.InverseGamma("ls", 5, 100), pm.HalfNormal("eta", 1)
    mean = pm.Normal("mean", 0, 2)
    cov = eta**2 * pm.gp.cov.ExpQuad(1, ls=ls)
    f = pm.gp.Latent(cov_func=cov).prior("f", X=np.arange(112.0)[:, None])
    pm.Poisson("y", mu=pm.math.exp(mean + f), observed=counts)
    return ["f", "ls", "eta", "mean"]


def _pines(data: Path, n_cells: int) -> list[str]:
    places = 10.0 * np.loadtxt(data / "pines.csv", delimiter=",", skiprows=1)[:, :2]
    counts, *_ = np.histogram2d(*places.T, bins=n_cells, range=[[0, 10], [0, 10]])
    middles = (np.arange(n_cells) + 0.5) * 10.0 / n_cells
    X = np.stack(np.meshgrid(middles, middles, indexing="ij"), axis=-1).reshape(-1, 2)
    ls, var = pm.Gamma("ls", 1.75, 1), pm.Gamma("var", 1.2, 1)
    mean = pm.Normal("mean", 0, 2)
    f = pm.gp.Latent(cov_func=var * pm.gp.cov.ExpQuad(2, ls=ls)).prior("f", X=X)
    exposure = (10.0 / n_cells) ** 2
    pm.Poisson("y", mu=exposure * pm.math.exp(mean + f), observed=counts.ravel().astype(int))
    return ["f", "ls", "var", "mean"]


def _heart(data: Path) -> list[str]:
    X, y = load(str(data), "heart")
    ls, eta = pm.InverseGamma("ls", 5, 10, shape=X.shape[1]), pm.HalfNormal("eta", 2)
    f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(X.shape[1], ls=ls)).prior("f", X=X)
    pm.Bernoulli("y", logit_p=f, observed=y)
    return ["f", "ls", "eta"]


def _regression(kind: str) -> list[str]:
    """Write a regression on three features, and simulate its observations."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((500, 3))
    true = 0.3 + X @ [1.0, -0.5, 0.25]
    p = expit(true)
    b = pm.Normal("b", 0, 2, shape=3)
    if kind == "ordinal":
        cutpoints = pm.Normal(
            "cutpoints",
            [-1.0, 1.0],
            1.0,
            transform=pm.distributions.transforms.ordered,
            initval=[-1.0, 1.0],
        )
        y = np.digitize(true + rng.logistic(size=500), [-0.7, 0.8])
        eta = pm.math.dot(X, b)
        pm.OrderedLogistic("y", eta=eta, cutpoints=cutpoints, observed=y)
        return ["b", "cutpoints"]
    eta = pm.Normal("a", 0, 2) + pm.math.dot(X, b)
    match kind:
        case "Beta":
            nu = pm.Gamma("nu", 2, 0.1)
            y = rng.beta(8 * p, 8 * (1 - p))
            pm.Beta("y", mu=pm.math.invlogit(eta), nu=nu, observed=y)
            return ["a", "b", "nu"]
        case "Binomial":
            y = rng.binomial(200, expit(true - 4.0))
            pm.Binomial("y", n=200, logit_p=eta, observed=y)
        case _:
            y = rng.random(500) < expit(true - 4.0)
            pm.Bernoulli("y", logit_p=eta, observed=y.astype(int))
    return ["a", "b"]
