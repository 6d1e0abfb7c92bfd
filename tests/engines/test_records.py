"""Tests of named tuples that compiled functions take by reference."""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
from numba import njit, typeof
from numba.core.errors import TypingError

from pymc_augconj.engines.gibbs.native.compilation import Record, pass_by_reference


class _Inner(NamedTuple):
    table: np.ndarray
    flag: bool


class _Outer(NamedTuple):
    x: np.ndarray
    count: int
    inner: _Inner
    by: float


pass_by_reference(_Inner, _Outer)


@njit(nogil=True)
def _add(inner, x, by, repeats):
    for _ in range(repeats):
        for i in range(inner.table.shape[0]):
            for j in range(inner.table.shape[1]):
                x[i] += by * inner.table[i, j] if inner.flag else -1.0


@njit(nogil=True)
def _run(record):
    _add(record.inner, record.x, record.by, record.count)
    return record.x.size + record.inner.table.shape[1]


def _record(number):
    table = np.arange(24.0).reshape(4, 6)[::-1, ::2] + number
    return _Outer(np.zeros(4), 3, _Inner(table, number % 3 > 0), 0.5)


def test_fields_are_read_and_written():
    """Strided arrays, numbers and records within a record; each call has records of its own."""
    records = [_record(k) for k in range(12)]
    assert isinstance(typeof(records[0]), Record)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(_run, records)) == [7] * 12
    for x, count, inner, by in records:
        expected = count * by * inner.table.sum(1) if inner.flag else np.full(4, -3.0 * count)
        np.testing.assert_array_equal(x, expected)


def test_a_field_that_there_is_not():
    """Numba names the attribute."""

    @njit
    def read(record):
        return record.other

    with pytest.raises(TypingError, match="other"):
        read(_record(0))
