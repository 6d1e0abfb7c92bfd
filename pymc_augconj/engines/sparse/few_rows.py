"""Rows of the data, few at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pymc_augconj.typing import Index

__all__ = ["chunks"]

# Numbers in the largest array of a pass over all rows: 80 MB.
_CHUNK = 10_000_000


def chunks(n_rows: int, width: int) -> Iterator[Index]:
    """Yield arrays of rows, few enough that ``width`` numbers apiece fit in memory."""
    size = max(_CHUNK // max(width, 1), 1)
    for start in range(0, n_rows, size):
        yield np.arange(start, min(start + size, n_rows))
