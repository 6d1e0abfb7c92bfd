"""
What do they like? Preferences
==============================

People were asked which of two cups is better. The cups differ in sweetness. The utility is a
Gaussian process of sweetness, and enters the likelihood through its *difference* at two inputs.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from scipy.special import expit

import pymc_augconj as pac

rng = np.random.default_rng(6)
sweetness = np.linspace(0, 10, 25)


def utility(s):
    return 4 * np.exp(-((s - 6) ** 2) / 6)


first, second = rng.integers(0, 25, (2, 200))
first, second = first[first != second], second[first != second]
prefers_first = rng.binomial(1, expit(utility(sweetness[first]) - utility(sweetness[second])))

# %%
with pm.Model() as model:
    ls, eta = pm.InverseGamma("ls", 5, 10), pm.HalfNormal("eta", 3)
    gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=ls))
    u = gp.prior("u", X=sweetness[:, None])
    pm.Bernoulli("prefers_first", logit_p=u[first] - u[second], observed=prefers_first)
    print(pac.recognize())
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
# Utilities have no zero point; the figure shows each draw relative to its mean.

u = idata.posterior["u"]
u = u - u.mean("u_dim_0")
low, mid, high = u.quantile([0.05, 0.5, 0.95], ("chain", "draw")).values
true = utility(sweetness) - utility(sweetness).mean()
fig, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
ax.fill_between(sweetness, low, high, alpha=0.4)
ax.plot(sweetness, mid, label="posterior")
ax.plot(sweetness, true, "k:", label="truth")
ax.set(xlabel="sweetness", ylabel="utility", title="Utility learned from comparisons, 90 % band")
ax.legend()

# %%
best = sweetness[idata.posterior["u"].argmax("u_dim_0").values]
print(f"best sweetness {best.mean():.1f} ± {best.std():.1f}, truth 6")
assert abs(best.mean() - 6) < 1
assert np.mean((low < true) & (true < high)) > 0.6
