"""
Truncated observations
======================

Only values above zero were recorded; the number of lost values is unknown. The likelihood of the
recorded values is a normal distribution truncated at zero.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_augconj as pac

rng = np.random.default_rng(6)
x = rng.uniform(-2, 2, 150)
y = 0.5 + 1.2 * x + rng.standard_normal(150)
x, y = x[y > 0], y[y > 0]

# %%
with pm.Model() as model:
    intercept, slope = pm.Normal("intercept", 0, 2), pm.Normal("slope", 0, 2)
    sigma = pm.HalfNormal("sigma", 1)
    pm.Truncated("y", pm.Normal.dist(intercept + slope * x, sigma), lower=0, observed=y)
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
posterior = idata.posterior
grid = np.linspace(-2, 2, 50)
lines = posterior["intercept"].values[..., None] + posterior["slope"].values[..., None] * grid
low, high = np.quantile(lines, [0.05, 0.95], axis=(0, 1))
naive = np.polyfit(x, y, 1)
fig, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
ax.plot(x, y, "k.", ms=4)
ax.fill_between(grid, low, high, alpha=0.5, label="truncated likelihood, 90 %")
ax.plot(grid, np.polyval(naive, grid), "C3--", label="least squares")
ax.plot(grid, 0.5 + 1.2 * grid, "k:", label="truth")
ax.set(xlabel="x", ylabel="y", title="Only positive values were recorded")
ax.legend()

# %%
slope = posterior["slope"].values
assert abs(slope.mean() - 1.2) < 3 * slope.std()
assert abs(slope.mean() - 1.2) < abs(naive[0] - 1.2)
