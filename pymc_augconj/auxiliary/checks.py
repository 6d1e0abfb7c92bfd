"""Checks of arguments: the message names the first invalid entry."""

import numpy as np
from numpy.typing import ArrayLike


def refuse(name: str, values: ArrayLike, good: ArrayLike, expected: str) -> None:
    """Raise for the first entry of ``values`` at which ``good`` is false; else do nothing.

    Parameters
    ----------
    name : str
        The argument's name, as the caller spells it.
    values, good : array_like, same shape
        The argument, and whether each of its entries is acceptable.
    expected : str
        What was expected, completing "expected …".

    Raises
    ------
    ValueError
        With the index and the value of the first invalid entry.
    """
    values, good = np.asarray(values), np.asarray(good)
    if good.all():
        return
    index = np.unravel_index(int(np.argmin(good)), good.shape)
    where = f"[{', '.join(str(int(i)) for i in index)}]" if index else ""
    raise ValueError(f"expected {expected}, got {name}{where} = {values[index]}")
