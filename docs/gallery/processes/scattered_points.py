"""
A field from scattered points
=============================

Where, among three thousand places, was a plant found? Too many for a dense process: each value of a
Vecchia process is given some neighbours alone, and steps take time linear in the number of places.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from scipy.special import expit

import pymc_augconj as pac

rng = np.random.default_rng(8)
places = rng.uniform(0, 10, (3000, 2))


def truth(p):
    return 2.5 * np.sin(0.9 * p[..., 0]) * np.cos(0.7 * p[..., 1]) - 0.5


seen = rng.random(3000) < expit(truth(places))

# %%
# The places are near to each other beside the lengthscale, so that values are nearly functions of
# their neighbours. A jitter of 1e-3 leaves the precisions digits.

with pm.Model() as model:
    ls, eta = pm.InverseGamma("ls", 4, 9), pm.HalfNormal("eta", 2)
    cov = eta**2 * pm.gp.cov.Matern32(2, ls=ls)
    level = pm.Normal("level", 0, 2)
    f = pac.Vecchia("f", X=places, cov_func=cov, neighbours=8, jitter=1e-3)
    pm.Bernoulli("seen", logit_p=level + f, observed=seen)
    idata = pac.sample(100, tune=100, chains=2, random_seed=1, progressbar=False)

# %%
# Values between the places are drawn given their neighbours.

side = np.linspace(0, 10, 40)
grid = np.stack(np.meshgrid(side, side), axis=-1)
with model:
    new = pac.Vecchia.conditional("new", grid.reshape(-1, 2), f, places, cov, 8, jitter=1e-3)
    pm.Deterministic("p", pm.math.invlogit(level + new))
    drawn = pm.sample_posterior_predictive(
        idata.isel(draw=slice(None, None, 2)), var_names=["p"], random_seed=1, progressbar=False
    )
p = drawn.posterior_predictive["p"].mean(("chain", "draw")).values.reshape(40, 40)

fig, axes = plt.subplots(1, 2, figsize=(8, 3.6), sharey=True, layout="constrained")
axes[0].scatter(*places.T, c=seen, s=2, cmap="viridis")
axes[0].set(title="Found (yellow) or not")
shown = axes[1].contourf(side, side, p, np.linspace(0, 1, 11), cmap="viridis")
axes[1].set(title="Posterior mean of the probability")
fig.colorbar(shown)

# %%
error = np.abs(p - expit(truth(grid)))
print(f"mean error {error.mean():.3f}, largest {error.max():.3f}")
assert error.mean() < 0.06
