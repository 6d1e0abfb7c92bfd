"""
Noise of adjustable tails: Matérn
=================================

``pac.MaternNoise`` is a noise distribution whose density is a Matérn function: Laplace's at ν = ½,
normal as ν grows. It is a mixture of normal distributions, and is sampled exactly.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_augconj as pac

rng = np.random.default_rng(8)
X = np.linspace(0, 6, 60)[:, None]
truth = np.sin(1.5 * X[:, 0])
y = truth + 0.2 * rng.laplace(size=60)

# %%
with pm.Model() as model:
    rho = pm.HalfNormal("rho", 1)
    f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.2)).prior("f", X=X)
    pac.MaternNoise("y", nu=1.5, mu=f, rho=rho, observed=y)
    print(pac.recognize())
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
low, mid, high = idata.posterior["f"].quantile([0.05, 0.5, 0.95], ("chain", "draw")).values
fig, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
ax.plot(X, y, "k.", ms=4)
ax.plot(X, truth, "k:", label="truth")
ax.plot(X, mid)
ax.fill_between(X[:, 0], low, high, alpha=0.4, label="posterior, 90 %")
ax.set(title="A curve under Matérn noise")
ax.legend()

# %%
inside = np.mean((low < truth) & (truth < high))
assert inside > 0.75, inside
assert 0.1 < float(idata.posterior["rho"].mean()) < 0.6
