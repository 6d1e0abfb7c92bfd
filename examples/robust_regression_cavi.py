"""Robust regression by coordinate ascent: US inflation, with the quarter of 2008 left in.

A Gaussian process over time under Student-t noise, kernel, noise scale and degrees of freedom
learned; beside it the same model under normal noise. CAVI is exact for the latter.

Data: statsmodels' macrodata, 203 quarters; every fifth is held out. Run
``python examples/robust_regression_cavi.py``; seconds.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
from statsmodels.datasets import macrodata

import pymc_augconj as pac

EVERY = 5


def fit(years, inflation, new_years, new_inflation, *, robust: bool):
    """Return the fit, and predictions of the process and the observations at all new years."""
    with pm.Model():
        ls, eta = pm.InverseGamma("ls", 3, 10), pm.HalfNormal("eta", 5)
        sigma = pm.HalfNormal("sigma", 3)
        level = pm.Normal("level", 4, 3)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.Matern52(1, ls=ls))
        f = gp.prior("f", X=years)
        if robust:
            nu = pm.Gamma("nu", 2, 0.1)
            pm.StudentT("y", nu=nu, mu=level + f, sigma=sigma, observed=inflation)
        else:
            pm.Normal("y", mu=level + f, sigma=sigma, observed=inflation)
        vi = pac.fit("cavi", progressbar=False)
        y = pac.predict(vi, gp, new_years, "y", ynew=new_inflation, quantile=[0.05, 0.95])
    assert vi.converged, vi.message
    # The bound at one value of the hyperparameters never decreases.
    for _, climb in vi.history.groupby("theta"):
        assert (np.diff(climb["bound"]) > -1e-8 * np.abs(climb["bound"].iloc[0])).all()
    return vi, y.predictions


def main() -> None:
    """Fit both models, print, check."""
    table = macrodata.load_pandas().data
    years = (table["year"] + (table["quarter"] - 1) / 4).to_numpy()[:, None]
    inflation = table["infl"].to_numpy()
    held_out = np.arange(len(years)) % EVERY == EVERY // 2
    outlier = int(np.argmin(inflation))
    print(f"{years[outlier, 0]:.2f}: inflation {inflation[outlier]:.1f} % a year")
    assert not held_out[outlier]

    log_density, at_outlier = {}, {}
    for name, robust in (("Student-t", True), ("normal", False)):
        arguments = years[~held_out], inflation[~held_out], years, inflation
        vi, y = fit(*arguments, robust=robust)
        log_density[name] = float(y["y_log_density"][held_out].mean())
        at_outlier[name] = float(y["y_mean"][outlier])
        inside = (inflation > y["y_quantile"][0]) & (inflation < y["y_quantile"][1])
        covered = float(inside.values[held_out].mean())
        theta = ", ".join(f"{key} {float(value):.2f}" for key, value in vi.theta.items())
        print(
            f"{name:10s} bound {vi.log_evidence:8.2f}, "
            f"held-out log density {log_density[name]:.3f}, "
            f"mean at the outlier {at_outlier[name]:5.2f}, 90 % intervals hold {covered:.0%}; "
            f"{theta}; {vi.timings['total']:.2f} s"
        )
        # Forty held-out quarters: 0.9 give or take three standard errors.
        assert abs(covered - 0.9) < 3.0 * np.sqrt(0.09 / held_out.sum())
    assert log_density["Student-t"] > log_density["normal"]
    # The normal model follows the one quarter, the robust one its neighbours.
    neighbours = float(np.median(inflation[outlier - 4 : outlier + 5]))
    errors = {name: abs(mean - neighbours) for name, mean in at_outlier.items()}
    assert errors["Student-t"] < errors["normal"]


if __name__ == "__main__":
    main()
