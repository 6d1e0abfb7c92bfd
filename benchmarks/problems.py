"""The data sets and the PyMC models that the benchmarks run on."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.spatial.distance import pdist

import pymc_augconj as pac

JITTER = 1e-4

Noise = Literal["student_t", "laplace", "matern", "logit"]


def load(data: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return standardised features (n, d) and the target (n,): 0 or 1, or standardised."""
    if name.startswith("simulated-"):
        return simulate(int(name.removeprefix("simulated-")))
    rows = np.loadtxt(Path(data) / f"{name}.csv", delimiter=",")
    y, X = rows[:, 0], rows[:, 1:]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    is_binary = set(np.unique(y)) == {-1.0, 1.0}
    return X, (y + 1) / 2 if is_binary else (y - y.mean()) / y.std()


def simulate(n: int, d: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Return n points of d features, and a rough regression target, for timing one step."""
    rng = np.random.default_rng(n)
    X = rng.standard_normal((n, d))
    return X, np.sin(X.sum(axis=1)) + rng.standard_t(3, size=n)


def median_distance(X: np.ndarray) -> float:
    """Return the root of the median squared pairwise distance."""
    return float(np.median(pdist(X)))


def build(
    X: np.ndarray, y: np.ndarray, noise: Noise, *, learned: bool, stated: bool = False
) -> pm.Model:
    """Write the model as a user would, kernel fixed or learned.

    ``stated`` gives the likelihood by its φ alone, as for one without a known augmentation.
    """
    d = X.shape[1]
    with pm.Model() as model:
        if learned:
            ls, eta = pm.InverseGamma("ls", 5, 10), pm.HalfNormal("eta", 2)
            cov = eta**2 * pm.gp.cov.ExpQuad(d, ls=ls)
        else:
            cov = pm.gp.cov.ExpQuad(d, ls=median_distance(X))
        f = pm.gp.Latent(cov_func=cov).prior("f", X=X, jitter=JITTER)
        if stated:
            _state(f, y, noise)
            return model
        match noise:
            case "student_t":
                pm.StudentT("y", nu=3, mu=f, sigma=1, observed=y)
            case "laplace":
                pm.Laplace("y", mu=f, b=1, observed=y)
            case "matern":
                pac.MaternNoise("y", nu=1.5, mu=f, rho=1.0, observed=y)
            case "logit":
                pm.Bernoulli("y", logit_p=f, observed=y > 0)
    return model


def _state(f: pt.TensorVariable, y: np.ndarray, noise: Noise) -> None:
    """Write the likelihood by its φ."""
    if noise == "logit":
        signs = np.where(y > 0, 1, -1)
        pac.SuperGaussian(
            "y",
            f,
            log_phi=lambda r: -pt.log(pt.cosh(pt.sqrt(r) / 2)),
            g=signs / 2,
            log_c=-np.log(2),
            observed=signs,
        )
        return
    log_phi = {
        "student_t": lambda r: -2 * pt.log1p(r / 3),
        "laplace": lambda r: -pt.sqrt(r),
        "matern": lambda r: pt.log1p(pt.sqrt(3 * r)) - pt.sqrt(3 * r),
    }[noise]
    pac.SuperGaussian("y", f, log_phi=log_phi, observed=y)
