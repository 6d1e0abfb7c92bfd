"""
The level of the Nile
=====================

A local level model of the flow at Aswan from 1871 to 1970: a Gaussian random walk with Student-t
noise, which allows for unusual years. The model learns the size of the steps and of the noise.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from statsmodels.datasets import nile

import pymc_augconj as pac

data = nile.load_pandas().data
year, flow = data["year"].to_numpy(), data["volume"].to_numpy() / 100

# %%
with pm.Model() as model:
    step = pm.HalfNormal("step", 1)
    sigma = pm.HalfNormal("sigma", 2)
    level = pm.GaussianRandomWalk(
        "level", sigma=step, init_dist=pm.Normal.dist(10, 5), steps=len(flow) - 1
    )
    pm.StudentT("flow", nu=5, mu=level, sigma=sigma, observed=flow)
    print(pac.recognize())
    idata = pac.sample(300, chains=2, random_seed=1, progressbar=False)

# %%
level = idata.posterior["level"]
low, mid, high = level.quantile([0.05, 0.5, 0.95], ("chain", "draw")).values
fig, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
ax.plot(year, flow, "k.", ms=4)
ax.plot(year, mid)
ax.fill_between(year, low, high, alpha=0.4)
ax.set(xlabel="year", ylabel="10¹⁰ m³", title="Flow of the Nile, and its level with a 90 % band")

# %%
# The level dropped around 1899, when the first dam was begun.

drop = level.values[..., year < 1897].mean(axis=-1) - level.values[..., year > 1901].mean(axis=-1)
print(f"drop: {drop.mean():.2f} ± {drop.std():.2f}")
assert np.quantile(drop, 0.01) > 1
