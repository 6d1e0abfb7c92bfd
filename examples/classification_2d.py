"""The README's example: GP classification in the plane, with a picture of the decision surface.

Data: two interleaved half-moons, simulated. Run ``python examples/classification_2d.py``; the
figure goes to ``demo-output/``, or to the file named as the argument.
"""

from __future__ import annotations

import sys
from pathlib import Path

import arviz as az
import matplotlib as mpl
import numpy as np
import pymc as pm
from matplotlib import pyplot as plt
from scipy.special import expit

import pymc_augconj as pac

N = 200
SEED = 1


def simulate(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs (N, 2) and labels (N,)."""
    y = rng.integers(0, 2, N)
    angle = np.pi * rng.random(N)
    X = np.column_stack([np.cos(angle), np.sin(angle)])
    X[y == 1] = [1.0, 0.4] - X[y == 1]
    return X + 0.25 * rng.standard_normal(X.shape), y


def main(figure: Path) -> None:
    """Sample, summarise, draw, check."""
    mpl.use("agg")
    X, y = simulate(np.random.default_rng(SEED))
    d = X.shape[1]
    with pm.Model() as model:
        ls, eta = pm.InverseGamma("ls", 5, 5), pm.HalfNormal("eta", 3)
        b0 = pm.Normal("b0", 0, 2)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(d, ls=ls))
        f = gp.prior("f", X=X)
        pm.Bernoulli("y", logit_p=b0 + f, observed=y)
        print(pac.recognize())
        idata = pac.sample(random_seed=SEED, chains=4)

    summary = az.summary(idata, var_names=["ls", "eta", "b0"])
    print(summary)
    print(f"sampled in {idata['posterior'].attrs['sampling_time']:.0f} s")

    grid = np.stack(np.meshgrid(np.linspace(-1.8, 2.8, 30), np.linspace(-1.4, 1.8, 24)), axis=-1)
    thinned = idata.isel(draw=slice(None, None, 40))
    with model:
        gp.conditional("f_grid", grid.reshape(-1, 2), jitter=1e-6)
        predictive = pm.sample_posterior_predictive(
            thinned, var_names=["f_grid"], random_seed=SEED, progressbar=False
        )
    f_grid = predictive["posterior_predictive"]["f_grid"]
    p = expit(f_grid + thinned["posterior"]["b0"]).mean(("chain", "draw")).values

    fig, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
    filled = ax.contourf(
        grid[..., 0], grid[..., 1], p.reshape(grid.shape[:2]), 12, cmap="RdBu_r", vmin=0, vmax=1
    )
    ax.scatter(*X[y == 0].T, c="tab:blue", edgecolor="white", label="y = 0")
    ax.scatter(*X[y == 1].T, c="tab:red", edgecolor="white", label="y = 1")
    ax.legend()
    fig.colorbar(filled, label="posterior mean of P(y = 1)")
    figure.parent.mkdir(exist_ok=True)
    fig.savefig(figure, dpi=100)
    print(f"figure: {figure}")

    assert summary["r_hat"].astype(float).max() < 1.02
    f_mean = idata["posterior"]["f"] + idata["posterior"]["b0"]
    accuracy = np.mean((expit(f_mean).mean(("chain", "draw")).values > 0.5) == y)
    assert accuracy > 0.9, accuracy


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output/classification_2d.png"))
