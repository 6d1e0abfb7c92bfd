"""
Three classes in the plane
==========================

A process for each class, and the softmax of all: regions of three classes, with probabilities.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_augconj as pac

rng = np.random.default_rng(4)


def draw(size):
    """Return points on three arms of a spiral, and which arm."""
    label = rng.integers(3, size=size)
    radius = rng.uniform(0.3, 2, size)
    angle = 2 * np.pi * label / 3 + 1.2 * radius + 0.25 * rng.standard_normal(size)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1), label


X, y = draw(150)

# %%
# ``n_outputs=3`` makes three processes with one kernel. With inducing points each process has
# separate weights, and all share the kernel matrices.
with pm.Model() as model:
    ls, eta = pm.InverseGamma("ls", 5, 5), pm.HalfNormal("eta", 5)
    gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=ls))
    F = gp.prior("F", X=X, n_outputs=3)
    pm.Categorical("y", logit_p=F.T, observed=y)
    fit = pac.fit("vgp", gp=gp, inducing=40, tol=1e-4, random_seed=1, progressbar=False)

# %%
side = np.linspace(-2.3, 2.3, 40)
grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
with model:
    new = pac.predict(fit, gp, grid, kind="y", random_seed=1)
p = new.predictions["y_probability"].values.reshape(40, 40, 3)

fig, ax = plt.subplots(figsize=(5, 4.5), layout="constrained")
# The colours show the three probabilities as red, green and blue.
ax.imshow(p, origin="lower", extent=(-2.3, 2.3, -2.3, 2.3))
ax.scatter(*X.T, c=np.eye(3)[y], edgecolor="w", s=25)
ax.set(title="Probabilities of three classes, as red, green and blue")

# %%
X_test, y_test = draw(300)
with model:
    new = pac.predict(fit, gp, X_test, kind="y", ynew=y_test, random_seed=1)
found = new.predictions["y_probability"].values.argmax(axis=1)
accuracy = np.mean(found == y_test)
print(f"accuracy on 300 new points: {accuracy:.2f}")
assert accuracy > 0.85
assert new.predictions["y_log_density"].values.mean() > np.log(0.5)
