"""A log-Gaussian Cox process, sampled exactly: where are more points than elsewhere?

Points are simulated in a square from an intensity with two hills, and counted on a grid. The
counts are Poisson with a log link, for which there is no augmentation: their sites are held. Kernel
and mean are learned. The figure shows the points, the posterior mean of the intensity, and how sure
the model is that the intensity is above its average.

Run ``python examples/cox_process.py [figure.png]``; half a minute.
"""

from __future__ import annotations

import sys

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_augconj as pac

CELLS = 12
WIDTH = 10.0
HILLS = ((2.5, 6.5, 1.6, 12.0), (7.0, 3.0, 1.2, 18.0))  # centre, radius, height
SEED = 20


def intensity(places: np.ndarray) -> np.ndarray:
    """Return the true intensity at places (count, 2), in points a unit of area."""
    total = np.full(len(places), 0.8)
    for x, y, radius, height in HILLS:
        squared = (places[:, 0] - x) ** 2 + (places[:, 1] - y) ** 2
        total += height * np.exp(-0.5 * squared / radius**2)
    return total


def simulate(rng: np.random.Generator) -> np.ndarray:
    """Return points of the Poisson process, by thinning."""
    highest = 0.8 + sum(height for *_, height in HILLS)
    candidates = rng.uniform(0.0, WIDTH, (rng.poisson(highest * WIDTH**2), 2))
    return candidates[rng.uniform(0.0, highest, len(candidates)) < intensity(candidates)]


def plot(points: np.ndarray, log_intensity: np.ndarray, path: str) -> None:
    """Draw the points, the mean intensity and where it is above average."""
    mpl.use("agg")
    rate = np.exp(log_intensity)
    above = np.mean(rate > rate.mean(axis=1, keepdims=True), axis=0)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 4.0), layout="constrained")
    options = {"origin": "lower", "extent": (0, WIDTH, 0, WIDTH)}
    shown = left.imshow(rate.mean(axis=0).reshape(CELLS, CELLS).T, cmap="Blues", **options)
    left.plot(*points.T, ".", color="black", markersize=2)
    left.set_title("points, and posterior mean of the intensity")
    figure.colorbar(shown, ax=left)
    shown = right.imshow(above.reshape(CELLS, CELLS).T, cmap="RdBu_r", vmin=0, vmax=1, **options)
    right.set_title("probability that it is above average")
    figure.colorbar(shown, ax=right)
    figure.savefig(path, dpi=80)


def main(figure: str | None = None, draws: int = 300) -> None:
    """Simulate, sample, check, draw."""
    points = simulate(np.random.default_rng(SEED))
    edges = np.linspace(0.0, WIDTH, CELLS + 1)
    middles = 0.5 * (edges[1:] + edges[:-1])
    X = np.stack(np.meshgrid(middles, middles, indexing="ij"), axis=-1).reshape(-1, 2)
    counts = np.histogram2d(*points.T, bins=(edges, edges))[0].ravel().astype(int)
    area = (WIDTH / CELLS) ** 2

    with pm.Model():
        ls, eta = pm.InverseGamma("ls", 5, 8), pm.HalfNormal("eta", 2)
        mean = pm.Normal("mean", 0, 2)
        f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.Matern52(2, ls=ls)).prior("f", X=X)
        log_intensity = pm.Deterministic("log_intensity", mean + f)
        pm.Poisson("counts", area * pm.math.exp(log_intensity), observed=counts)
        idata = pac.sample(draws, chains=2, random_seed=SEED, progressbar=False)

    drawn = idata["posterior"]["log_intensity"].values.reshape(2 * draws, -1)
    truth = np.log(intensity(X))
    low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
    covered = float(np.mean((low < truth) & (truth < high)))
    correlation = float(np.corrcoef(drawn.mean(axis=0), truth)[0, 1])
    expected = np.exp(drawn).sum(axis=1) * area
    trials = float(idata["sample_stats"]["elliptical_trials"].mean())
    print(
        f"{len(points)} points in {CELLS}² cells; expected {expected.mean():.0f} ± "
        f"{expected.std():.0f}; correlation with the true log intensity {correlation:.2f}; "
        f"90 % intervals hold {covered:.0%}; {trials:.1f} evaluations an elliptical slice"
    )
    assert abs(expected.mean() - len(points)) < 3.0 * expected.std(), expected
    assert correlation > 0.9, correlation
    assert covered > 0.8, covered
    if figure is not None:
        plot(points, drawn, figure)


if __name__ == "__main__":
    main(*sys.argv[1:2])
