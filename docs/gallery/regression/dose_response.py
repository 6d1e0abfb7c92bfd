"""
Dose and response
=================

Five animals got each of four doses, and some died. The dose at which half of the animals die is a
function of the two coefficients, so that every draw gives one such dose.
"""

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from scipy.special import expit

import pymc_augconj as pac

log_dose = np.array([-0.86, -0.30, -0.05, 0.73])
deaths = np.array([0, 1, 3, 5])

# %%
with pm.Model() as model:
    a, b = pm.Normal("a", 0, 2.5), pm.Normal("b", 10, 10)
    pm.Binomial("deaths", n=5, logit_p=a + b * log_dose, observed=deaths)
    pm.Deterministic("ld50", -a / b)
    idata = pac.sample(2000, chains=2, random_seed=1, progressbar=False)

# %%
posterior = idata.posterior
grid = np.linspace(-1.2, 1, 100)
curves = expit(posterior["a"].values[..., None] + posterior["b"].values[..., None] * grid)
low, mid, high = np.quantile(curves, [0.05, 0.5, 0.95], axis=(0, 1))
fig, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
ax.plot(log_dose, deaths / 5, "ko")
ax.fill_between(grid, low, high, alpha=0.4)
ax.plot(grid, mid)
ax.set(xlabel="log dose", ylabel="share that dies", title="Dose and response, 90 % band")

# %%
# With two parameters, quadrature on a grid gives the exact posterior means.

A, B = np.meshgrid(np.linspace(-12, 12, 481), np.linspace(-30, 60, 901), indexing="ij")
eta = A[..., None] + B[..., None] * log_dose
log_p = (deaths * eta - 5 * np.logaddexp(0, eta)).sum(axis=-1)
log_p -= 0.5 * (A / 2.5) ** 2 + 0.5 * ((B - 10) / 10) ** 2
weight = np.exp(log_p - log_p.max())
weight /= weight.sum()

mcse = az.mcse(idata, var_names=["a", "b"])
for name, grid in {"a": A, "b": B}.items():
    exact, drawn = (weight * grid).sum(), float(posterior[name].mean())
    print(f"{name}: {drawn:.3f} from draws, {exact:.3f} by quadrature")
    assert abs(drawn - exact) < 5 * float(mcse[name])
