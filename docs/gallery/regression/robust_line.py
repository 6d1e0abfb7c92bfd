"""
A line through data with outliers
=================================

Twenty points lie on a line, but for three outliers. Under Student-t noise each observation has a
precision, which the sampler draws from a gamma distribution. Outliers get small precisions.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_augconj as pac

rng = np.random.default_rng(1)
x = np.linspace(-2, 2, 20)
y = 1 + 2 * x + 0.3 * rng.standard_normal(20)
y[[1, 3, 17]] += [8, 6, -7]

# %%
# The model is the usual one; ``pac.sample`` replaces ``pm.sample``.

with pm.Model() as model:
    intercept = pm.Normal("intercept", 0, 5)
    slope = pm.Normal("slope", 0, 5)
    sigma = pm.HalfNormal("sigma", 1)
    nu = pm.Gamma("nu", 2, 0.5)
    pm.StudentT("y", nu=nu, mu=intercept + slope * x, sigma=sigma, observed=y)
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
# The three outliers shift the least-squares line, but not the posterior.

posterior = idata.posterior
lines = posterior["intercept"].values[..., None] + posterior["slope"].values[..., None] * x
low, high = np.quantile(lines, [0.05, 0.95], axis=(0, 1))
least_squares = np.polyval(np.polyfit(x, y, 1), x)

fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.plot(x, y, "k.", label="data")
ax.plot(x, least_squares, "C3--", label="least squares")
ax.fill_between(x, low, high, color="C0", alpha=0.4, label="posterior, 90 %")
ax.set(xlabel="x", ylabel="y", title="Student-t regression of a line with three outliers")
ax.legend()

# %%
# The true slope is 2.

slope_draws = posterior["slope"].values
assert abs(slope_draws.mean() - 2) < 3 * slope_draws.std()
assert abs(np.polyfit(x, y, 1)[0] - 2) > abs(slope_draws.mean() - 2)
