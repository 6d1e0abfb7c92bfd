"""
A smooth curve under heavy tails
================================

Gaussian process regression with Student-t noise: a curve through data with ten per cent of
outliers.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_augconj as pac

rng = np.random.default_rng(2)
X = np.linspace(0, 10, 70)[:, None]
truth = np.sin(X[:, 0]) + 0.1 * X[:, 0]
y = truth + 0.15 * rng.standard_normal(70)
off = rng.choice(70, 7, replace=False)
y[off] += rng.choice([-2, 2], 7)

# %%
with pm.Model() as model:
    ls, eta = pm.InverseGamma("ls", 5, 8), pm.HalfNormal("eta", 2)
    sigma = pm.HalfNormal("sigma", 0.5)
    gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=ls))
    f = gp.prior("f", X=X)
    pm.StudentT("y", nu=3, mu=f, sigma=sigma, observed=y)
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
f = idata.posterior["f"]
low, mid, high = f.quantile([0.05, 0.5, 0.95], ("chain", "draw")).values
fig, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
ax.plot(X, y, "k.", ms=4)
ax.plot(X, truth, "k:", label="truth")
ax.plot(X, mid)
ax.fill_between(X[:, 0], low, high, alpha=0.4, label="posterior, 90 %")
ax.set(title="A curve that seven outliers leave where it is")
ax.legend()

# %%
error = np.sqrt(np.mean((f.mean(("chain", "draw")).values - truth) ** 2))
print(f"root mean square error {error:.3f}, noise 0.15")
assert error < 0.1
assert np.mean((low < truth) & (truth < high)) > 0.75
