"""
Rates of many small groups
==========================

Deaths after an operation in twenty hospitals: the smallest hospitals have the best and the worst
raw rates. A hierarchical model of the log odds shows which hospitals differ by more than chance.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from scipy.special import expit

import pymc_augconj as pac

rng = np.random.default_rng(4)
operations = np.round(np.exp(rng.uniform(np.log(15), np.log(600), 20))).astype(int)
true_logit = -2.5 + 0.35 * rng.standard_normal(20)
deaths = rng.binomial(operations, expit(true_logit))

# %%
with pm.Model(coords={"hospital": [f"no. {i}" for i in range(1, 21)]}) as model:
    mean = pm.Normal("mean", -2, 1)
    spread = pm.HalfNormal("spread", 1)
    logit = pm.Normal("logit", mean, spread, dims="hospital")
    pm.Binomial("deaths", n=operations, logit_p=logit, observed=deaths)
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
rate = expit(idata.posterior["logit"])
low, mid, high = rate.quantile([0.05, 0.5, 0.95], ("chain", "draw")).values
fig, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
ax.errorbar(operations, mid, yerr=[mid - low, high - mid], fmt="o", ms=4, label="posterior, 90 %")
ax.plot(operations, deaths / operations, "kx", label="raw rate")
ax.set(xscale="log", xlabel="operations", ylabel="rate", title="Death rates of twenty hospitals")
ax.legend()

# %%
# Over all hospitals the posterior means are closer to the truth than the raw rates are.

truth = expit(true_logit)
raw_error = np.abs(deaths / operations - truth).mean()
error = np.abs(rate.mean(("chain", "draw")).values - truth).mean()
print(f"mean error {error:.4f}, of raw rates {raw_error:.4f}")
assert error < raw_error

# %%
# The rank of a hospital has a distribution too: that of its place in every draw. Raw rates name a
# best and a worst hospital; draws tell how sure that is.

ranks = rate.copy(data=1 + rate.values.argsort(-1).argsort(-1))
low, mid, high = ranks.quantile([0.05, 0.5, 0.95], ("chain", "draw")).values
order = np.argsort(mid)
fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
spans = [(mid - low)[order], (high - mid)[order]]
ax.errorbar(mid[order], range(20), xerr=spans, fmt="o", ms=4)
ax.set_yticks(range(20), rate["hospital"].values[order], fontsize=7)
ax.set(xlabel="rank, lowest rate first; 90 %", title="Which hospital is best is far from certain")

best = (ranks == 1).mean(("chain", "draw"))
print(f"{best.idxmax().item()} is the best with probability {best.max().item():.2f}")
