"""One table serves every φ that differs by a scale of r, and no other."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_augconj.auxiliary.laplace_transform.inversion import logpdf_tilted
from pymc_augconj.auxiliary.laplace_transform.table_sampler import (
    ScaleFamilies,
    TiltedSampler,
    find_scale,
)
from pymc_augconj.errors import NotSuperGaussianError

FAMILIES = {
    "stretched": lambda r: 1.0 - (1.0 + r) ** 0.3,
    "Laplace": lambda r: -np.sqrt(r),
    "gamma": lambda r: -2.0 * np.log1p(r),
}
R = np.geomspace(1e-3, 1e2, 500)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("scale", [1e-3, 1.7, 2e4])
def test_rescaled_law_shares_the_table(name, scale):
    log_phi, families = FAMILIES[name], ScaleFamilies()
    first = families.find(log_phi)
    second = families.find(lambda r: log_phi(r * scale))
    assert second.sampler is first.sampler
    direct = TiltedSampler(lambda r: log_phi(r * scale))
    shared = second.random(np.random.default_rng(1), R)
    np.testing.assert_allclose(shared, direct.random(np.random.default_rng(1), R), rtol=1e-5)
    omega = np.quantile(shared, [0.05, 0.5, 0.95])
    expected = logpdf_tilted(omega, lambda r: log_phi(r * scale), R[[400]])
    np.testing.assert_allclose(second.logpdf(omega, R[[400]]), expected, atol=1e-8)


def test_another_shape_has_a_table_of_its_own():
    families = ScaleFamilies()
    first = families.find(lambda r: -2.0 * np.log1p(r))
    second = families.find(lambda r: -2.000001 * np.log1p(r))
    assert second.sampler is not first.sampler
    assert families.find(lambda r: -2.0 * np.log1p(3.0 * r)).sampler is first.sampler


def test_scale_is_found_to_rounding():
    for scale in (1e-9, 0.3, 1e12):
        assert find_scale(lambda r, s=scale: -np.sqrt(r / s)) == pytest.approx(scale, rel=1e-14)


def test_law_that_never_falls_to_a_third_is_not_shared():
    def log_phi(r):
        return np.log(0.5 + 0.5 / (1.0 + r))

    assert find_scale(log_phi) is None
    families = ScaleFamilies()
    assert families.find(log_phi).sampler is not families.find(log_phi).sampler


@pytest.mark.parametrize("power", [1.05, 2.0])
def test_what_is_not_completely_monotone_is_never_drawn(power):
    families = ScaleFamilies()
    families.find(lambda r: 1.0 - (1.0 + r) ** 0.95)
    with pytest.raises(NotSuperGaussianError, match="derivative of order"):
        families.find(lambda r: 1.0 - (1.0 + r) ** power)


def test_mixtures_of_gaussians_are_drawn():
    # Two atoms: the density that an inversion gives for them has no sign of its own.
    families = ScaleFamilies()
    for weight in (0.03, 0.2, 0.9):
        families.find(lambda r, w=weight: np.log(w * np.exp(-r) + (1.0 - w) * np.exp(-r / 50.0)))
