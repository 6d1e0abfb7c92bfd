"""
Censored observations: Tobit regression
=======================================

A gauge that stops at 2 reads 2 whenever the true value is larger. To omit these readings, or to
take them at face value, flattens the line. A censored likelihood treats them as lower bounds.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_augconj as pac

rng = np.random.default_rng(5)
x = np.linspace(-2, 2, 80)
truth = 1 + 1.5 * x
reading = np.minimum(truth + 0.8 * rng.standard_normal(80), 2.0)

# %%
with pm.Model() as model:
    intercept, slope = pm.Normal("intercept", 0, 5), pm.Normal("slope", 0, 5)
    sigma = pm.HalfNormal("sigma", 2)
    noise = pm.Normal.dist(intercept + slope * x, sigma)
    pm.Censored("reading", noise, lower=None, upper=2.0, observed=reading)
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
posterior = idata.posterior
lines = posterior["intercept"].values[..., None] + posterior["slope"].values[..., None] * x
low, high = np.quantile(lines, [0.05, 0.95], axis=(0, 1))
naive = np.polyfit(x, reading, 1)
fig, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
ax.plot(x, reading, "k.", ms=4)
ax.fill_between(x, low, high, alpha=0.5, label="censored likelihood, 90 %")
ax.plot(x, np.polyval(naive, x), "C3--", label="least squares")
ax.plot(x, truth, "k:", label="truth")
ax.set(xlabel="x", ylabel="reading", title="A gauge that stops at 2, and the line behind it")
ax.legend()

# %%
slope = posterior["slope"].values
assert abs(slope.mean() - 1.5) < 3 * slope.std()
assert abs(naive[0] - 1.5) > 3 * slope.std()
