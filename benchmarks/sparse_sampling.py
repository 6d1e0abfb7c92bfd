"""Sampling through inducing points: the experiments of Hensman et al. (2015), and growth with N.

Coal mining: 100 cells, 30 inducing points, events divided at random into two halves ten times; the
log density a cell of the held-out counts, by the free-form posterior and by the Gaussian fit with
point estimates of the hyperparameters (published −1.225 and −1.229, the former better in each).
Pines: 225 inducing points on grids of 32 × 32 and 64 × 64 (published 3.4 and 4.7 s an effective
sample, 554 s for dense HMC on 32 × 32). Priors of length scale and variance are those published for
the pines, on an axis of length 10; the constant mean is ours.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pymc as pm

import pymc_augconj as pac
from benchmarks import sparse_classes
from benchmarks.gpflow_environment import run_script
from benchmarks.harness import CORES, Row, Settings, measure
from benchmarks.sampling import SEED, diagnose

SIDE = 10.0
HALVES, CELLS, INDUCING = 10, 100, 30
PUBLISHED = -1.225
# Gaussian fits that free-form draws are compared with, and what their hyperparameters maximise: the
# bound and the priors, or the bound alone.
GAUSSIAN = {"Gaussian fit's": "map", "Gaussian fit's without priors": "ml"}
NUMBERS = (4, 8, 15, 30)
# Bar of the quotient of effective samples a second, with nutpie's compilation in it.
AGAINST_NUTS = 10.0
# As GPflow's.
JITTER = 1e-6
# Grid, bar in seconds an effective sample, draws.
PINES = ((32, 0.4, 500), (64, 1.0, 150))
# Rows, draws; M of all, and the bar in GB.
GROWTH = ((1_000, 100), (10_000, 20), (100_000, 5))
GROWTH_INDUCING, LARGEST_MEMORY = 200, 4.0


def rows(settings: Settings) -> Iterator[Row]:
    """Yield the rows."""
    data, quick = str(settings.data.resolve()), settings.quick
    coal = measure(
        "benchmarks.sparse_sampling:coal",
        data=data,
        halves=2 if quick else HALVES,
        draws=50 if quick else 500,
    )
    picture = measure(
        "benchmarks.sparse_sampling:coal_picture", data=data, draws=50 if quick else 1000,
        path=str((settings.output / "coal.png").resolve()),
    )  # fmt: skip
    print(f"  coal: intensities in {picture['path']}", flush=True)
    yield Row(
        "sparse sampling, coal: held-out log density a cell",
        float(np.mean(coal["free_form"])), None, "nats", PUBLISHED, "at least", coal,
    )  # fmt: skip
    for name in GAUSSIAN:
        better = np.array(coal["free_form"]) > np.array(coal[name])
        yield Row(
            f"sparse sampling, coal: halves in which it exceeds the {name}",
            float(better.sum()), None, "halves", float(better.size), "at least", coal,
        )  # fmt: skip
    ours, nuts = (
        measure("benchmarks.sparse_sampling:one_half", data=data, sampler=sampler, draws=draws)
        for sampler, draws in (("gibbs", 100 if quick else 2000), ("nuts", 100 if quick else 1000))
    )
    yield Row(
        "sparse sampling, coal: least ESS/s beside nutpie on sparsify",
        ours["ess_min"] / ours["seconds"], nuts["ess_min"] / nuts["seconds"], "ESS/s",
        AGAINST_NUTS, "at least", {"ours": ours, "nuts": nuts},
    )  # fmt: skip
    growing = measure(
        "benchmarks.sparse_sampling:by_number", data=data, draws=100 if quick else 1000
    )
    yield Row(
        "sparse sampling, coal: least change of held-out density with M, in standard errors",
        min(growing["standardised"]), None, "", -2.0, "at least", growing,
    )  # fmt: skip
    peer = sgpmc(data=data, draws=100 if quick else 5000)
    if "missing" not in peer:
        yield Row(
            "sparse sampling, coal: least ESS/s beside GPflow's SGPMC",
            ours["ess_min"] / ours["seconds"], peer["ess_min"] / peer["seconds"], "ESS/s",
            AGAINST_NUTS, "at least", {"ours": ours, "sgpmc": peer},
        )  # fmt: skip
    for n_cells, bar, draws in PINES:
        found = measure(
            "benchmarks.sparse_sampling:pines",
            data=data,
            n_cells=n_cells,
            draws=20 if quick else draws,
            inducing=15,
        )
        yield Row(
            f"sparse sampling, pines {n_cells}: time of an effective sample",
            found["seconds"] / found["ess_min"], None, "s", bar, "at most", found,
        )  # fmt: skip
    yield from sparse_classes.rows(settings)
    for n, draws in GROWTH[: 1 if quick else None]:
        found = measure("benchmarks.sparse_sampling:growth", n=n, draws=draws)
        yield Row(
            f"sparse sampling, N = {n:,}, M = {GROWTH_INDUCING}: memory",
            found["gigabytes"], None, "GB", LARGEST_MEMORY, "at most", found,
        )  # fmt: skip


def cox(X: np.ndarray, exposure: Any, counts: np.ndarray) -> tuple[pm.Model, pm.gp.Latent]:
    """Write a log-Gaussian Cox process."""
    with pm.Model() as model:
        ls, var = pm.Gamma("ls", 1.75, 1), pm.Gamma("var", 1.2, 1)
        mean = pm.Normal("mean", 0, 2)
        gp = pm.gp.Latent(cov_func=var * pm.gp.cov.ExpQuad(X.shape[1], ls=ls))
        f = gp.prior("f", X=X)
        pm.Poisson("y", mu=exposure * pm.math.exp(mean + f), observed=counts)
    return model, gp


def coal(*, data: str, halves: int, draws: int) -> dict[str, Any]:
    """Return the held-out log densities a cell, one for each half."""
    found: dict[str, list[float]] = {"free_form": [], "ess": [], "seconds": []}
    found |= {name: [] for name in GAUSSIAN}
    for half in range(halves):
        train, test = _halves(data, half)
        model, gp = cox(train.centres, train.exposure, train.counts)
        with model:
            fits = {
                name: pac.fit("vgp", gp=gp, inducing=_evenly(), hyper=hyper, progressbar=False)
                for name, hyper in GAUSSIAN.items()
            }
            start = time.perf_counter()
            idata = pac.sample(
                draws, gp=gp, inducing=fits["Gaussian fit's"], chains=CORES, cores=CORES,
                random_seed=SEED, progressbar=False,
            )  # fmt: skip
            found["seconds"].append(time.perf_counter() - start)
            for name, result in {"free_form": idata, **fits}.items():
                predicted = pac.predict(
                    result, gp, train.centres, kind="y", ynew=test.counts, joint=False,
                    random_seed=SEED,
                ).predictions  # fmt: skip
                found[name].append(float(predicted["y_log_density"].mean()))
        ess, _ = diagnose(idata, ["f_u", "ls", "var", "mean"])
        found["ess"].append(min(ess.values()))
        print(
            f"  half {half}: "
            + ", ".join(f"{name} {found[name][-1]:.4f}" for name in ("free_form", *GAUSSIAN))
            + f", least ESS {found['ess'][-1]:.0f} in {found['seconds'][-1]:.1f} s",
            flush=True,
        )
    return found


def coal_picture(*, data: str, draws: int, path: str) -> dict[str, Any]:
    """Draw the events of the first half, and their intensity by either posterior."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    train, _ = _halves(data, 0)
    model, gp = cox(train.centres, train.exposure, train.counts)
    figure, axes = plt.subplots(2, 1, figsize=(8.0, 6.0), sharex=True, layout="constrained")
    found: dict[str, Any] = {"path": path}
    with model:
        fit = pac.fit("vgp", gp=gp, inducing=_evenly(), progressbar=False)
        idata = pac.sample(
            draws, gp=gp, inducing=fit, chains=CORES, cores=CORES, random_seed=SEED,
            progressbar=False,
        )  # fmt: skip
        results = {"Gaussian": fit.sample(random_seed=SEED), "free-form": idata}
        for name, result in results.items():
            f = pac.predict(result, gp, train.centres, random_seed=SEED).predictions["f"]
            intensity = np.exp(f + result["posterior"]["mean"]).stack(sample=("chain", "draw"))
            found[name] = np.quantile(intensity, [0.05, 0.5, 0.95], axis=-1).tolist()
            found[f"{name} mean"] = intensity.mean("sample").values.tolist()
    years = 1851.0 + train.centres[:, 0] * (1963.0 - 1851.0) / SIDE
    a_year = SIDE / (1963.0 - 1851.0)
    for ax, name in zip(axes, results, strict=True):
        low, middle, high = a_year * np.array(found[name])
        ax.bar(years, a_year * train.counts / train.exposure, width=1.12, color="0.85")
        ax.fill_between(years, low, high, alpha=0.3, label="90 %")
        ax.plot(years, middle, label="median")
        ax.plot(years, a_year * np.array(found[f"{name} mean"]), "--", label="mean")
        events = 1851.0 + train.points[:, 0] * (1963.0 - 1851.0) / SIDE
        ax.plot(events, np.zeros(events.size), "|", color="black")
        ax.set(title=f"coal mining disasters, {name} posterior", ylabel="events a year")
    axes[0].legend()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
    return found


