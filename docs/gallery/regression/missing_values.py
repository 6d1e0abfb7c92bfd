"""
Imputation of missing values
============================

A third of one covariate is missing, more often where it is large. To omit these rows would waste
data and bias the slope. With a model of the covariate the missing values are latents. The data are
simulated.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_augconj as pac

rng = np.random.default_rng(3)
n = 200
z = rng.standard_normal(n)
x = 0.8 * z + 0.6 * rng.standard_normal(n)
y = 1.0 + 0.5 * x - 0.5 * z + 0.5 * rng.standard_normal(n)
missing = rng.random(n) < 1 / (1 + np.exp(-(z - 0.7) * 1.5))
seen = np.where(missing, np.nan, x)

# %%
# PyMC turns entries that are NaN into variables of the model. The sampler draws them jointly with
# the coefficients of both regressions, and samples the slope that multiplies them with all of these
# integrated out.

with pm.Model() as model:
    a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 2)
    covariate = pm.Normal("x", a + b * z, pm.HalfNormal("sigma_x", 1), observed=seen)
    level, by_z, by_x = (pm.Normal(name, 0, 2) for name in ("level", "by_z", "by_x"))
    pm.Normal("y", level + by_z * z + by_x * covariate, pm.HalfNormal("sigma", 1), observed=y)
    idata = pac.sample(1000, chains=2, random_seed=1, progressbar=False)

# %%
posterior = idata.posterior
drawn = posterior["x_unobserved"].values.reshape(-1, missing.sum())
low, mid, high = np.quantile(drawn, [0.05, 0.5, 0.95], axis=0)
fig, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
ax.errorbar(x[missing], mid, [mid - low, high - mid], fmt="o", ms=3, lw=0.7)
ends = [x.min(), x.max()]
ax.plot(ends, ends, color="0.6", lw=1)
ax.set(xlabel="value that was not seen", ylabel="imputed", title="Missing values, 90 % intervals")

# %%
inside = np.mean((low < x[missing]) & (x[missing] < high))
slope = posterior["by_x"].values
print(f"intervals that hold the value: {inside:.0%}; slope {slope.mean():.2f} ± {slope.std():.2f}")
assert inside > 0.75
assert abs(slope.mean() - 0.5) < 4 * slope.std()
