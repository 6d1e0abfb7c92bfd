"""
Who is stronger? Paired comparisons
===================================

The Bradley–Terry model: team *i* beats team *j* with a probability that depends on the difference
of their strengths, and on which of them plays at home. Strengths sum to zero.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from scipy.special import expit

import pymc_augconj as pac

rng = np.random.default_rng(3)
teams = 10
strength = np.linspace(-1.2, 1.2, teams)
home, away = (a.ravel() for a in np.meshgrid(range(teams), range(teams)))
home, away = np.tile(home[home != away], 2), np.tile(away[home != away], 2)
home_wins = rng.binomial(1, expit(0.4 + strength[home] - strength[away]))

# %%
with pm.Model() as model:
    s = pm.ZeroSumNormal("s", sigma=1, shape=teams)
    advantage = pm.Normal("advantage", 0, 1)
    pm.Bernoulli("home_wins", logit_p=advantage + s[home] - s[away], observed=home_wins)
    print(pac.recognize())
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
low, mid, high = idata.posterior["s"].quantile([0.05, 0.5, 0.95], ("chain", "draw")).values
fig, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
ax.errorbar(range(teams), mid, yerr=[mid - low, high - mid], fmt="o", label="posterior, 90 %")
ax.plot(strength, "k_", ms=12, label="truth")
ax.set(xlabel="team", ylabel="strength", title="Strengths of ten teams after 180 games")
ax.legend()

# %%
np.testing.assert_allclose(idata.posterior["s"].sum("s_dim_0"), 0, atol=1e-8)
assert np.corrcoef(mid, strength)[0, 1] > 0.8
advantage = idata.posterior["advantage"].values
assert abs(advantage.mean() - 0.4) < 3.5 * advantage.std()
