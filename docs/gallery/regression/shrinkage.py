"""
Few of many: shrinkage with local scales
========================================

Three of twelve features matter. Each coefficient has a local scale, and all share a global scale,
so that small coefficients shrink to zero and large ones stay: a horseshoe prior, whose local scales
have Student-t tails.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_augconj as pac

rng = np.random.default_rng(7)
X = rng.standard_normal((80, 12))
truth = np.zeros(12)
truth[[1, 4, 9]] = [2.0, -1.5, 1.0]
y = X @ truth + rng.standard_t(4, 80)

# %%
# Given the scales, the coefficients are Gaussian. The sampler updates the scales with the
# coefficients integrated out, so that the funnel between the two does no harm.

with pm.Model() as model:
    tau = pm.HalfNormal("tau", 0.5)
    local = pm.HalfStudentT("local", nu=3, sigma=1, shape=12)
    beta = pm.Normal("beta", 0, tau * local, shape=12)
    sigma = pm.HalfNormal("sigma", 2)
    pm.StudentT("y", nu=4, mu=X @ beta, sigma=sigma, observed=y)
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
beta = idata.posterior["beta"]
low, mid, high = beta.quantile([0.05, 0.5, 0.95], ("chain", "draw")).values
fig, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
ax.errorbar(range(12), mid, yerr=[mid - low, high - mid], fmt="o", label="posterior, 90 %")
ax.plot(range(12), truth, "k_", ms=14, label="truth")
ax.set(xlabel="feature", ylabel="coefficient", title="Three of twelve coefficients are not zero")
ax.legend()

# %%
found = (low > 0) | (high < 0)
print("intervals without zero:", np.flatnonzero(found))
assert found[[1, 4, 9]].all()
assert (np.abs(mid[truth == 0]) < 0.4).all()
