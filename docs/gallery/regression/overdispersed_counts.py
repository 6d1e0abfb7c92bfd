"""
Overdispersed counts
====================

How often do people see a doctor? The counts vary more than Poisson counts, so that the model is
negative binomial with a learned dispersion. The data are every sixtieth of the 20 190 rows of the
RAND health insurance experiment.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from statsmodels.datasets import randhie

import pymc_augconj as pac

data = randhie.load_pandas().data.iloc[::60]
visits = data["mdvis"].to_numpy(int)
columns = ["lncoins", "physlm", "disea", "hlthp"]
X = data[columns].to_numpy(float)
X = (X - X.mean(axis=0)) / X.std(axis=0)

# %%
# With the log link, ``mu=exp(…)``, negative binomial counts have a Pólya–Gamma augmentation for any
# real dispersion ``alpha``.

with pm.Model(coords={"feature": ["coinsurance", "limitation", "diseases", "poor health"]}):
    level = pm.Normal("level", 1, 1)
    beta = pm.Normal("beta", 0, 0.5, dims="feature")
    alpha = pm.HalfNormal("alpha", 2)
    pm.NegativeBinomial("visits", mu=pm.math.exp(level + X @ beta), alpha=alpha, observed=visits)
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
beta = idata.posterior["beta"].stack(sample=("chain", "draw"))
fig, ax = plt.subplots(figsize=(6, 3), layout="constrained")
ax.violinplot(beta.values.T, orientation="horizontal")
ax.axvline(0, color="k", lw=0.5)
ax.set_yticks(range(1, 5), beta["feature"].values)
ax.set(xlabel="effect on the log rate", title="Posterior effects on the number of visits")

# %%
# The dispersion is far from Poisson's, and the model reproduces the share of people without a
# visit.

level, alpha = idata.posterior["level"].values.ravel(), idata.posterior["alpha"].values.ravel()
mu = np.exp(level + X @ beta.values)
none = np.mean((alpha / (alpha + mu)) ** alpha, axis=0)
low, high = np.quantile(none, [0.005, 0.995])
print(f"dispersion {alpha.mean():.2f}; no visit: {np.mean(visits == 0):.2f} observed,")
print(f"{low:.2f} to {high:.2f} expected, a Poisson would say {np.exp(-visits.mean()):.2f}")
assert alpha.max() < 3
assert low < np.mean(visits == 0) < high
