"""
A log-Gaussian Cox process
==========================

Events occur at random times, with a rate that varies. Counts in bins are Poisson, and their rate is
the exponential of a Gaussian process. The log link has no auxiliary variable, so that the sites are
held; the draws are still exact.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_augconj as pac

rng = np.random.default_rng(3)
bins = np.linspace(0, 50, 61)
middle, width = 0.5 * (bins[1:] + bins[:-1]), np.diff(bins)
truth = 1.5 + 1.2 * np.sin(middle / 5) + 3 * (middle > 35)
counts = rng.poisson(truth * width)

# %%
with pm.Model() as model:
    ls, eta = pm.InverseGamma("ls", 3, 15), pm.HalfNormal("eta", 1)
    level = pm.Normal("level", 0, 1)
    gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.Matern32(1, ls=ls))
    f = gp.prior("f", X=middle[:, None])
    pm.Poisson("counts", mu=width * pm.math.exp(level + f), observed=counts)
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
rate = np.exp(idata.posterior["level"] + idata.posterior["f"])
low, mid, high = rate.quantile([0.05, 0.5, 0.95], ("chain", "draw")).values
fig, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
ax.stairs(counts / width, bins, color="0.6", label="events per unit of time")
ax.plot(middle, truth, "k:", label="true rate")
ax.plot(middle, mid)
ax.fill_between(middle, low, high, alpha=0.4, label="posterior, 90 %")
ax.set(xlabel="time", title="Rate of a log-Gaussian Cox process")
ax.legend()

# %%
inside = np.mean((low < truth) & (truth < high))
print(f"90 % intervals hold the true rate in {inside:.0%} of the bins")
assert inside > 0.7
assert np.isfinite(idata.sample_stats["residual_std"]).all()
