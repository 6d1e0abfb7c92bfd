"""
Weighted observations, by hand
==============================

A survey asked too many people of one group, and has a weight for each answer. PyMC has no weighted
distributions; write the weighted log likelihood as a ``pm.Potential``.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from scipy.special import expit

import pymc_augconj as pac

rng = np.random.default_rng(7)
older = rng.random(300) < 0.8
answer = rng.binomial(1, np.where(older, 0.7, 0.3))
weight = np.where(older, 0.5 / 0.8, 0.5 / 0.2)

# %%
with pm.Model() as model:
    logit = pm.Normal("logit", 0, 2)
    log_p = pm.logp(pm.Bernoulli.dist(logit_p=logit * np.ones(300)), answer)
    pm.Potential("answers", weight * log_p)
    print(pac.recognize())
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
share = expit(idata.posterior["logit"].values.ravel())
fig, ax = plt.subplots(figsize=(6, 3), layout="constrained")
ax.hist(share, bins=40)
ax.axvline(answer.mean(), color="C3", ls="--", label="unweighted share")
ax.axvline(0.5, color="k", ls=":", label="truth")
ax.set(xlabel="share of the population", yticks=[], title="A weighted share")
ax.legend()

# %%
weighted = np.average(answer, weights=weight)
print(f"posterior {share.mean():.3f}, weighted share {weighted:.3f}, raw {answer.mean():.3f}")
assert abs(share.mean() - weighted) < 0.02
assert abs(share.mean() - answer.mean()) > 0.05
