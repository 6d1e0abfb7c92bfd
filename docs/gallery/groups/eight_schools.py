"""
Eight schools
=============

The effect of coaching in eight schools, each with its standard error (Rubin, 1981). The schools
share a mean and a spread. Gradient-based samplers need a non-centred form, or they get stuck where
the spread is small. This sampler draws the spread with all effects integrated out.
"""

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_augconj as pac

effect = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
error = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])

# %%
with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
    mu = pm.Normal("mu", 0, 5)
    tau = pm.HalfCauchy("tau", 5)
    theta = pm.Normal("theta", mu, tau, dims="school")
    pm.Normal("effect", theta, error, observed=effect)
    idata = pac.sample(1000, chains=2, random_seed=1, progressbar=False)
print(az.summary(idata, var_names=["mu", "tau"]))

# %%
theta = az.extract(idata)["theta"].values
fig, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
ax.violinplot(theta.T, orientation="horizontal")
ax.plot(effect, range(1, 9), "k|", ms=10, label="as measured")
ax.set_yticks(range(1, 9), list("ABCDEFGH"))
ax.set(xlabel="effect", title="Effects of coaching in eight schools, shrunk to each other")
ax.legend()

# %%
# For one τ everything has a closed form, so the posterior mean of τ is a one-dimensional integral.

t = np.linspace(1e-3, 400, 400_000)
var = error**2 + t[:, None] ** 2
precision = 1 / 25 + (1 / var).sum(axis=1)
linear = (effect / var).sum(axis=1)
log_p = 0.5 * (
    linear**2 / precision - np.log(precision) - (effect**2 / var + np.log(var)).sum(axis=1)
)
p = np.exp(log_p - log_p.max()) / (1 + (t / 5) ** 2)
exact = (p * t).sum() / p.sum()
drawn = float(idata.posterior["tau"].mean())
mcse = float(az.mcse(idata, var_names=["tau"])["tau"])
print(f"mean of tau: {drawn:.3f} from draws, {exact:.3f} by quadrature")
assert abs(drawn - exact) < 5 * mcse
