"""Stochastic volatility: twelve years of daily returns, the last month held out, and its forecast.

The log scale of the returns is a Gaussian random walk, whose precision matrix has three diagonals:
a step of the sampler takes time in proportion to the number of days. Student-t noise has no
auxiliary variable for its scale, so the sites of the returns are held. Days without a return, the
gap in the middle, are values of the walk that nothing observed depends on; ``pac.predict`` goes on
with the walk where the returns end.

Data: simulated, so that what is to be found is known. Run ``python
examples/stochastic_volatility.py``; half a minute, and ``stochastic_volatility.png`` where
Matplotlib is installed.
"""

from __future__ import annotations

from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm

import pymc_augconj as pac

DAYS, AHEAD, GAP = 2906, 20, slice(1400, 1430)
STEP, NU = 0.04, 8.0


def simulate() -> tuple[np.ndarray, np.ndarray]:
    """Return the log scales of all days, those to come too, and the returns."""
    rng = np.random.default_rng(3)
    log_scale = -4.5 + np.cumsum(STEP * rng.standard_normal(DAYS + AHEAD))
    return log_scale, np.exp(log_scale) * rng.standard_t(NU, DAYS + AHEAD)


def main() -> None:
    """Sample, forecast, check."""
    log_scale, returns = simulate()
    seen = np.r_[0 : GAP.start, GAP.stop : DAYS]
    with pm.Model() as model:
        step, nu = pm.Exponential("step", 10), pm.Exponential("nu", 0.1)
        init = pm.Normal.dist(-4.5, 2)
        h = pm.GaussianRandomWalk("h", sigma=step, init_dist=init, shape=DAYS)
        pm.StudentT("r", nu=nu, lam=pm.math.exp(-2 * h[seen]), observed=returns[seen])
        print(pac.recognize())
        idata = pac.sample(400, tune=400, chains=2, random_seed=1, progressbar=False)
    posterior = idata["posterior"]
    rhat = max(float(az.rhat(posterior[name].values).max()) for name in ("step", "nu"))
    future_h = pac.predict(idata, "h", steps=AHEAD, model=model, random_seed=1).predictions["h"]
    drawn = np.concatenate([posterior["h"].values, future_h.values], axis=-1)
    drawn = drawn.reshape(-1, DAYS + AHEAD)
    for name, truth in (("step", STEP), ("nu", NU)):
        values = posterior[name].values
        low, high = np.quantile(values, [0.05, 0.95])
        ess = float(az.ess(values))
        print(f"{name}: {values.mean():.3f} [{low:.3f}, {high:.3f}], true {truth}, ESS {ess:.0f}")
    assert rhat < 1.05, f"the chains have not converged: R-hat {rhat:.3f}"
    low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
    inside = (low < log_scale) & (log_scale < high)
    for label, days in (("seen", seen), ("gap", np.r_[GAP]), ("to come", np.r_[DAYS : len(low)])):
        share, width = inside[days].mean(), (high - low)[days].mean()
        print(f"days {label}: 90 % intervals hold {share:.0%}, width {width:.2f}")
    # Days are not independent: neighbours share their error. A few hundred days apart they are.
    assert inside[seen].mean() > 0.8
    rng = np.random.default_rng(1)
    noise = rng.standard_t(posterior["nu"].values.reshape(-1, 1), (len(drawn), AHEAD))
    ahead = np.quantile(np.exp(drawn[:, DAYS:]) * noise, [0.05, 0.95], axis=0)
    future = returns[DAYS:]
    covered = np.mean((ahead[0] < future) & (future < ahead[1]))
    print(f"forecast of {AHEAD} returns: 90 % intervals hold {covered:.0%}")
    plot(log_scale, returns, low, high, seen)


def plot(
    log_scale: np.ndarray, returns: np.ndarray, low: np.ndarray, high: np.ndarray, seen: np.ndarray
) -> None:
    """Save the returns, and the scale that was found."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        return
    figure, axes = plt.subplots(2, sharex=True, figsize=(10, 5), layout="constrained")
    axes[0].plot(seen, returns[seen], lw=0.4, color="0.4")
    axes[0].set_ylabel("return")
    days = np.arange(len(low))
    axes[1].fill_between(days, np.exp(low), np.exp(high), alpha=0.5, label="90 % of the posterior")
    axes[1].plot(days, np.exp(log_scale), lw=0.8, color="black", label="truth")
    axes[1].set(yscale="log", ylabel="scale of a day's return", xlabel="day")
    axes[1].legend()
    path = Path("stochastic_volatility.png")
    figure.savefig(path, dpi=120)
    print(f"figure in {path}")


if __name__ == "__main__":
    main()
