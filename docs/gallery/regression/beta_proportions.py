"""
Proportions: Beta regression
============================

The share of a plot that vegetation covers depends on rainfall. A Beta likelihood has no auxiliary
variable that makes it conjugate. The sampler uses *held sites*, and its draws are exact.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from scipy.special import expit

import pymc_augconj as pac

rng = np.random.default_rng(2)
rain = rng.uniform(-1.5, 1.5, 80)
true_mean, true_precision = expit(-0.3 + 1.2 * rain), 15.0
cover = rng.beta(true_mean * true_precision, (1 - true_mean) * true_precision)

# %%
with pm.Model() as model:
    intercept, slope = pm.Normal("intercept", 0, 2), pm.Normal("slope", 0, 2)
    precision = pm.HalfNormal("precision", 30)
    mean = pm.math.invlogit(intercept + slope * rain)
    pm.Beta("cover", mu=mean, nu=precision, observed=cover)
    print(pac.recognize())
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
posterior = idata.posterior
grid = np.linspace(-1.5, 1.5, 50)
curves = expit(
    posterior["intercept"].values[..., None] + posterior["slope"].values[..., None] * grid
)
low, high = np.quantile(curves, [0.05, 0.95], axis=(0, 1))
fig, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
ax.plot(rain, cover, "k.", ms=4)
ax.fill_between(grid, low, high, alpha=0.5)
ax.plot(grid, expit(-0.3 + 1.2 * grid), "C3:", label="truth")
ax.set(xlabel="rain", ylabel="cover", title="Share of covered ground, with a 90 % band of its mean")
ax.legend()

# %%
# The three parameters are within three posterior standard deviations of their true values.

for name, truth in {"intercept": -0.3, "slope": 1.2, "precision": true_precision}.items():
    draws = posterior[name].values
    print(f"{name}: {draws.mean():.2f} ± {draws.std():.2f}, truth {truth}")
    assert abs(draws.mean() - truth) < 3 * draws.std()
