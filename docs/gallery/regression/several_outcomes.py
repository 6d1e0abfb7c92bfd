"""
Regression of several outcomes
==============================

Each of 120 people has two outcomes with correlated errors, so that one outcome is informative about
the other. The data are simulated.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_augconj as pac

rng = np.random.default_rng(1)
n, dose = 120, rng.uniform(0, 2, 120)
correlation = 0.7
errors = rng.multivariate_normal([0, 0], [[1, correlation * 0.5], [correlation * 0.5, 0.25]], n)
y = np.column_stack([1 + 0.8 * dose, -0.5 * dose]) + errors

# %%
# ``MvNormal`` takes one row of outcomes for each person. The sampler draws intercepts and slopes of
# both outcomes jointly, given the Cholesky factor of the errors' covariance, which has an LKJ
# prior.

with pm.Model() as model:
    intercept, slope = pm.Normal("intercept", 0, 5, shape=2), pm.Normal("slope", 0, 5, shape=2)
    chol, corr, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.HalfNormal.dist(2, shape=2))
    pm.MvNormal("y", intercept + dose[:, None] * slope, chol=chol, observed=y)
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
posterior = idata.posterior
x = np.linspace(0, 2, 50)
fig, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
for k in range(2):
    level, by_dose = (posterior[name].values[..., k].ravel() for name in ("intercept", "slope"))
    low, mid, high = np.quantile(level + np.outer(x, by_dose), [0.05, 0.5, 0.95], axis=1)
    ax.plot(dose, y[:, k], ".", color=f"C{k}", alpha=0.5)
    ax.plot(x, mid, color=f"C{k}", label=f"outcome {k + 1}")
    ax.fill_between(x, low, high, color=f"C{k}", alpha=0.25)
ax.set(xlabel="dose", title="Two outcomes and their means, 90 % bands")
ax.legend()

# %%
# The model also gives the correlation of the errors.

found = posterior["chol_corr"].values[..., 0, 1]
print(f"correlation of the errors: {found.mean():.2f} ± {found.std():.2f}")
assert abs(found.mean() - correlation) < 4 * found.std()
