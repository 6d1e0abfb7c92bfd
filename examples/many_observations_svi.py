"""Stochastic variational inference: thousands of observations through inducing points.

Fair's survey of 6366 married women, of which 5000 are fitted: whether a woman reports an affair, by
eight answers of hers. A logistic Gaussian process of all answers together, its kernel learned, from
minibatches; beside it the same model on all the data at once (sparse CAVI), whose bound is the
highest there is for these inducing points, and a logistic regression on held-out answers.

Data: statsmodels' fair. Run ``python examples/many_observations_svi.py``; under half a minute.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
from statsmodels.api import Logit, add_constant
from statsmodels.datasets import fair

import pymc_augconj as pac

TRAIN, INDUCING, SEED = 5000, 60, 1


def main(max_iter: int = 3000) -> None:
    """Fit, print, check."""
    table = fair.load_pandas().data
    y = (table.pop("affairs") > 0).to_numpy(int)
    X = table.to_numpy(float)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    order = np.random.default_rng(SEED).permutation(len(y))
    train, test = order[:TRAIN], order[TRAIN:]

    with pm.Model():
        ls, eta = pm.InverseGamma("ls", 5, 15), pm.HalfNormal("eta", 2)
        b0 = pm.Normal("b0", 0, 2)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(X.shape[1], ls=ls))
        f = gp.prior("f", X=X[train])
        pm.Bernoulli("y", logit_p=b0 + f, observed=y[train])
        svi = pac.fit(
            "svi",
            gp=gp,
            inducing=INDUCING,
            batch_size=250,
            max_iter=max_iter,
            random_seed=SEED,
            progressbar=False,
        )
        cavi = pac.fit(
            "cavi",
            gp=gp,
            inducing=svi.inducing["f"],
            hyper="fixed",
            start=svi.theta,
            progressbar=False,
        )
        y_new = pac.predict(svi, gp, X[test], "y", ynew=y[test]).predictions
    theta = ", ".join(f"{key} {float(value):.2f}" for key, value in svi.theta.items())
    print(
        f"svi: bound {svi.log_evidence:.1f} after {max_iter} minibatches of 250 in "
        f"{svi.timings['total']:.1f} s; {theta}"
    )
    print(
        f"cavi, all data, same hyperparameters: bound {cavi.log_evidence:.1f} in "
        f"{cavi.timings['total']:.1f} s"
    )
    # The bound of minibatches is that of all the data, but for what their noise leaves.
    assert (
        cavi.log_evidence - 0.005 * abs(cavi.log_evidence)
        < svi.log_evidence
        <= cavi.log_evidence + 1e-6
    )
    difference = np.abs(svi.mean["f"] - cavi.mean["f"]).max() / cavi.std["f"].mean()
    print(f"largest difference of their means of f: {float(difference):.2f} standard deviations")
    assert difference < 1.0

    log_density = y_new["y_log_density"].values
    linear = Logit(y[train], add_constant(X[train])).fit(disp=False)
    p = linear.predict(add_constant(X[test]))
    difference = log_density - np.log(np.where(y[test] == 1, p, 1.0 - p))
    error = difference.std() / np.sqrt(difference.size)
    print(
        f"held out: log density {log_density.mean():.4f}, that of a logistic regression lower by "
        f"{difference.mean():.4f} (standard error {error:.4f})"
    )
    assert difference.mean() > -2.0 * error


if __name__ == "__main__":
    main()
