"""Counts by the variational Gaussian of Opper & Archambeau: sunspots, every fifth year held out.

A Gaussian process over time as the log mean of negative binomial counts; kernel, level and
overdispersion are learned. VGP's bound is compared with CAVI's at the same hyperparameters, and its
predictions with counts that no fit has seen.

Data: statsmodels' sunspots, 309 years; the last year of every five is held out. Run
``python examples/counts_vgp.py``; seconds.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
from scipy.stats import nbinom
from statsmodels.datasets import sunspots

import pymc_augconj as pac

EVERY = 5
START = {"ls": 3.0, "eta": 1.0, "alpha": 5.0}


def main() -> None:
    """Fit, print, check."""
    table = sunspots.load_pandas().data
    years, counts = table["YEAR"].to_numpy()[:, None], table["SUNACTIVITY"].round().to_numpy(int)
    held_out = np.arange(len(years)) % EVERY == EVERY - 1
    with pm.Model() as model:
        ls, eta = pm.InverseGamma("ls", 3, 8), pm.HalfNormal("eta", 2)
        alpha = pm.HalfNormal("alpha", 20)
        level = pm.Normal("level", 3, 2)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.Matern52(1, ls=ls))
        f = gp.prior("f", X=years[~held_out])
        pm.NegativeBinomial("y", mu=pm.math.exp(level + f), alpha=alpha, observed=counts[~held_out])
    vgp = pac.fit("vgp", model=model, start=START, tol=1e-8, progressbar=False)
    assert vgp.converged, vgp.message
    cavi = pac.fit("cavi", model=model, hyper="fixed", start=vgp.theta, progressbar=False)
    theta = ", ".join(f"{key} {float(value):.2f}" for key, value in vgp.theta.items())
    print(f"VGP: bound {vgp.log_evidence:.2f} in {vgp.timings['total']:.2f} s; {theta}")
    print(f"CAVI at the same hyperparameters: bound {cavi.log_evidence:.2f}")
    assert cavi.log_evidence < vgp.log_evidence
    for _, climb in vgp.history.groupby("theta"):
        assert (np.diff(climb["bound"]) > -1e-8 * np.abs(climb["bound"].iloc[0])).all()

    new = counts[held_out].astype(float)
    y = pac.predict(
        vgp, gp, years[held_out], "y", model=model, ynew=new, quantile=[0.05, 0.95]
    ).predictions
    covered = float(((new >= y["y_quantile"][0]) & (new <= y["y_quantile"][1])).mean())
    log_density = float(y["y_log_density"].mean())
    # What is to be beaten: one negative binomial for all years, its moments those of the data.
    mean, var = counts[~held_out].mean(), counts[~held_out].var()
    constant = nbinom(mean**2 / (var - mean), mean / var).logpmf(new).mean()
    print(
        f"held out: log density {log_density:.3f} against {constant:.3f} of a constant rate; "
        f"90 % intervals hold {covered:.0%} of {len(new)}"
    )
    assert log_density > constant
    # Intervals of counts hold at least their level: 0.9 less three standard errors.
    assert covered > 0.9 - 3.0 * np.sqrt(0.09 / len(new))
    correlation = np.corrcoef(np.log1p(new), np.log1p(y["y_mean"]))[0, 1]
    assert correlation > 0.8, correlation


if __name__ == "__main__":
    main()
