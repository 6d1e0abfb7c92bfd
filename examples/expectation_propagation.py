"""Expectation propagation on data with outliers, beside QP, the VGP and exact Gibbs sampling.

Data: statsmodels' stack loss, 21 days of a plant that oxidises ammonia, three features. Half a
century of robust regression agrees on which rows are odd: 1, 3, 4 and 21. Here a Gaussian process
meets Student-t noise, whose log-density is not concave, so that a site of EP may have a negative
precision: the observation makes its neighbourhood less certain.

Run ``python examples/expectation_propagation.py`` where the package and its ``test`` extra are
installed; ten seconds.
"""

from __future__ import annotations

from collections.abc import Mapping

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import statsmodels.api as sm

import pymc_augconj as pac

SEED = 20261121
NU = 3
HYPERPARAMETERS = ("ls", "eta", "sigma")
KNOWN_OUTLIERS = {1, 3, 4, 21}  # counted from 1, as in the literature
DRAWS, CHAINS = 2000, 4

LARGEST_SHIFT = 0.05  # of EP's means, in posterior standard deviations, beside Monte Carlo error
LARGEST_STD_ERROR = 0.1  # of EP's standard deviations, relatively
MONTE_CARLO_ERRORS = 5.0


def load() -> tuple[np.ndarray, np.ndarray]:
    """Return standardised features (21, 3) and standardised loss (21,)."""
    table = sm.datasets.stackloss.load_pandas().data
    values = ((table - table.mean()) / table.std()).to_numpy()
    return values[:, 1:], values[:, 0]


def build(X: np.ndarray, y: np.ndarray, theta: Mapping[str, float] | None = None) -> pm.Model:
    """Write the model, with its hyperparameters random or at given values."""
    with pm.Model() as model:
        if theta is None:
            ls, eta = pm.InverseGamma("ls", 5, 15), pm.HalfNormal("eta", 2)
            sigma = pm.HalfNormal("sigma", 0.5)
        else:
            ls, eta, sigma = (float(theta[name]) for name in HYPERPARAMETERS)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(X.shape[1], ls=ls))
        pm.StudentT("y", nu=NU, mu=gp.prior("f", X=X), sigma=sigma, observed=y)
    return model


def main(draws: int = DRAWS) -> pd.DataFrame:
    """Fit, sample, compare, check; return the comparison."""
    X, y = load()
    learned = pac.fit("ep", model=build(X, y), progressbar=False)
    print({name: round(float(value), 3) for name, value in learned.theta.items()})
    print(learned.message)

    # At one value of the hyperparameters, so that all are about the same posterior.
    model = build(X, y, learned.theta)
    fits = {
        method: pac.fit(method, model=model, progressbar=False) for method in ("ep", "qp", "vgp")
    }
    with model:
        gibbs = pac.sample(
            draws, chains=CHAINS, cores=1, random_seed=SEED, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    table = pac.compare({**fits, "gibbs": gibbs}, reference="gibbs", loo=False)
    print(table[["wall_time", "mean_diff", "sd_diff", "wasserstein"]])

    f = gibbs["posterior"]["f"]
    mean, std = f.mean(("chain", "draw")).values, f.std(("chain", "draw")).values
    summary = pd.DataFrame(
        {
            method: {
                "log p(y)": fit.log_evidence,
                "largest shift of a mean, in std": np.abs(
                    (fit.mean["f"].values - mean) / std
                ).max(),
                "smallest std, relative": (fit.std["f"].values / std).min(),
                "largest std, relative": (fit.std["f"].values / std).max(),
            }
            for method, fit in fits.items()
        }
    )
    print(summary.round(3))
    ep = fits["ep"]
    weakest = np.argsort(ep.lam)[: len(KNOWN_OUTLIERS)] + 1
    print(
        f"sites of least precision: {sorted(weakest.tolist())}; {ep.diagnostics['n_negative']} < 0"
    )

    check(fits, summary, gibbs)
    assert set(weakest.tolist()) == KNOWN_OUTLIERS
    return summary


def check(fits: Mapping[str, pac.Approximation], summary: pd.DataFrame, gibbs) -> None:
    """Assert what theory says of the four, as far as the sampler can tell."""
    effective = az.ess(gibbs, var_names=["f"])["f"].values.min()
    assert effective > 400, effective
    noise = MONTE_CARLO_ERRORS / np.sqrt(effective)
    assert all(fit.converged for fit in fits.values())
    shifts = summary.loc["largest shift of a mean, in std"]
    assert shifts["ep"] < LARGEST_SHIFT + noise
    for row in ("smallest std, relative", "largest std, relative"):
        assert abs(summary.loc[row, "ep"] - 1.0) < LARGEST_STD_ERROR + noise
    # The VGP bounds the evidence from below, and is too certain.
    assert summary.loc["log p(y)", "vgp"] < summary.loc["log p(y)", "ep"]
    assert (
        summary.loc["smallest std, relative", "vgp"] < summary.loc["smallest std, relative", "ep"]
    )
    # QP: the same evidence, and no more variance.
    assert (fits["qp"].std["f"] <= fits["ep"].std["f"] * (1.0 + 1e-6)).all()
    assert fits["ep"].diagnostics["n_negative"] > 0


if __name__ == "__main__":
    main()
