"""
Positive observations: gamma regression
=======================================

The share of *yes* votes in the Scottish referendum on taxation of 1997, in 32 districts: positive
numbers whose spread grows with their mean. A classic of generalised linear models.
"""

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import statsmodels.api as sm
from statsmodels.datasets import scotland

import pymc_augconj as pac

data = scotland.load_pandas()
yes = data.endog.to_numpy()
names = ["COUTAX", "UNEMPF", "MOR"]
X = data.exog[names].to_numpy()
X = (X - X.mean(axis=0)) / X.std(axis=0)

# %%
with pm.Model(coords={"feature": ["council tax", "unemployment", "mortality"]}):
    level = pm.Normal("level", 4, 1)
    beta = pm.Normal("beta", 0, 0.5, dims="feature")
    shape = pm.Gamma("shape", 2, 0.01)
    mu = pm.math.exp(level + X @ beta)
    pm.Gamma("yes", alpha=shape, beta=shape / mu, observed=yes)
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
# Observed shares against predictions from the districts' features.

posterior = az.extract(idata)
mu = np.exp(posterior["level"].values + X @ posterior["beta"].values)
low, mid, high = np.quantile(mu, [0.05, 0.5, 0.95], axis=1)
fig, ax = plt.subplots(figsize=(5, 4), layout="constrained")
ax.errorbar(mid, yes, xerr=[mid - low, high - mid], fmt="o", ms=4)
ax.axline((60, 60), slope=1, color="k", lw=0.5)
ax.set(xlabel="posterior mean, %", ylabel="observed, %", title="Yes votes in 32 districts")

# %%
# Under a weak prior the posterior means are near the maximum of the likelihood.

family = sm.families.Gamma(link=sm.families.links.Log())
glm = sm.GLM(yes, sm.add_constant(X), family=family).fit()
beta = posterior["beta"]
distance = np.abs(beta.mean("sample") - glm.params[1:]) / beta.std("sample")
print(distance.to_series().round(2))
assert distance.max() < 0.5
