"""
A probability that drifts
=========================

A player's rate of success over a career: the log odds are a random walk, and the number of attempts
in each season is known.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from scipy.special import expit

import pymc_augconj as pac

rng = np.random.default_rng(3)
seasons = np.arange(20)
truth = expit(-1.5 + 2.2 * np.exp(-((seasons - 11) ** 2) / 30))
attempts = rng.integers(15, 60, 20)
successes = rng.binomial(attempts, truth)

# %%
with pm.Model() as model:
    step = pm.HalfNormal("step", 0.5)
    logit = pm.GaussianRandomWalk(
        "logit", sigma=step, init_dist=pm.Normal.dist(0, 2), steps=len(seasons) - 1
    )
    pm.Binomial("successes", n=attempts, logit_p=logit, observed=successes)
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
p = expit(idata.posterior["logit"])
low, mid, high = p.quantile([0.05, 0.5, 0.95], ("chain", "draw")).values
fig, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
ax.plot(seasons, successes / attempts, "k.", label="observed share")
ax.plot(seasons, truth, "k:", label="truth")
ax.plot(seasons, mid)
ax.fill_between(seasons, low, high, alpha=0.4, label="posterior, 90 %")
ax.set(xlabel="season", title="Rate of success over a career")
ax.legend()

# %%
best = p.argmax("logit_dim_0").values
print(f"the best season: {np.median(best):.0f}; truth 11")
assert abs(np.median(best) - 11) <= 3
assert np.mean((low < truth) & (truth < high)) > 0.7
