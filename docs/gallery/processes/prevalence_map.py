"""
A map of prevalence
===================

Some people were tested in each of forty villages. The model predicts the share of ill people
between the villages: a Gaussian process over the plane is the logit of a binomial probability.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from scipy.special import expit

import pymc_augconj as pac

rng = np.random.default_rng(5)
places = rng.uniform(0, 10, (40, 2))


def truth(p):
    hill = np.exp(-((p[..., 0] - 3) ** 2 + (p[..., 1] - 6) ** 2) / 6)
    return expit(-2.2 + 3 * hill)


tested = rng.integers(20, 60, 40)
ill = rng.binomial(tested, truth(places))

# %%
with pm.Model() as model:
    ls, eta = pm.InverseGamma("ls", 4, 9), pm.HalfNormal("eta", 1.5)
    level = pm.Normal("level", -2, 1)
    gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.Matern52(2, ls=ls))
    f = gp.prior("f", X=places)
    pm.Binomial("ill", n=tested, logit_p=level + f, observed=ill)
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
# Predictions at the nodes of a grid, for one person each: ``params={"n": 1}``.

side = np.linspace(0, 10, 20)
grid = np.stack(np.meshgrid(side, side), axis=-1)
with model:
    thinned = idata.isel(draw=slice(None, None, 5))
    new = pac.predict(
        thinned, gp, grid.reshape(-1, 2), "y", params={"n": 1}, joint=False, random_seed=1
    )
p = new.predictions["ill_mean"].values.reshape(20, 20)

fig, ax = plt.subplots(figsize=(5, 4), layout="constrained")
shown = ax.contourf(side, side, p, 12, cmap="viridis")
ax.scatter(*places.T, c=ill / tested, s=2 * tested, cmap="viridis", edgecolor="w")
fig.colorbar(shown, label="prevalence")
ax.set(title="Posterior mean of the prevalence, and the villages")

# %%
error = np.abs(p - truth(grid))
print(f"mean error {error.mean():.3f}, largest {error.max():.3f}")
assert error.mean() < 0.06
