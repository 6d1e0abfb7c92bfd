"""A likelihood of your own, given only its φ: exact Gibbs sampling without a derivation, and NUTS.

The noise has the density C φ((y − f)²) with φ(r) = exp(1 − (1 + r/s²)^0.3): round at the top, with
tails exp(−|e|^0.6), heavier than Laplace's and lighter than Student's. Nobody has derived an
auxiliary variable for it, and none is derived here.

Data are simulated: a smooth curve at 120 points, with noise drawn from the model itself. Run
``python examples/own_likelihood.py`` where the package and its ``demo`` extra are installed. The
figure goes to ``demo-output/``.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import arviz as az
import matplotlib as mpl
import numpy as np
import pymc as pm
from xarray import DataTree

import pymc_augconj as pac

OUTPUT = Path("demo-output")
SEED = 20261121
N = 120
TRUE_SCALE = 0.15
CHAINS = 4
GIBBS_DRAWS = 1500
NUTS_DRAWS = 500

HYPERPARAMETERS = ["level", "s"]
COMPARED = [*HYPERPARAMETERS, "f"]
LARGEST_R_HAT = 1.02
LARGEST_DIFFERENCE = 5.0  # of two means, in their joint Monte Carlo standard error
SMALLEST_COVERAGE = 0.8  # of the true curve by the 90 % intervals
FEWEST_EFFECTIVE = 100


def log_phi(r, s):
    """Return log φ(r) of the noise with scale s."""
    return 1.0 - (1.0 + r / s**2) ** 0.3


def curve(x: np.ndarray) -> np.ndarray:
    """Return the curve that the data scatter about."""
    return np.sin(1.5 * x) + 0.3 * x


def simulate() -> tuple[np.ndarray, np.ndarray]:
    """Return inputs (n, 1) and observations (n,)."""
    x = np.sort(np.random.default_rng(SEED).uniform(0.0, 6.0, N))
    noisy = pac.SuperGaussian.dist(curve(x), log_phi=lambda r: log_phi(r, TRUE_SCALE))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Numba will use object mode")
        return x[:, None], pm.draw(noisy, random_seed=SEED)


def build(X: np.ndarray, y: np.ndarray) -> pm.Model:
    """Write the model; the likelihood is one line."""
    with pm.Model() as model:
        level, s = pm.Normal("level", 0, 2), pm.HalfNormal("s", 1)
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.3)).prior("f", X=X)
        pac.SuperGaussian("y", level + f, log_phi=lambda r: log_phi(r, s), observed=y)
    return model


def differences(a: DataTree, b: DataTree) -> dict[str, float]:
    """Return the largest difference of posterior means, in standard errors, by variable."""
    found = {}
    for name in COMPARED:
        means, variances, least = [], [], []
        for idata in (a, b):
            draws = idata["posterior"].to_dataset()[[name]]
            means.append(draws[name].mean(("chain", "draw")).values)
            variances.append(az.mcse(draws)[name].values ** 2)
            least.append(float(az.ess(draws)[name].min()))
        assert min(least) > FEWEST_EFFECTIVE, f"{name}: too few effective draws to compare: {least}"
        found[name] = float(np.max(np.abs(means[0] - means[1]) / np.sqrt(sum(variances))))
    return found


def location(idata: DataTree) -> np.ndarray:
    """Return the draws of level + f, shape (n, draws)."""
    posterior = idata["posterior"]
    draws = (posterior["level"] + posterior["f"]).stack(sample=("chain", "draw"))
    return draws.transpose(..., "sample").values


def plot(X: np.ndarray, y: np.ndarray, runs: dict[str, DataTree], path: Path) -> None:
    """Draw the data, the curve, and the two posteriors of f."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), width_ratios=(2, 1))
    x = X[:, 0]
    for (name, idata), color in zip(runs.items(), ("C0", "C3"), strict=True):
        f = location(idata)
        low, middle, high = np.quantile(f, [0.05, 0.5, 0.95], axis=1)
        left.plot(
            x,
            middle,
            color=color,
            ls="-" if name == "pac.sample" else "--",
            label=f"{name}: median and 90 %",
        )
        left.fill_between(x, low, high, color=color, alpha=0.2, lw=0)
        s = idata["posterior"]["s"].values.ravel()
        right.hist(s, bins=50, density=True, histtype="step", color=color, label=name)
    left.plot(x, curve(x), "k:", label="truth")
    left.plot(x, y, ".", color="0.4", ms=4)
    spread = 3.0 * np.ptp(curve(x))
    left.set(ylim=(-0.5 * spread + 1, 0.5 * spread), xlabel="x", ylabel="y")
    left.set_title("noise with φ(r) = exp(1 − (1 + r/s²)$^{0.3}$)")
    right.axvline(TRUE_SCALE, color="k", ls=":")
    right.set(xlabel="s", yticks=[], title="posterior of the noise's scale")
    for axis in (left, right):
        axis.legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Simulate, fit by both samplers, compare, draw the figure."""
    X, y = simulate()
    model = build(X, y)
    print(pac.recognize(model))
    runs, seconds = {}, {}
    with model:
        for name, sample in (
            ("pac.sample", lambda **kw: pac.sample(GIBBS_DRAWS, **kw)),
            ("NUTS", lambda **kw: pm.sample(NUTS_DRAWS, tune=500, nuts_sampler="nutpie", **kw)),
        ):
            start = time.perf_counter()
            runs[name] = sample(chains=CHAINS, cores=CHAINS, random_seed=SEED, progressbar=False)
            seconds[name] = time.perf_counter() - start

    for name, idata in runs.items():
        posterior = idata["posterior"].to_dataset()[HYPERPARAMETERS]
        print(f"\n{name}: {seconds[name]:.0f} s, compilation included")
        print(az.summary(posterior))
        r_hat = az.rhat(posterior)
        largest = max(float(r_hat[v].max()) for v in r_hat.data_vars)
        assert largest < LARGEST_R_HAT, f"{name} has not converged: R-hat {largest:.3f}"

    found = differences(*runs.values())
    listed = ", ".join(f"{name} {value:.1f}" for name, value in found.items())
    print(f"\nlargest difference of posterior means, in standard errors: {listed}")
    assert max(found.values()) < LARGEST_DIFFERENCE

    f = location(runs["pac.sample"])
    low, high = np.quantile(f, [0.05, 0.95], axis=1)
    coverage = float(np.mean((low <= curve(X[:, 0])) & (curve(X[:, 0]) <= high)))
    print(f"90 % intervals cover {100 * coverage:.0f} % of the true curve")
    assert coverage > SMALLEST_COVERAGE

    path = OUTPUT / "own_likelihood.png"
    plot(X, y, runs, path)
    print(f"figure in {path}")


if __name__ == "__main__":
    main()
