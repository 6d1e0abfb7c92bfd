"""Events as counts on a grid."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest

import pymc_augconj as pac


def test_cells_of_an_interval():
    cells = pac.bin_points([0.0, 0.1, 2.5, 4.0], 4, bounds=(0, 4))
    np.testing.assert_array_equal(cells.counts, [2, 0, 1, 1])
    np.testing.assert_allclose(cells.exposure, 1.0)
    np.testing.assert_allclose(cells.centres, [[0.5], [1.5], [2.5], [3.5]])
    assert "4 points in 4 cells" in repr(cells)
    edges = pac.bin_points([0.0, 0.1, 2.5, 4.0], [0.0, 1.0, 4.0])
    np.testing.assert_array_equal(edges.counts, [2, 2])
    np.testing.assert_allclose(edges.exposure, [1.0, 3.0])


def test_each_point_of_a_plane_is_in_the_cell_nearest_to_it():
    points = np.random.default_rng(0).uniform([0, -1], [3, 1], (200, 2))
    cells = pac.bin_points(points, (6, 2), bounds=[(0, 3), (-1, 1)])
    assert cells.inside.shape == (6, 2)
    np.testing.assert_allclose(cells.exposure, 0.5)
    scaled = np.array([0.5, 1.0])
    distance = np.abs(points[:, None] / scaled - cells.centres / scaled).max(axis=2)
    np.testing.assert_array_equal(np.bincount(distance.argmin(axis=1), minlength=12), cells.counts)
    assert cells.on_grid(cells.counts).shape == (6, 2)


def test_a_window_leaves_cells_out_and_cuts_others():
    points = np.array([[0.5, 0.5], [1.5, 0.5]])
    parts = np.array([[1.0, 0.0], [0.25, 0.0]])
    cells = pac.bin_points(points, 2, bounds=(0, 2), window=parts)
    np.testing.assert_allclose(cells.exposure, [1.0, 0.25])
    np.testing.assert_allclose(cells.centres, points)
    np.testing.assert_array_equal(cells.counts, [1, 1])
    grid = cells.on_grid([3.0, 4.0])
    np.testing.assert_array_equal(grid, [[3.0, np.nan], [4.0, np.nan]])
    lower = pac.bin_points(points, 2, bounds=(0, 2), window=lambda at: at[:, 1] < 1.0)
    np.testing.assert_array_equal(lower.inside, parts > 0.0)
    with pytest.raises(pac.DataError, match="window is empty, found 2"):
        pac.bin_points(points, 2, bounds=(0, 2), window=lambda at: at[:, 1] > 1.0)


@pytest.mark.parametrize(
    ("points", "bins", "options", "match"),
    [
        ([0.5, np.nan], 2, {}, "finite"),
        (np.zeros((3, 3)), 2, {}, r"\(K, 2\), got \(3, 3\)"),
        ([0.5, 3.0], 2, {"bounds": (0, 2)}, "coordinate 0 from 0 to 2, found 3"),
        ([0.5, 1.0], 0, {}, "positive number of cells"),
        ([0.5, 1.0], [1.0, 0.0], {}, "increasing edges"),
        (np.zeros((2, 2)), (2, 2, 2), {}, "each of 2 axes, got 3"),
        ([0.5, 1.0], 2, {"bounds": (1, 2, 3)}, "bounds: expected"),
        ([], 2, {}, "no points"),
        ([0.5, 1.0], 2, {"window": [1.0, 2.0]}, "between 0 and 1"),
        ([0.5, 1.0], 2, {"window": [1.0]}, "grid's shape"),
    ],
)
def test_what_is_no_grid_is_refused(points, bins, options, match):
    with pytest.raises(pac.DataError, match=match):
        pac.bin_points(points, bins, **options)


@pytest.mark.parametrize("dimensions", [1, 2])
def test_a_plot_has_the_intensity_of_each_cell(dimensions):
    points = np.random.default_rng(1).uniform(0, 2, (30, dimensions))
    cells = pac.bin_points(points, 3, bounds=(0, 2))
    figure, ax = plt.subplots()
    assert cells.plot(ax=ax) is ax
    if dimensions == 1:
        np.testing.assert_allclose(ax.patches[0].get_data().values, cells.counts / cells.exposure)
    else:
        drawn = ax.collections[0].get_array().reshape(3, 3)
        np.testing.assert_allclose(drawn.T.ravel(), cells.counts / cells.exposure)
    plt.close(figure)
    with pytest.raises(pac.DataError, match="one for each"):
        cells.plot([1.0], ax=ax)
