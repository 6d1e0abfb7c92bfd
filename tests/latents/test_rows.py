"""Merging of predictors that are equal for all latents."""

import numpy as np
import pytest

from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.latents import rows
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.linalg.linear_map import RowSelection

N = 300


def selection(rng, size, coefs=None):
    coef = None if coefs is None else rng.choice(coefs, size=N)
    return RowSelection(rng.integers(size, size=N), coef, size)


@pytest.mark.parametrize("most", [2**62, 50])
def test_rows_are_merged_where_all_maps_agree(most, monkeypatch):
    monkeypatch.setattr(rows, "_MOST_CODES", most)
    rng = np.random.default_rng(0)
    maps = [selection(rng, 3), selection(rng, 7, [0.5, -1.0]), selection(rng, 4)]
    other = [maps[0], RowSelection(maps[1].index, rng.choice([1.0, 2.0], size=N), 7), maps[2]]
    groups = RowGroups.find([maps, other], Coupling(N))
    columns = [maps[0].index, maps[1].index, maps[1].coef, maps[2].index, other[1].coef]
    keys = np.column_stack(columns)
    _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    assert groups.size == first.size < N
    np.testing.assert_array_equal(groups.first, np.sort(first))
    np.testing.assert_array_equal(first[inverse.ravel()], groups.first[groups.inverse])


def test_many_rows_are_merged_in_one_pass_as_few_are(monkeypatch):
    rng = np.random.default_rng(1)
    groups = RowGroups(np.arange(7), rng.integers(7, size=N), Coupling(N))
    given = rng.normal(size=N), rng.normal(size=N), rng.normal(size=N)
    found = groups.merge(*given)
    monkeypatch.setattr(rows, "_MANY", 0)
    many = groups.merge(*given)
    for name in ("h", "lam", "constant", "magnitude", "rounded"):
        np.testing.assert_allclose(getattr(many, name), getattr(found, name), rtol=1e-12)
    dense = np.zeros((7, N))
    dense[groups.inverse, np.arange(N)] = 1.0
    h, lam, offset = given
    np.testing.assert_allclose(many.h, dense @ (h - lam * offset), rtol=1e-10)
    np.testing.assert_allclose(many.constant, (h - 0.5 * lam * offset) @ offset, rtol=1e-10)
