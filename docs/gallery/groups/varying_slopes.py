"""
Intercepts and slopes that vary by group
========================================

Twelve houses, some measured often and some hardly ever. Every house has an intercept and a slope;
both come from distributions whose mean and spread are learned, so that houses with few data borrow
from the others. Student-t noise takes care of single bad readings.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_augconj as pac

rng = np.random.default_rng(1)
houses = 12
house = rng.choice(houses, 120, p=rng.dirichlet(np.ones(houses)))
x = rng.uniform(-1, 1, 120)
true_a, true_b = 1 + 0.6 * rng.standard_normal(houses), -0.8 + 0.3 * rng.standard_normal(houses)
y = true_a[house] + true_b[house] * x + 0.3 * rng.standard_t(3, 120)

# %%
with pm.Model(coords={"house": range(houses)}) as model:
    mean_a, mean_b = pm.Normal("mean_a", 0, 2), pm.Normal("mean_b", 0, 2)
    sd_a, sd_b = pm.HalfNormal("sd_a", 1), pm.HalfNormal("sd_b", 1)
    a = pm.Normal("a", mean_a, sd_a, dims="house")
    b = pm.Normal("b", mean_b, sd_b, dims="house")
    sigma = pm.HalfNormal("sigma", 1)
    pm.StudentT("y", nu=3, mu=a[house] + b[house] * x, sigma=sigma, observed=y)
    print(pac.recognize())
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
count = np.bincount(house, minlength=houses)
fig, axes = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
for ax, name, truth in zip(axes, "ab", (true_a, true_b), strict=True):
    low, mid, high = idata.posterior[name].quantile([0.05, 0.5, 0.95], ("chain", "draw")).values
    ax.errorbar(count, mid, yerr=[mid - low, high - mid], fmt="o", ms=4, label="posterior, 90 %")
    ax.plot(count, truth, "kx", label="truth")
    ax.set(xlabel="readings of the house", title=f"{name}: houses with few readings borrow")
axes[0].legend()

# %%
inside = []
for name, truth in (("a", true_a), ("b", true_b)):
    low, high = idata.posterior[name].quantile([0.05, 0.95], ("chain", "draw")).values
    inside.append((low < truth) & (truth < high))
print(f"intervals hold the truth of {np.mean(inside):.0%}")
assert np.mean(inside) > 0.7
