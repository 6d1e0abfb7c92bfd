"""
Zero-inflated counts
====================

Some visitors of a lake do not fish. The others catch a Poisson number of fish that grows with the
hours of their stay. A zero may come from either group.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_augconj as pac

rng = np.random.default_rng(4)
hours = rng.uniform(0.5, 8, 200)
fishing = rng.random(200) < 0.7
caught = np.where(fishing, rng.poisson(np.exp(-0.5 + 0.35 * hours)), 0)

# %%
with pm.Model() as model:
    intercept, slope = pm.Normal("intercept", 0, 2), pm.Normal("slope", 0, 1)
    psi = pm.Beta("psi", 1, 1)
    rate = pm.math.exp(intercept + slope * hours)
    pm.ZeroInflatedPoisson("caught", psi=psi, mu=rate, observed=caught)
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
posterior = idata.posterior
grid = np.linspace(0.5, 8, 50)
curves = np.exp(
    posterior["intercept"].values[..., None] + posterior["slope"].values[..., None] * grid
)
low, high = np.quantile(curves, [0.05, 0.95], axis=(0, 1))
fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
left.plot(hours, caught, "k.", ms=3)
left.fill_between(grid, low, high, color="C0", alpha=0.5)
left.set(xlabel="hours", ylabel="fish", title="Catch of those who fish, 90 % band")
right.hist(posterior["psi"].values.ravel(), bins=40, color="C0")
right.axvline(fishing.mean(), color="k", ls=":")
right.set(xlabel="psi", yticks=[], title="Share of visitors who fish")

# %%
for name, truth in {"intercept": -0.5, "slope": 0.35, "psi": 0.7}.items():
    draws = posterior[name].values
    assert abs(draws.mean() - truth) < 3.5 * draws.std(), name
