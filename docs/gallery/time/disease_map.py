"""
A map of a disease: neighbours are alike
========================================

Cases in the 49 districts of a 7 × 7 grid, with the number expected from their population. The log
of the relative risk has a conditional autoregressive prior (``pm.CAR``): each district is near the
mean of its neighbours.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_augconj as pac

rng = np.random.default_rng(4)
side = 7
row, column = (a.ravel() for a in np.mgrid[:side, :side])
apart = np.abs(row[:, None] - row) + np.abs(column[:, None] - column)
neighbours = (apart == 1).astype(float)
log_risk = 0.9 * np.exp(-((row - 2) ** 2 + (column - 5) ** 2) / 8) - 0.2
expected = rng.uniform(3, 20, side**2)
cases = rng.poisson(expected * np.exp(log_risk))

# %%
with pm.Model() as model:
    level = pm.Normal("level", 0, 1)
    tau = pm.Gamma("tau", 2, 0.5)
    s = pm.CAR("s", mu=np.zeros(side**2), W=neighbours, alpha=0.95, tau=tau)
    pm.Poisson("cases", mu=expected * pm.math.exp(level + s), observed=cases)
    print(pac.recognize())
    idata = pac.sample(300, chains=2, random_seed=1, progressbar=False)

# %%
risk = np.exp(idata.posterior["level"] + idata.posterior["s"])
mean = risk.mean(("chain", "draw")).values
fig, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained")
panels = {"raw ratio": cases / expected, "posterior mean": mean, "truth": np.exp(log_risk)}
for ax, (name, values) in zip(axes, panels.items(), strict=True):
    shown = ax.imshow(values.reshape(side, side), vmin=0, vmax=2.5, cmap="viridis")
    ax.set(title=f"Relative risk: {name}", xticks=[], yticks=[])
fig.colorbar(shown, ax=axes)

# %%
truth = np.exp(log_risk)
error, raw = np.abs(mean - truth).mean(), np.abs(cases / expected - truth).mean()
print(f"mean error {error:.3f}; of the raw ratios {raw:.3f}")
assert error < raw
