"""The data sets and the PyMC models that the benchmarks run on."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pymc as pm
from scipy.spatial.distance import pdist

JITTER = 1e-4

Noise = Literal["student_t", "laplace", "logit"]


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


def build(X: np.ndarray, y: np.ndarray, noise: Noise, *, learned: bool) -> pm.Model:
    """Write the model as a user would, kernel fixed or learned."""
    d = X.shape[1]
    with pm.Model() as model:
        if learned:
            ls, eta = pm.InverseGamma("ls", 5, 10), pm.HalfNormal("eta", 2)
            cov = eta**2 * pm.gp.cov.ExpQuad(d, ls=ls)
        else:
            cov = pm.gp.cov.ExpQuad(d, ls=median_distance(X))
        f = pm.gp.Latent(cov_func=cov).prior("f", X=X, jitter=JITTER)
        match noise:
            case "student_t":
                pm.StudentT("y", nu=3, mu=f, sigma=1, observed=y)
            case "laplace":
                pm.Laplace("y", mu=f, b=1, observed=y)
            case "logit":
                pm.Bernoulli("y", logit_p=f, observed=y > 0)
    return model