def _halves(data: str, half: int) -> tuple[pac.BinnedPoints, pac.BinnedPoints]:
    """Divide the events at random; return the cells of either half."""
    years = np.loadtxt(Path(data) / "coal_dates.txt", ndmin=1).ravel()
    events = SIDE * (years - 1851.0) / (1963.0 - 1851.0)
    chosen = np.zeros(events.size, dtype=bool)
    order = np.random.default_rng(half).permutation(events.size)
    chosen[order[: events.size // 2]] = True
    train, test = (
        pac.bin_points(part, CELLS, bounds=(0.0, SIDE))
        for part in (events[chosen], events[~chosen])
    )
    return train, test


def _evenly(count: int = INDUCING) -> np.ndarray:
    return np.linspace(0.0, SIDE, count)[:, None]


def by_number(*, data: str, draws: int) -> dict[str, Any]:
    """Return held-out log densities a cell of the first half by the number of inducing points."""
    train, test = _halves(data, 0)
    model, gp = cox(train.centres, train.exposure, train.counts)
    found: dict[str, list[float]] = {"inducing": [], "mean": [], "standardised": []}
    before = None
    with model:
        for count in NUMBERS:
            idata = pac.sample(
                draws, gp=gp, inducing=_evenly(count), chains=CORES, cores=CORES,
                random_seed=SEED, progressbar=False,
            )  # fmt: skip
            cells = pac.predict(
                idata, gp, train.centres, kind="y", ynew=test.counts, joint=False,
                random_seed=SEED,
            ).predictions["y_log_density"].to_numpy()  # fmt: skip
            found["inducing"].append(count)
            found["mean"].append(float(cells.mean()))
            if before is not None:
                change = cells - before
                error = change.std(ddof=1) / np.sqrt(change.size)
                found["standardised"].append(float(change.mean() / error))
            before = cells
            print(f"  coal, {count} inducing points: {cells.mean():.4f}", flush=True)
    return found


def one_half(*, data: str, sampler: str, draws: int) -> dict[str, Any]:
    """Sample the first half of the coal mining data by either sampler."""
    cells, _ = _halves(data, 0)
    model, gp = cox(cells.centres, cells.exposure, cells.counts)
    arguments: dict[str, Any] = {
        "chains": CORES, "cores": CORES, "random_seed": SEED, "progressbar": False,
    }  # fmt: skip
    with model:
        start = time.perf_counter()
        if sampler == "gibbs":
            idata = pac.sample(draws, gp=gp, inducing=_evenly(), **arguments)
        else:
            with pac.sparsify(model, gp=gp, inducing=_evenly()):
                idata = pm.sample(draws, tune=draws, nuts_sampler="nutpie", **arguments)
        seconds = time.perf_counter() - start
    names = ["f_u", "ls", "var", "mean"]
    ess, r_hat = diagnose(idata, names)
    posterior = idata["posterior"].to_dataset()[names]
    print(f"  coal, {sampler}: {draws} draws a chain in {seconds:.1f} s, ESS {ess}", flush=True)
    return {
        "draws": draws,
        "seconds": seconds,
        "sampling_seconds": idata["posterior"].attrs.get("sampling_time"),
        "ess": ess,
        "ess_min": min(ess.values()),
        "r_hat_max": r_hat,
        "means": {k: np.ravel(v).tolist() for k, v in posterior.mean(("chain", "draw")).items()},
        "mcse": {k: np.ravel(v).tolist() for k, v in az.mcse(posterior).items()},
    }


def sgpmc(*, data: str, draws: int) -> dict[str, Any]:
    """Sample the first half of the coal mining data by GPflow: one chain, TensorFlow's threads."""
    cells, _ = _halves(data, 0)
    Z = _evenly()
    exposure = float(np.mean(cells.exposure))  # equal up to rounding
    problem = {"X": cells.centres, "counts": cells.counts, "exposure": exposure, "Z": Z}
    found = run_script("gpflow_sgpmc.py", problem, draws, draws // 2)
    if "missing" in found:
        print(f"  SGPMC: GPflow cannot be had: {found['missing']}", flush=True)
        return found
    chain = {name: np.array(values) for name, values in found.pop("draws").items()}
    squared = (Z - Z.T) ** 2
    u = np.empty_like(chain["v"])
    for i, (ls, var) in enumerate(zip(chain["ls"][:, 0], chain["var"][:, 0], strict=True)):
        K = var * np.exp(-0.5 * squared / ls**2) + JITTER * np.eye(len(Z))
        u[i] = np.linalg.cholesky(K) @ chain["v"][i]
    values = {"f_u": u} | {name: chain[name][:, 0] for name in ("ls", "var", "mean")}
    idata = az.from_dict({"posterior": {name: value[None] for name, value in values.items()}})
    ess, _ = diagnose(idata, list(values))
    print(f"  coal, SGPMC: {draws} draws in {found['seconds']:.1f} s, ESS {ess}", flush=True)
    means = {name: np.ravel(value.mean(axis=0)).tolist() for name, value in values.items()}
    return found | {"ess": ess, "ess_min": min(ess.values()), "means": means}


def pines(*, data: str, n_cells: int, draws: int, inducing: int | None) -> dict[str, Any]:
    """Sample the pines, through ``inducing`` × ``inducing`` points or densely (None)."""
    places = SIDE * np.loadtxt(Path(data) / "pines.csv", delimiter=",", skiprows=1)[:, :2]
    cells = pac.bin_points(places, n_cells, bounds=(0.0, SIDE))
    model, gp = cox(cells.centres, cells.exposure, cells.counts)
    arguments: dict[str, Any] = {}
    if inducing is not None:
        axis = (np.arange(inducing) + 0.5) * SIDE / inducing
        Z = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
        arguments = {"gp": gp, "inducing": Z}
    with model:
        start = time.perf_counter()
        idata = pac.sample(
            draws, chains=CORES, cores=CORES, random_seed=SEED, progressbar=False, **arguments
        )
        seconds = time.perf_counter() - start
        f = idata["posterior"].get("f")
        if f is None:
            f = pac.predict(idata, gp, cells.centres, joint=False, random_seed=SEED).predictions[
                "f"
            ]
    names = ["f" if inducing is None else "f_u", "ls", "var", "mean"]
    ess, r_hat = diagnose(idata, names)
    log_intensity = f + idata["posterior"]["mean"]
    print(
        f"  pines {n_cells}, {'dense' if inducing is None else f'{inducing}² inducing points'}: "
        f"{draws} draws a chain in {seconds:.1f} s, ESS {ess}, largest R-hat {r_hat:.3f}",
        flush=True,
    )
    return {
        "draws": draws,
        "seconds": seconds,
        "sampling_seconds": idata["posterior"].attrs.get("sampling_time"),
        "ess": ess,
        "ess_min": min(ess.values()),
        "r_hat_max": r_hat,
        "intensity": np.exp(log_intensity).mean(("chain", "draw")).values.tolist(),
        "intensity_std": np.exp(log_intensity).std(("chain", "draw")).values.tolist(),
    }


def growth(*, n: int, draws: int) -> dict[str, Any]:
    """Return seconds a step and the peak memory of one chain for n counts in the plane."""
    rng = np.random.default_rng(SEED)
    X = rng.uniform(0.0, SIDE, (n, 2))
    counts = rng.poisson(np.exp(np.sin(X[:, 0]) + np.cos(X[:, 1])))
    model, gp = cox(X, 1.0, counts)
    with model:
        start = time.perf_counter()
        idata = pac.sample(
            draws, tune=draws, gp=gp, inducing=GROWTH_INDUCING, chains=1, cores=1,
            random_seed=SEED, progressbar=False, compute_convergence_checks=False,
        )  # fmt: skip
        seconds = time.perf_counter() - start
    stats = idata["sample_stats"]
    found = {
        "n": n,
        "seconds": seconds,
        "seconds_a_step": idata["posterior"].attrs["sampling_time"] / (2 * draws),
        "evaluations": float(stats["evaluations"].mean()),
        "elliptical_trials": float(stats["elliptical_trials"].mean()),
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }
    print(f"  {found}", flush=True)
    return found
