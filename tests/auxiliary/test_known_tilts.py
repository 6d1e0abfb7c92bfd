"""Closed forms are found from values of φ alone, and are those of φ."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_augconj.auxiliary.laplace_transform.distribution import (
    GammaTilts,
    InverseGaussianTilts,
    PolyaGammaTilts,
    find_known,
)

LAWS = [
    GammaTilts(2.0, 3.0),
    GammaTilts(0.8, 1e-4),
    GammaTilts(15.5, 30.0),
    InverseGaussianTilts(0.5, 0.4),
    InverseGaussianTilts(1.5, 2e3),
    InverseGaussianTilts(2.5, 0.7),
    PolyaGammaTilts(1.0, 1.0),
    PolyaGammaTilts(2.0, 0.3),
]
R = np.array([0.0, 0.3, 5.0, 200.0])
NODES = np.exp(np.arange(-40.0, 25.0, 0.02))


@pytest.mark.parametrize("distribution", LAWS, ids=str)
def test_law_is_found_again(distribution):
    found = find_known(distribution.log_phi)
    assert type(found) is type(distribution)
    np.testing.assert_allclose(found.log_phi(R), distribution.log_phi(R), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("distribution", LAWS, ids=str)
def test_densities_are_tilts_with_this_transform(distribution):
    # log f_r(ω) = log π(ω) − rω − log φ(r), and each integrates to one.
    base = distribution.logpdf(NODES, np.zeros(1))
    for r in R:
        density = distribution.logpdf(NODES, np.array([r]))
        seen = density > -30.0
        expected = base - r * NODES - distribution.log_phi(np.array([r]))
        np.testing.assert_allclose(density[seen], expected[seen], rtol=1e-8, atol=1e-8)
        total = np.sum(np.exp(density) * NODES) * 0.02
        # The heavy tail of InvGamma(½) beyond the nodes weighs exp(−12).
        assert total == pytest.approx(1.0, abs=1e-4 if r == 0.0 else 1e-8)


@pytest.mark.parametrize("distribution", LAWS, ids=str)
def test_draws_have_the_tilts_mean(distribution):
    rng, r = np.random.default_rng(1), 0.7
    omega = distribution.random(rng, np.full(40_000, r))
    step = 1e-5 * r
    mean = -(distribution.log_phi(r + step) - distribution.log_phi(r - step)) / (2.0 * step)
    error = omega.std() / np.sqrt(omega.size)
    assert abs(omega.mean() - mean) < 5.0 * error
    assert abs(1.1 * omega.mean() - mean) > 5.0 * error


@pytest.mark.parametrize(
    "log_phi",
    [
        lambda r: 1.0 - (1.0 + r) ** 0.3,
        lambda r: -r,
        lambda r: -(r**0.3),
        lambda r: np.log(0.5 * np.exp(-r) + 0.5 / (1.0 + r)),
    ],
)
def test_other_laws_are_not_taken_for_known_ones(log_phi):
    assert find_known(log_phi) is None
