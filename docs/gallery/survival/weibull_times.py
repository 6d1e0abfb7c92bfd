"""
Survival times, some of them censored
=====================================

Days that patients survived a heart transplant at Stanford; those still alive at the end are
censored. Times are Weibull with a log-linear scale: an accelerated failure time model.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from statsmodels.datasets import heart

import pymc_augconj as pac

data = heart.load_pandas().data
time = data["survival"].to_numpy(float)
died = data["censors"].to_numpy() == 1
age = (data["age"].to_numpy() - 45) / 10

# %%
# ``pm.Censored`` takes an upper bound for each observation: infinity for an observed death, the
# observed time otherwise.

with pm.Model() as model:
    level, slope = pm.Normal("level", 6, 3), pm.Normal("slope", 0, 2)
    shape = pm.HalfNormal("shape", 2)
    scale = pm.math.exp(level + slope * age)
    bound = np.where(died, np.inf, time)
    pm.Censored(
        "time", pm.Weibull.dist(alpha=shape, beta=scale), lower=None, upper=bound, observed=time
    )
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
posterior = idata.posterior
t = np.linspace(1, 1500, 200)
fig, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
for years, color in ((35, "C0"), (55, "C3")):
    scale = np.exp(posterior["level"] + posterior["slope"] * (years - 45) / 10).values[..., None]
    survival = np.exp(-((t / scale) ** posterior["shape"].values[..., None]))
    low, mid, high = np.quantile(survival, [0.05, 0.5, 0.95], axis=(0, 1))
    ax.plot(t, mid, color=color, label=f"aged {years}")
    ax.fill_between(t, low, high, color=color, alpha=0.25)
ax.set(xlabel="days", ylabel="survival", title="Survival after a transplant, by age, 90 % bands")
ax.legend()

# %%
# Older patients die sooner. To count censored times as deaths would underestimate survival.

slope = posterior["slope"].values
print(f"probability that age shortens life: {np.mean(slope < 0):.3f}")
assert np.mean(slope < 0) > 0.9
median = np.exp(posterior["level"]) * np.log(2) ** (1 / posterior["shape"])
assert float(median.mean()) > np.median(time)
