"""Designs over hyperparameters, and the density between their points."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from pymc_augconj.engines.nested.density import (
    LARGEST_LATTICE,
    Scaling,
    ThetaDensity,
    density_of,
    lattice,
    proposals,
    scattered,
)
from pymc_augconj.engines.nested.fit import everywhere


@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
def test_designs_follow_a_skew_density(p):
    """Moments of the logarithms of independent gamma variables."""
    shape = 3.0
    mode = np.full(p, np.log(shape))

    def log_density(theta):
        return np.sum(shape * theta - np.exp(theta), axis=-1)

    std = 1.0 / np.sqrt(shape)
    scaling = Scaling.of_widths(mode, np.eye(p), 1.15 * std * np.ones(p), 0.87 * std * np.ones(p))
    is_lattice = p <= LARGEST_LATTICE
    z = scattered(p)
    if is_lattice:
        z = lattice(lambda at: float(log_density(scaling.theta(at))), p)
    theta = scaling.theta(z)
    density = ThetaDensity(scaling, z, log_density(theta), is_lattice=is_lattice)
    # Digamma and trigamma of 3.
    mean, var = 0.9227843350984671, 0.3949340668482264
    # The spacing of SPACING costs up to 0.014 standard deviations.
    np.testing.assert_allclose(density.weights @ theta, mean, atol=0.02 * np.sqrt(var))
    np.testing.assert_allclose(density.weights @ (theta - mean) ** 2, var, rtol=0.03)
    # Γ(3) = 2, each.
    assert density.log_mass == pytest.approx(p * np.log(2.0), abs=0.01 if is_lattice else 0.05)
    theta = scaling.theta(density.sample)
    np.testing.assert_allclose(density.sample_weights @ theta, mean, atol=0.01)
    np.testing.assert_allclose(density.sample_weights @ (theta - mean) ** 2, var, rtol=0.03)
    drawn = scaling.theta(density.draw(np.random.default_rng(1), 4000))
    np.testing.assert_allclose(drawn.mean(axis=0), mean, atol=5 * np.sqrt(var / 4000))


def test_scalings_have_the_widths_and_the_jacobian():
    rng = np.random.default_rng(1)
    axes = np.linalg.qr(rng.standard_normal((2, 2)))[0]
    scaling = Scaling.of_widths(np.ones(2), axes, np.array([1.0, 2.0]), np.array([3.0, 1.0]))
    for sign, widths in ((1.0, [3.0, 1.0]), (-1.0, [1.0, 2.0])):
        along = (scaling.theta(np.full(2, sign * np.sqrt(2.0))) - 1.0) @ axes
        np.testing.assert_allclose(along, sign * np.sqrt(2.0) * np.array(widths))
    z, step = rng.standard_normal(2), 1e-6
    columns = [scaling.theta(z + step * e) - scaling.theta(z - step * e) for e in np.eye(2)]
    found = np.linalg.slogdet(np.array(columns) / (2.0 * step))[1]
    assert scaling.log_jacobian(z) == pytest.approx(found, abs=1e-8)


@pytest.mark.parametrize("is_lattice", [True, False])
def test_proposals_have_their_density(is_lattice):
    p = 2 if is_lattice else 4
    z = lattice(lambda at: -0.5 * float(at @ at), p) if is_lattice else scattered(p)
    scaling = Scaling(np.zeros(p), np.eye(p), np.ones(p), np.zeros(p))
    density = ThetaDensity(scaling, z, -0.5 * np.sum(z**2, axis=1), is_lattice=is_lattice)
    drawn = density.propose(np.random.default_rng(2), 20_000)
    # E over proposals of the ratio to another density is one.
    ratio = np.exp(norm(0.2, 0.8).logpdf(drawn).sum(axis=1) - density.log_proposal(drawn))
    error = ratio.std() / np.sqrt(len(ratio))
    assert abs(ratio.mean() - 1.0) < 5 * error < 0.1
    assert density.log_mass == pytest.approx(0.5 * p * np.log(2.0 * np.pi), abs=0.01)


def test_many_hyperparameters_have_weighted_points():
    """Moments of the logarithms of gamma variables, with errors of the weights' effective size."""
    p, shape = 16, 3.0
    std = 1.0 / np.sqrt(shape)
    below, above = 1.15 * std * np.ones(p), 0.87 * std * np.ones(p)
    scaling = Scaling.of_widths(np.full(p, np.log(shape)), np.eye(p), below, above)
    z = proposals(p)
    theta = scaling.theta(z)
    log_density = np.sum(shape * theta - np.exp(theta), axis=1)
    density = density_of(scaling, z, log_density)
    ess = 1.0 / np.sum(density.weights**2)
    assert ess > 500
    mean, sd = 0.9227843350984671, np.sqrt(0.3949340668482264)
    error = sd / np.sqrt(ess)
    np.testing.assert_allclose(density.weights @ theta, mean, atol=5 * error)
    # The control: the points without their weights, averaged over entries.
    assert abs((density.weights @ theta).mean() - mean) < 5 * error / np.sqrt(p)
    assert abs(theta.mean() - mean) > 5 * error / np.sqrt(p)
    spread = density.weights @ (theta - mean) ** 2
    np.testing.assert_allclose(spread, sd**2, rtol=5 * np.sqrt(2.7 / ess))
    assert density.log_mass == pytest.approx(p * np.log(2.0), abs=5 * np.sqrt(1 / ess))
    drawn = density.draw(np.random.default_rng(1), 500)
    weights = density.site_weights(drawn)
    np.testing.assert_array_equal(weights @ z, drawn)
    np.testing.assert_allclose(scaling.theta(drawn).mean(axis=0), mean, atol=8 * error)
    # Points without an approximation are left out, and the mass is that of the others.
    half = density_of(scaling, z[::2], log_density[::2])
    share = np.exp(half.log_mass - density.log_mass)
    assert share == pytest.approx(density.weights[::2].sum())
    chosen, log_q = half.certified(np.random.default_rng(1), 10_000)
    assert len(np.unique(chosen, axis=0)) == len(z[::2])
    rest = np.exp(half.log_density(chosen) - log_q).mean()
    assert np.log(rest) == pytest.approx(half.log_mass)


def test_smooth_functions_are_computed_at_few_points():
    points = np.random.default_rng(4).standard_normal((300, 2))
    # Draws may be equal; a parameter may not vary.
    points = np.column_stack([points, np.ones(300)])[np.r_[:300, :50]]
    smooth, rough = np.exp(0.2 * points[:, 0]) + 0.1 * points[:, 1] ** 2, points[:, 0] > 0.0
    for values, most in ((smooth, 80), (rough.astype(float), 300)):
        asked: list[int] = []

        def function(rows, values=values, asked=asked):
            asked.extend(rows)
            return values[rows]

        np.testing.assert_allclose(everywhere(function, points), values, atol=0.02)
        assert len(asked) == len(set(asked)) <= most
    assert len(asked) > 250


def test_functions_without_a_value_everywhere_end():
    values = np.r_[np.nan, np.ones(99)]
    found = everywhere(lambda rows: values[rows], np.linspace(-1.0, 1.0, 100)[:, None])
    np.testing.assert_array_equal(found, values)
