"""
Quantile regression
===================

Which expense on food do a tenth, a half and nine tenths of households with the same income stay
below? Under asymmetric Laplace noise the line is a quantile instead of the mean. The data are
Engel's 235 Belgian households of 1857, with incomes and expenses in thousands of francs.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from statsmodels.datasets import engel

import pymc_augconj as pac

data = engel.load_pandas().data / 1000
income, food = data["income"].to_numpy(), data["foodexp"].to_numpy()
center = income.mean()

# %%
# PyMC's argument ``q`` is the quantile. Each quantile has a separate model.


def line(q):
    with pm.Model():
        a = pm.Normal("a", 0.5, 1)
        slope = pm.Normal("slope", 0.5, 1)
        b = pm.HalfNormal("b", 20)
        pm.AsymmetricLaplace("food", mu=a + slope * (income - center), b=b, q=q, observed=food)
        return pac.sample(500, chains=2, random_seed=1, progressbar=False).posterior


quantiles = [0.1, 0.5, 0.9]
posteriors = {q: line(q) for q in quantiles}

# %%
# The lines fan out: the expenses of richer households vary more.

grid = np.linspace(income.min(), 3, 50)
fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.plot(income, food, ".", color="0.6")
for q, posterior in posteriors.items():
    a, slope = posterior["a"].values.ravel(), posterior["slope"].values.ravel()
    ax.plot(grid, a.mean() + slope.mean() * (grid - center), label=f"q = {q}")
ax.set(
    xlim=(0, 3), xlabel="income", ylabel="food", title="Food expenses by income, three quantiles"
)
ax.legend()

# %%
# About a tenth, a half and nine tenths of the households are below their lines.

for q, posterior in posteriors.items():
    mean = float(posterior["a"].mean()) + float(posterior["slope"].mean()) * (income - center)
    below = np.mean(food < mean)
    print(f"q = {q}: {below:.2f} of the households are below")
    assert abs(below - q) < 0.05
assert posteriors[0.9]["slope"].mean() > posteriors[0.1]["slope"].mean()
