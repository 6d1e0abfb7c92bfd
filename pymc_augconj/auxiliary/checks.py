"""Checks of arguments: the message names the first invalid entry."""

import numpy as np
from numpy.typing import ArrayLike


def refuse(name: str, values: ArrayLike, good: ArrayLike, expected: str) -> None:
    """Raise ValueError for the first entry of ``values`` at which ``good`` is false, of one shape.

    ``name`` is the argument's name, and ``expected`` completes "expected …".
    """
    values, good = np.asarray(values), np.asarray(good)
    if good.all():
        return
    index = np.unravel_index(int(np.argmin(good)), good.shape)
    where = f"[{', '.join(str(int(i)) for i in index)}]" if index else ""
    raise ValueError(f"expected {expected}, got {name}{where} = {values[index]}")
