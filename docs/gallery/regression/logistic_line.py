"""
Logistic regression
===================

Did teaching economics by a new method help? Thirty-two students, their grade average, the score of
an entrance test, and whether they were taught the new way (Spector and Mazzeo, 1980).
"""

import matplotlib.pyplot as plt
import pymc as pm
from statsmodels.datasets import spector

import pymc_augconj as pac

data = spector.load_pandas().data
X = data[["GPA", "TUCE", "PSI"]].to_numpy()
X = (X - X.mean(axis=0)) / X.std(axis=0)
improved = data["GRADE"].to_numpy(int)

# %%
# The coefficients are one Gaussian latent that enters through the design matrix.

with pm.Model(coords={"feature": ["grade average", "test score", "new method"]}) as model:
    intercept = pm.Normal("intercept", 0, 2)
    beta = pm.Normal("beta", 0, 1.5, dims="feature")
    pm.Bernoulli("improved", logit_p=intercept + X @ beta, observed=improved)
    print(pac.recognize())
    idata = pac.sample(1000, chains=2, random_seed=1, progressbar=False)

# %%
beta = idata.posterior["beta"]
fig, ax = plt.subplots(figsize=(6, 3), layout="constrained")
ax.violinplot(beta.stack(sample=("chain", "draw")).values.T, orientation="horizontal")
ax.axvline(0, color="k", lw=0.5)
ax.set_yticks([1, 2, 3], beta["feature"].values)
ax.set(xlabel="log odds per standard deviation", title="Posterior of three coefficients")

# %%
# The new method helped with high probability. The data say little about the test score.

positive = (beta > 0).mean(("chain", "draw"))
print(positive.to_series().round(3))
assert positive.sel(feature="new method") > 0.95
assert positive.sel(feature="test score") < 0.95
