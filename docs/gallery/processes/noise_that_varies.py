"""
Noise that varies
=================

The mean and the log noise level are Gaussian processes of time. The data resemble a crash test.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_augconj as pac

rng = np.random.default_rng(3)
x = np.sort(rng.uniform(0, 6, 110))
truth = -2.0 * np.exp(-((x - 2.5) ** 2)) + np.exp(-((x - 4) ** 2))
noise = 0.08 + 0.45 / (1 + np.exp(-4 * (x - 1.8)))
y = truth + noise * rng.standard_normal(110)

# %%
# The logarithm of the standard deviation is an intercept plus a second process.
X = x[:, None]
with pm.Model() as model:
    gp_f = pm.gp.Latent(
        cov_func=pm.HalfNormal("eta_f", 2) ** 2
        * pm.gp.cov.Matern52(1, ls=pm.InverseGamma("ls_f", 4, 4))
    )
    gp_g = pm.gp.Latent(
        cov_func=pm.HalfNormal("eta_g", 1) ** 2
        * pm.gp.cov.Matern52(1, ls=pm.InverseGamma("ls_g", 4, 4))
    )
    f, g = gp_f.prior("f", X=X), gp_g.prior("g", X=X)
    level = pm.Normal("level", -1, 1)
    pm.Normal("y", f, sigma=pm.math.exp(level + g), observed=y)
    varying = pac.fit("vgp", random_seed=1, progressbar=False)

with pm.Model() as constant_model:
    gp = pm.gp.Latent(
        cov_func=pm.HalfNormal("eta", 2) ** 2
        * pm.gp.cov.Matern52(1, ls=pm.InverseGamma("ls", 4, 4))
    )
    pm.Normal("y", gp.prior("f", X=X), pm.HalfNormal("sigma", 1), observed=y)
    constant = pac.fit("vgp", random_seed=1, progressbar=False)

# %%
# Bands for new observations, with either model.
new = np.linspace(0, 6, 80)[:, None]
with model:
    bands = pac.predict(varying, [gp_f, gp_g], new, kind="y", quantile=[0.05, 0.95], random_seed=1)
with constant_model:
    level_bands = pac.predict(constant, gp, new, kind="y", quantile=[0.05, 0.95], random_seed=1)

fig, axes = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True, layout="constrained")
for ax, found, title in (
    (axes[0], level_bands, "one noise level"),
    (axes[1], bands, "a noise level that varies"),
):
    low, high = found.predictions["y_quantile"].transpose("quantile", ...).values
    ax.plot(x, y, "k.", ms=4)
    ax.plot(new, found.predictions["y_mean"])
    ax.fill_between(new[:, 0], low, high, alpha=0.3)
    ax.set(title=title, xlabel="time")
fig.suptitle("Mean and 90 % band of new observations")

# %%
# The second model predicts new observations better, in nats for each observation.
x_new = np.sort(rng.uniform(0, 6, 200))
mean_new = -2.0 * np.exp(-((x_new - 2.5) ** 2)) + np.exp(-((x_new - 4) ** 2))
noise_new = 0.08 + 0.45 / (1 + np.exp(-4 * (x_new - 1.8)))
y_new = mean_new + noise_new * rng.standard_normal(200)
with model:
    ours = pac.predict(
        varying, [gp_f, gp_g], x_new[:, None], kind="y", ynew=y_new, random_seed=1
    ).predictions["y_log_density"]
with constant_model:
    theirs = pac.predict(
        constant, gp, x_new[:, None], kind="y", ynew=y_new, random_seed=1
    ).predictions["y_log_density"]
gain = float(ours.mean() - theirs.mean())
print(f"gain {gain:.2f} nats an observation")
assert gain > 0.1
