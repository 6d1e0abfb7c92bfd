"""Conditioning on sites whose precisions have either sign, against dense formulas."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.gaussian.observations import ConditionedPredictors


@pytest.fixture(params=["positive", "some negative", "with zeros"])
def signed(request, ordinary):
    lam = ordinary.lam.copy()
    if request.param == "some negative":
        lam[[1, 5]] = -0.1
    elif request.param == "with zeros":
        lam[::2], lam[3] = 0.0, -0.2
    return ordinary.K, ordinary.h, lam


def dense(K, lam):
    return np.linalg.inv(np.linalg.inv(K) + np.diag(lam))


def test_moments_are_the_dense_ones(signed):
    K, h, lam = signed
    posterior, cov = ConditionedPredictors(K, h, lam), dense(K, lam)
    np.testing.assert_allclose(posterior.mean, cov @ h, rtol=1e-9)
    np.testing.assert_allclose(posterior.alpha, h - lam * posterior.mean, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(posterior.var(), np.diagonal(cov), rtol=1e-9)


def test_normalizer_is_the_dense_one(signed):
    K, h, lam = signed
    posterior = ConditionedPredictors(K, h, lam)
    log_det = np.linalg.slogdet(np.eye(h.size) + np.diag(lam) @ K)[1]
    assert posterior.log_det == pytest.approx(log_det, rel=1e-10)
    expected = 0.5 * (h @ dense(K, lam) @ h - log_det)
    assert posterior.log_normalizer == pytest.approx(expected, rel=1e-10)


def test_response_gives_the_covariance(signed):
    K, h, lam = signed
    posterior, cov = ConditionedPredictors(K, h, lam), dense(K, lam)
    np.testing.assert_allclose(K - K @ posterior.response() @ K, cov, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(K - posterior.explained(K), cov, rtol=1e-8, atol=1e-10)
    explained = np.diagonal(K) - np.diagonal(cov)
    np.testing.assert_allclose(posterior.explained_var(K), explained, rtol=1e-8)


def test_precisions_that_outweigh_the_prior_are_refused(ordinary):
    lam = ordinary.lam.copy()
    lam[2] = -50.0
    with pytest.raises(NotPositiveDefiniteError, match="outweigh the prior"):
        ConditionedPredictors(ordinary.K, ordinary.h, lam)


def test_sites_that_are_not_finite_are_refused(ordinary):
    with pytest.raises(NotPositiveDefiniteError, match="finite sites"):
        ConditionedPredictors(ordinary.K, ordinary.h, np.full_like(ordinary.lam, np.nan))
