"""Priors with a sparse precision beside normal vectors with the same covariance matrix."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from scipy.sparse import csr_array
from scipy.special import gamma, kv
from scipy.stats import chi2, multivariate_normal

import pymc_augconj as pac
from pymc_augconj.python_mode import python_mode

EDGES = np.array([[0, 1], [1, 2], [2, 3], [3, 4], [4, 0], [1, 4]])
N = 5
W = np.zeros((N, N))
W[EDGES[:, 0], EDGES[:, 1]] = 1.0
W += W.T
B = np.diag(W.sum(axis=0)) - W
X = np.random.default_rng(0).uniform(size=(N, 2))
COV = 1.7 * pm.gp.cov.Matern32(2, ls=0.6)
SCALE = np.exp(np.log(np.diag(np.linalg.pinv(B))).mean())
CASES = {
    "CAR": (
        lambda **k: pac.CAR.dist(W=csr_array(W), alpha=0.7, tau=2.0, mu=0.3, **k),
        lambda: np.linalg.inv(2.0 * (B + 0.3 * W)),
    ),
    "Leroux": (
        lambda **k: pac.Leroux.dist(W=EDGES, rho=0.6, sigma=0.5, mu=0.3, **k),
        lambda: 0.25 * np.linalg.inv(0.6 * B + 0.4 * np.eye(N)),
    ),
    "ICAR": (
        lambda **k: 0.3 + pac.ICAR.dist(W=W, sigma=0.5, zero_sum_stdev=0.1, scaled=True, **k),
        lambda: np.linalg.inv(4.0 * SCALE * B + (0.1 * N) ** -2.0),
    ),
    "Vecchia": (
        lambda **k: pac.Vecchia.dist(X=X, cov_func=COV, mu=0.3, **k),
        lambda: COV(X).eval() + 1e-6 * np.eye(N),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_density_and_draws(name):
    make, cov = CASES[name]
    rv, cov, value = make(), cov(), np.linspace(-1.0, 1.0, N)
    expected = multivariate_normal(np.full(N, 0.3), cov)
    found = pm.logp(rv, value).eval(mode=python_mode())
    assert found == pytest.approx(expected.logpdf(value), abs=1e-8)
    draws = pm.draw(make(size=20_000), random_seed=1, mode=python_mode()) - 0.3
    white = np.linalg.solve(np.linalg.cholesky(cov), draws.T)

    def distance(white):
        """Return Σ zᵢzⱼ (i ≤ j) and Σ zᵢ as one sum of squares of nearly normal numbers."""
        n = white.shape[1]
        second = (white @ white.T / n - np.eye(N)) * np.sqrt(n / (1.0 + np.eye(N)))
        return (np.tril(second) ** 2).sum() + n * (white.mean(axis=1) ** 2).sum()

    limit = chi2(N * (N + 1) // 2 + N).ppf(1.0 - 1e-6)
    assert distance(white) < limit < distance(1.05 * white)


def matern(r, nu, lengthscale):
    x = np.sqrt(2.0 * nu) * np.maximum(r, 1e-9) / lengthscale
    return 2.0 ** (1.0 - nu) / gamma(nu) * x**nu * kv(nu, x)


def covariance_of(rv, n):
    block, entries = rv.owner.op.block, rv.owner.inputs[-1].eval(mode=python_mode())
    Q = np.zeros((block.size, block.size))
    Q[tuple(block.entries)] = entries
    return np.linalg.inv(Q)[:n, :n]


@pytest.mark.parametrize(("nu", "share"), [(1, 0.55), (2, 0.3)])
def test_matern_field_on_finer_lattices(nu, share):
    """The error falls like h², for ν = 1 like h² log(2/h): the κ⁻¹ of this lengthscale is 1.4."""
    errors = []
    for h in (1.0, 0.5):
        k = int(3.0 / h) + 1
        rv = pac.MaternField.dist(2.0, 1.3, nu, grid=(k, k), spacing=h, padding=5.0)
        x = h * np.argwhere(np.ones((k, k)))
        r = np.sqrt(((x[:, None] - x) ** 2).sum(axis=-1))
        errors.append(np.abs(covariance_of(rv, k * k) / 1.69 - matern(r, nu, 2.0)).max())
    assert errors[1] < share * errors[0] < share * 0.2


def test_matern_field_on_points():
    x = np.random.default_rng(0).uniform(0.0, 4.0, (25, 2))
    r = np.sqrt(((x[:, None] - x) ** 2).sum(axis=-1))
    errors = {}
    for spacing, padding in ((1.0, 4.0), (0.4, 4.0), (0.4, 0.0)):
        rv = pac.MaternField.dist(2.0, 1.0, 2, mesh=x, spacing=spacing, padding=padding)
        errors[spacing, padding] = np.abs(covariance_of(rv, 25) - matern(r, 2, 2.0)).max()
    assert errors[0.4, 4.0] < 0.5 * errors[1.0, 4.0]
    # The border, which padding keeps away, has twice the variance.
    assert errors[0.4, 0.0] > 0.8


def test_values_at_new_inputs():
    rng = np.random.default_rng(4)
    old, new, values = X, rng.uniform(size=(3, 2)), rng.standard_normal(N)
    with pm.Model():
        f = pac.Vecchia("f", X=old, cov_func=COV, neighbours=N, mu=0.4)
        g = pac.Vecchia.conditional("g", new, f, old, COV, neighbours=N, mu=0.4)
    mean, std = g.owner.op.dist_params(g.owner)
    mean, std = mean.eval({f: values}), std.eval()
    K = COV(np.concatenate([old, new])).eval() + 1e-6 * np.eye(N + 3)
    weights = np.linalg.solve(K[:N, :N], K[:N, N:])
    np.testing.assert_allclose(mean, 0.4 + (values - 0.4) @ weights, atol=1e-10)
    cov = K[N:, N:] - weights.T @ K[:N, N:]
    np.testing.assert_allclose(std**2, np.diag(cov), atol=1e-10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pac.CAR.dist(W=[[0, 1], [1, 0], [0, 2]], alpha=0.5), "more than once"),
        (lambda: pac.CAR.dist(W=np.pad(W, (0, 1)), alpha=0.5), "area 5"),
        (lambda: pac.Leroux.dist(W=np.triu(W), rho=0.5), "not symmetric"),
        (lambda: pac.Leroux.dist(W=-W, rho=0.5), "negative"),
        (lambda: pac.ICAR.dist(W=np.array([[0, 1], [2, 3], [3, 4]])), "2 parts"),
        (lambda: pac.Vecchia.dist(X=X[:, 0], cov_func=COV), "shape"),
        (lambda: pac.Vecchia.dist(X=X, cov_func=COV, neighbours=0), "at least 1"),
        (lambda: pac.MaternField.dist(1.0, 1.0, 1.5, grid=(3, 3)), "expected nu"),
        (lambda: pac.MaternField.dist(1.0, 1.0, 1), "either grid or mesh"),
        (lambda: pac.MaternField.dist(1.0, 1.0, 1, grid=(3, 1)), "at least 2"),
        (lambda: pac.MaternField.dist(1.0, 1.0, 1, mesh=X[[0, 1, 2, 0]]), "distinct"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(pac.DataError, match=message):
        make()
