"""
Item response with slopes
=========================

Answers of 100 people to 12 questions. Questions differ in difficulty and in how well they separate
people: a slope of the question multiplies the ability of the person, so that the predictor is not
jointly linear in both. The data are simulated.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_augconj as pac

rng = np.random.default_rng(1)
n_people, n_items = 100, 12
ability = rng.normal(size=n_people)
true_slope, difficulty = rng.lognormal(0.2, 0.4, n_items), rng.normal(size=n_items)
chance = 1 / (1 + np.exp(-(true_slope * ability[:, None] - difficulty)))
answers = rng.binomial(1, chance)
person, item = np.indices(answers.shape).reshape(2, -1)

# %%
# Given the slopes, the logits are linear in abilities and difficulties, which the sampler draws
# jointly. It updates the slopes given these, and along the scale that abilities and slopes share.
# Abilities have variance one, which fixes the scale; positive slopes fix the sign.

with pm.Model() as model:
    theta = pm.Normal("theta", 0, 1, shape=n_people)
    b = pm.Normal("b", 0, 1.5, shape=n_items)
    slope = pm.LogNormal("slope", 0, 0.5, shape=n_items)
    pm.Bernoulli("answers", logit_p=slope[item] * theta[person] - b[item], observed=answers.ravel())
    idata = pac.sample(300, chains=2, random_seed=1, progressbar=False)

# %%
found = idata.posterior["slope"].values.reshape(-1, n_items)
low, mid, high = np.quantile(found, [0.05, 0.5, 0.95], axis=0)
fig, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
ax.errorbar(true_slope, mid, [mid - low, high - mid], fmt="o")
ends = [0.0, true_slope.max() + 0.3]
ax.plot(ends, ends, color="0.6", lw=1)
ax.set(xlabel="slope simulated", ylabel="slope found", title="How well questions tell people apart")

# %%
# Nine of ten intervals should contain the slope.

inside = np.mean((low < true_slope) & (true_slope < high))
means = idata.posterior["theta"].mean(("chain", "draw")).values
print(f"90 % intervals that hold the slope: {inside:.0%}")
print(f"correlation of abilities found and simulated: {np.corrcoef(means, ability)[0, 1]:.2f}")
assert inside > 0.7
assert np.corrcoef(means, ability)[0, 1] > 0.8
