"""A map of a disease: 256 districts, and what of their differences neighbours share.

Besag, York and Mollié's model: the log relative risk of a district is a level, an effect that is
like those of its neighbours (an intrinsic autoregression, ``pm.ICAR``) and one of its own. The
precision matrix of all 513 latent values is a band after reordering. Counts are
Poisson, so their sites are held.

Data: simulated on a grid of 16 × 16, so that what is to be found is known. Run ``python
examples/disease_map.py``; half a minute, and ``disease_map.png`` where Matplotlib is installed.
"""

from __future__ import annotations

from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm

import pymc_augconj as pac

SIDE = 16
OWN = 0.15


def simulate() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the log relative risks, the expected counts and the counts."""
    rng = np.random.default_rng(6)
    x, y = np.meshgrid(*2 * [np.linspace(-1.0, 1.0, SIDE)])
    valley = 0.9 * np.exp(-6 * ((x - 0.4) ** 2 + (y + 0.3) ** 2)) - 0.5 * (x + y < -0.8)
    log_risk = valley.ravel() + OWN * rng.standard_normal(SIDE**2)
    expected = rng.gamma(2.0, 4.0, SIDE**2)
    return log_risk, expected, rng.poisson(expected * np.exp(log_risk))


def neighbours() -> np.ndarray:
    """Return which districts have an edge in common, shape (districts, districts)."""
    along = np.eye(SIDE, k=1, dtype=int) + np.eye(SIDE, k=-1, dtype=int)
    here = np.eye(SIDE, dtype=int)
    return np.kron(along, here) + np.kron(here, along)


def main() -> None:
    """Sample, check, draw the map."""
    log_risk, expected, cases = simulate()
    with pm.Model():
        level = pm.Normal("level", 0, 1)
        shared, own = pm.HalfNormal("shared", 1), pm.HalfNormal("own", 1)
        phi = pm.ICAR("phi", W=neighbours())
        theta = pm.Normal("theta", 0, 1, shape=SIDE**2)
        risk = pm.Deterministic("risk", pm.math.exp(level + shared * phi + own * theta))
        pm.Poisson("cases", mu=expected * risk, observed=cases)
        print(pac.recognize())
        idata = pac.sample(250, tune=250, chains=2, random_seed=1, progressbar=False)
    posterior = idata["posterior"]
    for name in ("level", "shared", "own"):
        values = posterior[name].values
        low, high = np.quantile(values, [0.05, 0.95])
        ess, rhat = float(az.ess(values)), float(az.rhat(values))
        print(f"{name}: {values.mean():.3f} [{low:.3f}, {high:.3f}], ESS {ess:.0f}")
        assert rhat < 1.1, f"the chains have not converged: R-hat of {name} is {rhat:.3f}"
    drawn = posterior["risk"].values.reshape(-1, SIDE**2)
    mean, (low, high) = drawn.mean(axis=0), np.quantile(drawn, [0.05, 0.95], axis=0)
    truth, raw = np.exp(log_risk), cases / expected
    errors = [np.sqrt(np.mean((found - truth) ** 2)) for found in (mean, raw)]
    print("root mean square error: posterior mean {:.3f}, cases/expected {:.3f}".format(*errors))
    assert errors[0] < 0.6 * errors[1]
    inside = np.mean((low < truth) & (truth < high))
    print(f"90 % intervals hold {inside:.0%} of the risks")
    assert 0.84 < inside < 0.96
    above = np.mean(drawn > 1.0, axis=0)
    print(f"districts whose risk exceeds 1 with probability 0.95: {np.sum(above > 0.95)}")
    plot({"cases / expected": raw, "posterior mean": mean, "truth": truth}, above)


def plot(risks: dict[str, np.ndarray], above: np.ndarray) -> None:
    """Save maps of the risks, and of the probability that they exceed 1."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        return
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.2), layout="constrained")
    for ax, (title, values) in zip(axes, risks.items(), strict=False):
        image = ax.imshow(values.reshape(SIDE, SIDE), vmin=0.0, vmax=3.0, origin="lower")
        ax.set_title(title)
    figure.colorbar(image, ax=axes[:3], label="relative risk", shrink=0.8)
    image = axes[3].imshow(
        above.reshape(SIDE, SIDE), vmin=0.0, vmax=1.0, origin="lower", cmap="PuOr_r"
    )
    axes[3].set_title("probability that it exceeds 1")
    figure.colorbar(image, ax=axes[3], shrink=0.8)
    for ax in axes:
        ax.set(xticks=[], yticks=[])
    path = Path("disease_map.png")
    figure.savefig(path, dpi=120)
    print(f"figure in {path}")


if __name__ == "__main__":
    main()
