"""
Two classes in the plane
========================

Gaussian process classification that learns the length scale, the amplitude and the intercept.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from sklearn.datasets import make_moons

import pymc_augconj as pac

X, y = make_moons(70, noise=0.25, random_state=1)

# %%
with pm.Model() as model:
    ls = pm.InverseGamma("ls", 5, 5)
    eta = pm.HalfNormal("eta", 3)
    level = pm.Normal("level", 0, 2)
    gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=ls))
    f = gp.prior("f", X=X)
    pm.Bernoulli("y", logit_p=level + f, observed=y)
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
# ``pac.predict`` averages the class probability over the draws.

side = np.linspace(-1.7, 2.7, 25), np.linspace(-1.2, 1.7, 20)
grid = np.stack(np.meshgrid(*side), axis=-1)
with model:
    thinned = idata.isel(draw=slice(None, None, 5))
    new = pac.predict(thinned, gp, grid.reshape(-1, 2), "y", joint=False, random_seed=1)
p = new.predictions["y_mean"].values.reshape(20, 25)

fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
shown = ax.contourf(*side, p, levels=np.linspace(0, 1, 11), cmap="RdBu_r")
ax.scatter(*X.T, c=y, cmap="RdBu_r", edgecolor="k")
fig.colorbar(shown, label="P(y = 1)")
ax.set(title="Posterior probability of the second class")

# %%
X_test, y_test = make_moons(200, noise=0.25, random_state=2)
with model:
    new = pac.predict(thinned, gp, X_test, "y", joint=False, ynew=y_test, random_seed=1)
accuracy = np.mean((new.predictions["y_mean"].values > 0.5) == y_test)
print(f"accuracy on 200 new points: {accuracy:.2f}")
assert accuracy > 0.88
assert new.predictions["y_log_density"].values.mean() > np.log(0.6)
