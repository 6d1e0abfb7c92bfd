"""
Light curve of a turning star
=============================

Photons in 6 000 short exposures of a star whose spots turn with it and change slowly. The logarithm
of its brightness is a quasi-periodic Gaussian process, a Matérn kernel times a cosine. Such kernels
of one input are sampled in linear time, whatever the gaps between exposures: no matrix of 6 000 by
6 000 is made.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_augconj as pac

rng = np.random.default_rng(4)
n, period = 6_000, 4.7
# Ten hours of each of 60 nights.
days = np.sort(rng.integers(60, size=n) + rng.uniform(0.0, 0.42, n))
knots = np.linspace(0.0, 60.0, 13)
fades = [np.interp(days, knots, rng.normal(0.0, 0.15, knots.size)) for _ in range(2)]
turn = 2.0 * np.pi * days / period
brightness = fades[0] * np.cos(turn) + fades[1] * np.sin(turn)
photons = rng.poisson(np.exp(3.0 + brightness))

# %%
with pm.Model() as model:
    P = pm.LogNormal("period", np.log(4.5), 0.1)
    ls, eta = pm.InverseGamma("ls", 3, 40), pm.HalfNormal("eta", 0.5)
    cov_func = eta**2 * pm.gp.cov.Matern32(1, ls=ls) * pm.gp.cov.Cosine(1, ls=P)
    f = pm.gp.Latent(cov_func=cov_func).prior("f", X=days[:, None])
    level = pm.Normal("level", 3.0, 1.0)
    pm.Poisson("photons", pm.math.exp(level + f), observed=photons)
    idata = pac.sample(400, chains=2, random_seed=1, progressbar=False)

# %%
fig, axes = plt.subplots(1, 2, figsize=(9, 3.2), width_ratios=(3, 1), layout="constrained")
low, mid, high = idata.posterior["f"].quantile([0.05, 0.5, 0.95], ("chain", "draw")).values
axes[0].plot(days, np.log(photons) - 3.0, ".", ms=1, color="0.75")
axes[0].plot(days, brightness, ".", ms=1, color="C1", label="simulated")
axes[0].errorbar(
    days[::40], mid[::40], [(mid - low)[::40], (high - mid)[::40]], fmt=".", ms=3, label="posterior"
)
axes[0].set(xlabel="days", ylabel="log brightness", ylim=(-0.8, 0.8), title="A star of 4.7 days")
axes[0].legend(loc="upper right")
axes[1].hist(idata.posterior["period"].values.ravel(), bins=30)
axes[1].axvline(period, color="C1")
axes[1].set(xlabel="days", yticks=[], title="Period")

# %%
# The period is found, and the curve within its bands.

draws = idata.posterior["period"].values.ravel()
print(f"period {draws.mean():.2f} ± {draws.std():.2f} days")
assert abs(draws.mean() - period) < 4.0 * draws.std()
assert np.mean((low < brightness) & (brightness < high)) > 0.75
