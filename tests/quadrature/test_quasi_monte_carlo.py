"""Fixed points: exact for cubic polynomials, with derivatives of their own, and a stated error."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from pymc_augconj.quadrature.expectation import (
    fixed_points,
    quasi_monte_carlo,
    quasi_monte_carlo_apart,
    quasi_monte_carlo_by_values,
)


def moments(P: int, size: int, scale: float, seed: int):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(P, P, size)) / np.sqrt(P)
    cov = 0.5 * (np.einsum("pkn,qkn->pqn", root, root) + np.eye(P)[:, :, None])
    return 1.5 * rng.normal(size=(P, size)), scale**2 * cov


def log_sum(eta, which):
    return logsumexp(eta, axis=0), softmax(eta, axis=0)


def test_cubic_polynomials_are_exact():
    mean, cov = moments(4, 3, 1.3, 0)
    a, b = np.array([0.3, -1.0, 0.7, 0.2]), np.array([1.0, 0.5, -0.4, 2.0])

    def cubic(eta, which):
        u, w = np.tensordot(a, eta, 1), np.tensordot(b, eta, 1)
        gradient = np.multiply.outer(a, 2.0 * u * w) + np.multiply.outer(b, u**2)
        return u**2 * w, gradient

    value, d_mean, d_cov = quasi_monte_carlo(cubic, mean, cov)
    u, w = a @ mean, b @ mean
    aa, ab = np.einsum("p,pqn,q->n", a, cov, a), np.einsum("p,pqn,q->n", a, cov, b)
    np.testing.assert_allclose(value, u**2 * w + w * aa + 2.0 * u * ab, rtol=1e-9)
    expected = np.multiply.outer(a, 2.0 * u * w + 2.0 * ab) + np.multiply.outer(b, u**2 + aa)
    np.testing.assert_allclose(d_mean, expected, rtol=1e-9)
    cross = np.multiply.outer(a, b)
    expected = np.multiply.outer(np.outer(a, a), w) + np.multiply.outer(cross + cross.T, u)
    np.testing.assert_allclose(d_cov, expected, rtol=1e-8, atol=1e-9)


def test_quadratic_functions_need_no_gradient():
    mean, cov = moments(8, 3, 1.3, 0)
    A = np.random.default_rng(1).normal(size=(8, 8))
    A, b = A + A.T, A[0]

    def quadratic(eta, which):
        return np.einsum("pnk,pq,qnk->nk", eta, A, eta) + np.tensordot(b, eta, 1)

    value, d_mean, d_cov = quasi_monte_carlo_by_values(quadratic, mean, cov)
    expected = np.einsum("pn,pq,qn->n", mean, A, mean) + b @ mean
    np.testing.assert_allclose(value, expected + np.einsum("pq,pqn->n", A, cov), rtol=1e-8)
    np.testing.assert_allclose(d_mean, 2.0 * A @ mean + b[:, None], rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(d_cov, np.repeat(A[..., None], 3, axis=2), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("scale", "tolerance"), [(0.3, 2e-3), (1.0, 3e-2)])
@pytest.mark.parametrize("P", [4, 8])
def test_stated_error_without_a_gradient(P, scale, tolerance):
    """In units of standard deviations, of the log density of a mixture."""
    mean, cov = moments(P, 4, scale, 3)

    def with_gradient(eta, which):
        return logsumexp(-0.5 * eta**2, axis=0), -eta * softmax(-0.5 * eta**2, axis=0)

    value, d_mean, d_cov = quasi_monte_carlo_by_values(
        lambda *args: with_gradient(*args)[0], mean, cov
    )
    expected, by_mean, by_cov = quasi_monte_carlo(with_gradient, mean, cov)
    std = np.sqrt(np.einsum("ppn->pn", cov))
    np.testing.assert_allclose(value, expected, atol=tolerance)
    np.testing.assert_allclose(d_mean * std, by_mean * std, atol=tolerance)
    assert np.abs(by_mean * std).max() > 2.0 * tolerance
    both = 2.0 * std[:, None] * std
    np.testing.assert_allclose(d_cov * both, by_cov * both, atol=tolerance)


@pytest.mark.parametrize("scale", [1.0, 1e-5])
def test_derivatives_are_those_of_the_rule(scale):
    mean, cov = moments(5, 3, scale, 1)
    _, d_mean, d_cov = quasi_monte_carlo(log_sum, mean, cov)
    rng = np.random.default_rng(2)
    by_mean, by_cov = rng.normal(size=mean.shape), rng.normal(size=cov.shape)
    by_cov = by_cov + np.swapaxes(by_cov, 0, 1)
    step = 1e-5

    ends = [
        quasi_monte_carlo(log_sum, mean + t * by_mean, cov + t * scale**2 * by_cov)[0]
        for t in (step, -step)
    ]
    expected = np.sum(by_mean * d_mean, axis=0)
    expected += scale**2 * np.sum(by_cov * d_cov, axis=(0, 1))
    np.testing.assert_allclose((ends[0] - ends[1]) / (2.0 * step), expected, rtol=1e-6, atol=1e-9)


def test_independent_predictors_have_the_same_rule():
    mean, cov = moments(5, 50, 1.5, 6)
    var = np.einsum("ppn->pn", cov)
    found = quasi_monte_carlo_apart(log_sum, mean, var)
    whole = quasi_monte_carlo(log_sum, mean, np.einsum("pq,pn->pqn", np.eye(5), var))
    np.testing.assert_allclose(found[0], whole[0], rtol=1e-10)
    np.testing.assert_allclose(found[1], whole[1], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found[2], np.einsum("ppn->pn", whole[2]), rtol=1e-8, atol=1e-12)


def test_without_a_variance_it_is_the_function():
    mean = moments(4, 3, 1.0, 3)[0]
    value, d_mean, d_cov = quasi_monte_carlo(log_sum, mean, np.zeros((4, 4, 3)))
    expected, gradient = log_sum(mean, None)
    np.testing.assert_allclose(value, expected, atol=1e-11)
    np.testing.assert_allclose(d_mean, gradient, atol=1e-11)
    hessian = np.einsum("pq,pn->pqn", np.eye(4), gradient) - gradient[:, None] * gradient
    np.testing.assert_allclose(d_cov, 0.5 * hessian, atol=1e-5)


@pytest.mark.parametrize("P", [4, 10, 20])
@pytest.mark.parametrize(("scale", "error"), [(1.0, 1e-3), (4.0, 2e-2)])
def test_error_is_what_is_stated(P, scale, error):
    mean, cov = moments(P, 12, scale, 4)
    found = quasi_monte_carlo(log_sum, mean, cov)[0]
    # Random points, with the fixed rule's integrand less a quadratic one that is known as control.
    z = np.random.default_rng(5).normal(size=(P, 2**15))
    root = np.linalg.cholesky(np.moveaxis(cov, -1, 0))
    exact, std = [], []
    for i in range(mean.shape[1]):
        eta = mean[:, i, None] + root[i] @ np.hstack([z, -z])
        values = logsumexp(eta, axis=0).reshape(2, -1).mean(axis=0)
        squares = z**2
        slopes = np.linalg.lstsq(squares.T - 1.0, values - values.mean(), rcond=None)[0]
        rest = values - slopes @ (squares - 1.0)
        exact.append(rest.mean())
        std.append(rest.std() / np.sqrt(rest.size))
    spread = np.sqrt(np.mean((found - exact) ** 2))
    assert spread < 1.5 * error + np.sqrt(np.mean(np.square(std)))
    # A plain average over as many random points is worse: the control.
    few = [
        logsumexp(mean[:, i, None] + root[i] @ z[:, :1024], axis=0).mean()
        for i in range(mean.shape[1])
    ]
    assert np.sqrt(np.mean((np.array(few) - exact) ** 2)) > 1.5 * error


def test_points_are_standardised():
    z = fixed_points(7)
    assert z.shape == (7, 1024)
    np.testing.assert_allclose(z.mean(axis=1), 0.0, atol=1e-13)
    np.testing.assert_allclose(z @ z.T / 1024, np.eye(7), atol=1e-12)
