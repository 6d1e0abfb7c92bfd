"""
Counts with memory: a latent AR(1)
==================================

Monthly numbers of accidents are Poisson, and their log rate returns to its mean step by step. The
rate is PyMC's ``AR``; the package recognises it as Gaussian by its density.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_augconj as pac

rng = np.random.default_rng(4)
months, true_rho = 80, 0.85
z = np.zeros(months)
for t in range(1, months):
    z[t] = true_rho * z[t - 1] + 0.5 * rng.standard_normal()
counts = rng.poisson(np.exp(2 + z))

# %%
with pm.Model() as model:
    rho = pm.Uniform("rho", 0, 1)
    step = pm.HalfNormal("step", 1)
    level = pm.Normal("level", 1, 2)
    stationary = pm.Normal.dist(0, step / pm.math.sqrt(1 - rho**2))
    state = pm.AR("state", rho=[rho], sigma=step, init_dist=stationary, steps=months - 1)
    pm.Poisson("counts", mu=pm.math.exp(level + state), observed=counts)
    print(pac.recognize())
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
rate = np.exp(idata.posterior["level"] + idata.posterior["state"])
low, mid, high = rate.quantile([0.05, 0.5, 0.95], ("chain", "draw")).values
fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3), width_ratios=(3, 1), layout="constrained")
left.plot(counts, "k.", ms=4)
left.plot(mid)
left.fill_between(range(months), low, high, alpha=0.4)
left.set(xlabel="month", title="Accidents and their rate, 90 % band")
right.hist(idata.posterior["rho"].values.ravel(), bins=30)
right.axvline(true_rho, color="k", ls=":")
right.set(xlabel="rho", yticks=[], title="Memory")

# %%
rho = idata.posterior["rho"].values
assert np.quantile(rho, 0.005) < true_rho < np.quantile(rho, 0.995)
truth = np.exp(2 + z)
assert np.mean((low < truth) & (truth < high)) > 0.75
