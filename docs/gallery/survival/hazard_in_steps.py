"""
A hazard in steps
=================

Time is cut into intervals with a constant hazard in each. The likelihood of the survival times then
equals that of Poisson counts of deaths, with the time at risk as exposure. A random walk connects
the log hazards of neighbouring intervals.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_augconj as pac

rng = np.random.default_rng(6)
true_shape, end = 1.8, 2.0
time = rng.weibull(true_shape, 200)
died = time < end
time = np.minimum(time, end)

cuts = np.linspace(0, end, 13)
width = cuts[1] - cuts[0]
at_risk = np.clip(time[:, None] - cuts[:-1], 0, width).sum(axis=0)
deaths, _ = np.histogram(time[died], cuts)

# %%
with pm.Model() as model:
    step = pm.HalfNormal("step", 0.5)
    log_hazard = pm.GaussianRandomWalk(
        "log_hazard", sigma=step, init_dist=pm.Normal.dist(0, 2), steps=len(deaths) - 1
    )
    pm.Poisson("deaths", mu=at_risk * pm.math.exp(log_hazard), observed=deaths)
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
hazard = np.exp(idata.posterior["log_hazard"])
low, mid, high = hazard.quantile([0.05, 0.5, 0.95], ("chain", "draw")).values
middle = 0.5 * (cuts[1:] + cuts[:-1])
truth = true_shape * middle ** (true_shape - 1)
fig, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
ax.stairs(deaths / at_risk, cuts, color="0.6", label="deaths over time at risk")
ax.errorbar(middle, mid, yerr=[mid - low, high - mid], fmt="o", label="posterior, 90 %")
ax.plot(middle, truth, "k:", label="truth")
ax.set(xlabel="time", ylabel="hazard", title="A hazard in twelve steps")
ax.legend()

# %%
inside = np.mean((low < truth) & (truth < high))
print(f"{inside:.0%} of the intervals hold the truth")
assert inside > 0.65
