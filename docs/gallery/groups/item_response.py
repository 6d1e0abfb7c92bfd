"""
Item response: the Rasch model
==============================

Thirty people answer twelve questions. Whether an answer is right depends on the difference of the
person's ability and the question's difficulty.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from scipy.special import expit

import pymc_augconj as pac

rng = np.random.default_rng(2)
person, question = (a.ravel() for a in np.meshgrid(range(30), range(12), indexing="ij"))
true_ability = 1.3 * rng.standard_normal(30)
true_difficulty = np.linspace(-2, 2, 12)
right = rng.binomial(1, expit(true_ability[person] - true_difficulty[question]))

# %%
with pm.Model() as model:
    spread = pm.HalfNormal("spread", 2)
    ability = pm.Normal("ability", 0, spread, shape=30)
    difficulty = pm.Normal("difficulty", 0, 2, shape=12)
    pm.Bernoulli("right", logit_p=ability[person] - difficulty[question], observed=right)
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
low, mid, high = idata.posterior["difficulty"].quantile([0.05, 0.5, 0.95], ("chain", "draw")).values
fig, ax = plt.subplots(figsize=(5, 4), layout="constrained")
ax.errorbar(true_difficulty, mid, yerr=[mid - low, high - mid], fmt="o")
ax.axline((0, 0), slope=1, color="k", lw=0.5)
ax.set(xlabel="true difficulty", ylabel="posterior, 90 %", title="Difficulty of twelve questions")

# %%
ability = idata.posterior["ability"].mean(("chain", "draw")).values
print(f"correlation of ability with the truth: {np.corrcoef(ability, true_ability)[0, 1]:.2f}")
assert np.corrcoef(ability, true_ability)[0, 1] > 0.8
assert np.corrcoef(mid, true_difficulty)[0, 1] > 0.8
assert np.mean((low < true_difficulty) & (true_difficulty < high)) > 0.6
