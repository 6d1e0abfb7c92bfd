"""
Trend and season
================

Carbon dioxide over Mauna Loa by month, as the sum of two Gaussian processes: a smooth trend and a
yearly pattern that changes slowly. The noise is Laplace, so that single bad months have little
effect.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from statsmodels.datasets import co2

import pymc_augconj as pac

monthly = co2.load_pandas().data["co2"].resample("MS").mean().dropna().iloc[-96:]
t = (monthly.index.year + (monthly.index.month - 1) / 12).to_numpy(float)
X = (t - t[0])[:, None]
level, slope = np.polynomial.polynomial.polyfit(X[:, 0], monthly.to_numpy(), 1)
y = monthly.to_numpy() - level - slope * X[:, 0]

# %%
# Each process has a separate ``prior``, so that the posterior separates trend and season.

with pm.Model() as model:
    trend_gp = pm.gp.Latent(cov_func=1.5**2 * pm.gp.cov.ExpQuad(1, ls=2.5))
    season_gp = pm.gp.Latent(
        cov_func=3.0**2 * pm.gp.cov.Periodic(1, period=1, ls=0.7) * pm.gp.cov.ExpQuad(1, ls=10)
    )
    trend = trend_gp.prior("trend", X=X)
    season = season_gp.prior("season", X=X)
    b = pm.HalfNormal("b", 0.5)
    pm.Laplace("y", mu=trend + season, b=b, observed=y)
    idata = pac.sample(500, chains=2, random_seed=1, progressbar=False)

# %%
fig, axes = plt.subplots(2, 1, figsize=(7, 4.5), sharex=True, layout="constrained")
for ax, name in zip(axes, ("trend", "season"), strict=True):
    low, mid, high = idata.posterior[name].quantile([0.05, 0.5, 0.95], ("chain", "draw")).values
    ax.fill_between(t, low, high, alpha=0.4)
    ax.plot(t, mid)
    ax.set(ylabel="ppm", title=f"Carbon dioxide: {name}")

# %%
# May is the highest month of the season, October or September the lowest, in every year.

season = idata.posterior["season"].mean(("chain", "draw")).values
by_month = [season[monthly.index.month == month].mean() for month in range(1, 13)]
print(np.round(by_month, 1))
assert np.argmax(by_month) + 1 == 5
assert np.argmin(by_month) + 1 in (9, 10)
residual = y - season - idata.posterior["trend"].mean(("chain", "draw")).values
assert np.abs(residual).mean() < 0.5
