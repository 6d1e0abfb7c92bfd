"""Moments of a normal density between bounds against sixty digits."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest

from pymc_augconj.likelihoods.generic import BoundedNormal


def exact(lower, upper, mu, tau, mean, var):
    """Return log Z, the mean and the variance by the formulas of truncated normal variables."""
    lower, upper, mu, tau, mean, var = map(mp.mpf, (lower, upper, mu, tau, mean, var))
    scale = mp.sqrt(1 / (1 / var + tau))
    centre = scale**2 * (mean / var + tau * mu)
    a, b = (lower - centre) / scale, (upper - centre) / scale
    tails = [mp.mpf(0) if mp.isinf(t) else mp.erfc(abs(t) / mp.sqrt(2)) / 2 for t in (a, b)]
    Z = abs(tails[0] - tails[1]) if a * b > 0 else 1 - tails[0] - tails[1]
    ends = [(mp.mpf(0), mp.mpf(0)) if mp.isinf(t) else (mp.npdf(t), t * mp.npdf(t)) for t in (a, b)]
    shift = (ends[0][0] - ends[1][0]) / Z
    shrunk = 1 + (ends[0][1] - ends[1][1]) / Z - shift**2
    log_Z = mp.log(Z) - mp.log(1 + tau * var) / 2 - tau * (mu - mean) ** 2 / (1 + tau * var) / 2
    return log_Z, centre + scale * shift, scale**2 * shrunk


@pytest.mark.parametrize("case", range(6))
def test_tilted_moments(case):
    rng = np.random.default_rng(case)
    with mp.workdps(60):
        for _ in range(8):
            lower = rng.normal() * 10.0 ** rng.uniform(-3, 2)
            upper = np.inf if case == 1 else lower + 10.0 ** rng.uniform(-2, 4)
            lower = -np.inf if case == 2 else lower
            tau = 0.0 if case % 2 else 10.0 ** rng.uniform(-3, 3)
            mu, mean, var = 3.0 * rng.normal(), 10.0 * rng.normal(), 10.0 ** rng.uniform(-3, 6)
            given = {"lower": lower, "upper": upper, "mu": mu, "tau": tau, "log_c": 0.0}
            params = {name: np.array(float(value)) for name, value in given.items()}
            found = BoundedNormal().tilted_moments(
                np.zeros(1), np.array([mean]), np.array([var]), params, power=1.0, delta=False
            )
            log_Z, first, second = exact(lower, upper, mu, tau, mean, var)
            std = float(mp.sqrt(second))
            np.testing.assert_allclose(found.log_Z[0], float(log_Z), rtol=1e-11, atol=1e-11)
            assert abs(found.mean[0] - float(first)) < 1e-10 * std + 1e-14 * abs(float(first))
            np.testing.assert_allclose(found.var[0], float(second), rtol=1e-9)
