"""
Ordered answers
===============

Answers on a scale from 0 to 4 are ordered, but their distances have no meaning. The ordered
logistic distribution has one latent score, and learns the cutpoints.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_augconj as pac

rng = np.random.default_rng(3)
hours = rng.uniform(-1, 1, 100)
score = 1.8 * hours + rng.logistic(size=100)
cuts = np.array([-2.0, -0.7, 0.6, 1.9])
answer = np.searchsorted(cuts, score)

# %%
with pm.Model() as model:
    slope = pm.Normal("slope", 0, 2)
    cutpoints = pm.Normal(
        "cutpoints",
        0,
        3,
        shape=4,
        transform=pm.distributions.transforms.ordered,
        initval=np.array([-1.5, -0.5, 0.5, 1.5]),
    )
    pm.OrderedLogistic("answer", eta=slope * hours, cutpoints=cutpoints, observed=answer)
    print(pac.recognize())
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
# The probability of each answer along the input, from the posterior means.

grid = np.linspace(-1, 1, 50)
found = idata.posterior["cutpoints"].mean(("chain", "draw")).values
eta = float(idata.posterior["slope"].mean()) * grid
below = 1 / (1 + np.exp(-(found[:, None] - eta)))
below = np.vstack([np.zeros_like(grid), below, np.ones_like(grid)])
fig, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
ax.stackplot(grid, np.diff(below, axis=0), labels=[f"answer {k}" for k in range(5)])
ax.set(xlabel="hours", ylabel="probability", title="Probabilities of five ordered answers")
ax.legend(loc="upper left", fontsize=8)

# %%
slope = idata.posterior["slope"].values
sd = idata.posterior["cutpoints"].std(("chain", "draw")).values
assert abs(slope.mean() - 1.8) < 3 * slope.std()
assert (np.abs(found - cuts) < 4 * sd).all()
