"""The maximiser of the evidence over the scales, coefficients flat: restricted maximum likelihood.

Patterson, H. D. & Thompson, R. (1971). Recovery of inter-block information when block sizes are
unequal. Biometrika 58.
"""

from __future__ import annotations

import numpy as np
import pymc as pm

import pymc_augconj as pac

RNG = np.random.default_rng(0)


def fitted(model):
    return pac.fit("cavi", model=model, hyper="ml", tol=1e-12, progressbar=False)


def restricted_log_likelihood(y, X, V):
    """Return the log density of the contrasts of y, times the volume of X."""
    solved, n = np.linalg.solve(V, np.column_stack([X, y])), y.size
    information, right = X.T @ solved[:, :-1], X.T @ solved[:, -1]
    square = y @ solved[:, -1] - right @ np.linalg.solve(information, right)
    log_det = np.linalg.slogdet(V)[1] + np.linalg.slogdet(information)[1]
    return -0.5 * (log_det + square + (n - X.shape[1]) * np.log(2.0 * np.pi))


def test_a_balanced_design_has_the_estimates_of_its_analysis_of_variance():
    groups, size = 8, 5
    index = np.repeat(np.arange(groups), size)
    y = 3.0 + 1.5 * RNG.normal(size=groups)[index] + RNG.normal(size=index.size)
    with pm.Model() as model:
        a = pm.Normal("a", 0, pm.HalfFlat("sd", initval=1.0), shape=groups)
        eta = pm.Flat("b") + a[index]
        pm.Normal("y", eta, pm.HalfFlat("sigma", initval=1.0), observed=y)
    table = y.reshape(groups, size)
    within = table.var(axis=1, ddof=1).mean()
    between = table.mean(axis=1).var(ddof=1) - within / size
    theta = fitted(model).theta
    # Of an optimum whose objective is found to 1e-12.
    np.testing.assert_allclose(theta["sigma"] ** 2, within, rtol=1e-5)
    np.testing.assert_allclose(theta["sd"] ** 2, between, rtol=1e-5)


def test_crossed_effects_with_correlated_slopes():
    n, x = 120, np.tile(np.arange(6.0), 20)
    g, h = np.repeat(np.arange(12), 10), RNG.integers(7, size=n)
    u = RNG.normal(size=(12, 2)) @ np.array([[1.0, -0.3], [0.0, 0.8]])
    y = 2.0 + 0.5 * x + u[g, 0] + u[g, 1] * x + 0.8 * RNG.normal(size=7)[h] + RNG.normal(size=n)
    with pm.Model() as model:
        b, rho = pm.Flat("b", shape=2), pm.Uniform("rho", -1, 1)
        names = ("sd 0", "sd 1", "sd h", "sigma")
        s = [pm.HalfFlat(name, initval=0.8) for name in names]
        z = [pm.Normal(f"z{k}", 0, 1, shape=12) for k in range(2)]
        slope = s[1] * (rho * z[0] + pm.math.sqrt(1 - rho**2) * z[1])
        c = pm.Normal("c", 0, s[2], shape=7)
        eta = b[0] + b[1] * x + s[0] * z[0][g] + slope[g] * x + c[h]
        pm.Normal("y", eta, s[3], observed=y)
    X, Z, H = np.column_stack([np.ones(n), x]), np.eye(12)[g], np.eye(7)[h]
    designs = np.hstack([Z, Z * x[:, None]])

    def dense(theta):
        s0, s1, sh, sigma, r = theta
        cov = np.kron([[s0**2, r * s0 * s1], [r * s0 * s1, s1**2]], np.eye(12))
        V = designs @ cov @ designs.T + sh**2 * H @ H.T + sigma**2 * np.eye(n)
        return restricted_log_likelihood(y, X, V)

    fit = fitted(model)
    best = np.array([float(fit.theta[name]) for name in (*names, "rho")])
    top = dense(best)
    np.testing.assert_allclose(fit.log_evidence, top, rtol=1e-9)
    # A maximum: a step of 1e-3 loses what its curvature says, and gains nothing to first order.
    for step in 1e-3 * np.eye(5):
        up, down = dense(best + step), dense(best - step)
        assert up < top
        assert down < top
        assert abs(up - down) < 0.05 * (2.0 * top - up - down)
