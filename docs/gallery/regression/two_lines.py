"""
A mixture of two regressions
============================

Each measurement follows one of two lines, but the line is not recorded. The sampler draws an
allocation for each observation given the lines, and both lines jointly given all allocations. The
data are simulated.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_augconj as pac

rng = np.random.default_rng(1)
x = rng.uniform(-2, 2, 150)
first = rng.random(150) < 0.4
y = np.where(first, 1.5 + x, -0.5 - 0.7 * x) + 0.3 * rng.standard_normal(150)

# %%
# The intercepts have different prior means, so that the lines do not switch labels.

with pm.Model() as model:
    intercept = pm.Normal("intercept", np.array([2.0, -2.0]), 1.0)
    slope = pm.Normal("slope", 0, 1, shape=2)
    sigma = pm.HalfNormal("sigma", 1)
    share = pm.Beta("share", 2, 2)
    lines = [pm.Normal.dist(intercept[k] + slope[k] * x, sigma) for k in range(2)]
    weights = pm.math.stack([share, 1 - share])
    pm.Mixture("y", w=weights, comp_dists=lines, observed=y)
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
posterior = idata.posterior
at = np.linspace(-2, 2, 50)
fig, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
ax.plot(x, y, ".", color="0.5")
for k in range(2):
    level, by_x = (posterior[name].values[..., k].ravel() for name in ("intercept", "slope"))
    low, mid, high = np.quantile(level + np.outer(at, by_x), [0.05, 0.5, 0.95], axis=1)
    ax.plot(at, mid, color=f"C{k}")
    ax.fill_between(at, low, high, color=f"C{k}", alpha=0.3)
ax.set(xlabel="x", ylabel="y", title="Two lines, 90 % bands")

# %%
slopes, share = posterior["slope"].values.reshape(-1, 2), posterior["share"].values
print(f"slopes {slopes.mean(0).round(2)}, share of the first line {share.mean():.2f}")
assert np.all(np.abs(slopes.mean(0) - [1, -0.7]) < 4 * slopes.std(0))
assert abs(share.mean() - 0.4) < 0.15
