"""
A Gaussian process by basis functions
=====================================

``pm.gp.HSGP`` replaces a process by some tens of basis functions with Gaussian coefficients. The
sampler draws the coefficients, at a cost linear in the number of observations: here 400 yes-or-no
answers and 20 functions.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from scipy.special import expit

import pymc_augconj as pac

rng = np.random.default_rng(9)
X = np.sort(rng.uniform(-5, 5, 400))[:, None]
truth = 1.5 * np.sin(X[:, 0]) + 0.3 * X[:, 0]
y = rng.binomial(1, expit(truth))

# %%
with pm.Model() as model:
    ls, eta = pm.InverseGamma("ls", 5, 6), pm.HalfNormal("eta", 2)
    gp = pm.gp.HSGP(m=[20], c=1.5, cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=ls))
    f = gp.prior("f", X=X)
    pm.Bernoulli("y", logit_p=f, observed=y)
    print(pac.recognize())
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
low, mid, high = idata.posterior["f"].quantile([0.05, 0.5, 0.95], ("chain", "draw")).values
fig, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
ax.plot(X, truth, "k:", label="truth")
ax.plot(X, mid)
ax.fill_between(X[:, 0], low, high, alpha=0.4, label="posterior, 90 %")
ax.set(xlabel="x", ylabel="log odds", title="Log odds by 20 basis functions")
ax.legend()

# %%
inside = np.mean((low < truth) & (truth < high))
print(f"intervals hold the truth at {inside:.0%} of the inputs")
assert inside > 0.75
