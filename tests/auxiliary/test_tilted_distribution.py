import numpy as np
import pytest

from pymc_augconj.auxiliary.laplace_transform.distribution import TiltedDistribution
from pymc_augconj.auxiliary.polya_gamma.distribution import mean_polya_gamma

R = np.array([1e-10, 1e-6, 1e-3, 0.1, 1.0, 10.0, 1e3, 1e6, 1e12])


def log_phi_logit(s):
    root = np.sqrt(s)
    return np.log(2.0) - 0.5 * root - np.log1p(np.exp(-root))


@pytest.mark.parametrize(
    ("log_phi", "mean"),
    [
        (lambda s: -np.sqrt(s), 0.5 / np.sqrt(R)),
        (lambda s: -0.3 * np.log1p(s), 0.3 / (1 + R)),
        (lambda s: -400 * np.log1p(s / 9), 400 / (9 + R)),
        (lambda s: 1 - (1 + s) ** 0.3, 0.3 * (1 + R) ** -0.7),
        (lambda s: -5 * s, np.full(R.size, 5.0)),
        (lambda s: -s - np.log1p(s), 1 + 1 / (1 + R)),
    ],
)
def test_means(log_phi, mean):
    distribution = TiltedDistribution(log_phi)
    np.testing.assert_allclose(distribution.origin + distribution.mean(R), mean, rtol=1e-12)


def test_means_of_the_logit():
    r = R[R > 1e-4]  # below, log φ itself is a difference of close numbers
    mean = TiltedDistribution(log_phi_logit).mean(r)
    np.testing.assert_allclose(mean, mean_polya_gamma(1.0, np.sqrt(r)) / 2, rtol=1e-11)


def test_rough_moments_are_good_to_a_per_cent():
    for log_phi, var in (
        (lambda s: -np.sqrt(s), 0.25 * R**-1.5),
        (lambda s: -400 * np.log1p(s / 9), 400 / (9 + R) ** 2),
        (lambda s: 1 - (1 + s) ** 0.3, 0.21 * (1 + R) ** -1.7),
    ):
        np.testing.assert_allclose(
            TiltedDistribution(log_phi).rough_moments(R)[1] ** 2, var, rtol=0.02
        )


def test_scale_support_and_atom():
    distribution = TiltedDistribution(lambda s: -np.sqrt(s / 1e7))
    assert distribution.scale == pytest.approx(1e7, rel=0.02)
    assert (distribution.origin, distribution.log_atom) == (0.0, -np.inf)
    distribution = TiltedDistribution(lambda s: np.log(0.3 + 0.7 / (1 + s)))
    assert distribution.log_atom == pytest.approx(np.log(0.3))
    distribution = TiltedDistribution(lambda s: -4 * s + np.log(0.3 + 0.7 / (1 + s)))
    assert distribution.origin == pytest.approx(4.0, rel=1e-12)
    assert distribution.log_atom == pytest.approx(np.log(0.3), abs=1e-3)
    assert TiltedDistribution(lambda s: -s).is_point_mass
    assert TiltedDistribution(lambda s: 0 * s).is_point_mass
    # A Gaussian's log φ is a straight line, but for rounding.
    for k in (1.3, 1e-3, 4e4):
        distribution = TiltedDistribution(lambda s, k=k: -((np.sqrt(s) / k) ** 2))
        assert distribution.is_point_mass
        assert distribution.origin == pytest.approx(k**-2)
    # Of densities whose normalisers cancel.
    for k in np.linspace(0.3, 3.0, 25):
        distribution = TiltedDistribution(lambda s, k=k: (-0.7 - 0.5 * np.sqrt(s) ** 2 / k) + 0.7)
        assert distribution.is_point_mass
    # A log φ that overflows far out says nothing of an atom.
    distribution = TiltedDistribution(lambda s: -np.log(np.cosh(np.sqrt(s))))
    assert (distribution.origin, distribution.log_atom) == (0.0, -np.inf)
