"""A large binary regression problem; NumPy only, so that any environment can draw it.

Eight standard normal inputs; f is a sum of smooth functions of one and of two of them, scaled so
that the best possible test log-likelihood is well above that of a linear model.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

D = 8


class Data(NamedTuple):
    """Training and test data, inducing inputs, and the negative log-likelihood of the truth."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    Z: np.ndarray
    nll_of_truth: float


def truth(X: np.ndarray) -> np.ndarray:
    """Return the log odds, (n,), at inputs (n, 8)."""
    a, b, c, d, e, f, g, h = X.T
    return (
        1.5 * np.sin(1.5 * a)
        + np.tanh(2.0 * b) * c
        + 0.8 * np.cos(2.0 * d)
        + 0.7 * e
        - 0.5 * f**2 / (1.0 + f**2)
        + 0.6 * np.sin(g + h)
    )


def draw(n: int, n_test: int, inducing: int, seed: int = 0) -> Data:
    """Return a problem; inducing inputs are a subset of the training inputs."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n + n_test, D))
    f = truth(X)
    y = (rng.random(n + n_test) < 1.0 / (1.0 + np.exp(-f))).astype(float)
    signs = 2.0 * y[n:] - 1.0
    nll = float(np.mean(np.logaddexp(0.0, -signs * f[n:])))
    Z = X[rng.choice(n, inducing, replace=False)]
    return Data(X[:n], y[:n], X[n:], y[n:], Z, nll)
