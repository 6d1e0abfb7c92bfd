"""Adam: stochastic gradient ascent with a step of its own for every coordinate.

References
----------
Kingma, D. P. & Ba, J. (2015). Adam: a method for stochastic optimization. ICLR.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Adam"]

Array = NDArray[np.float64]


class Adam:
    """The state of one ascent.

    Parameters
    ----------
    size : int
        Number of coordinates.
    rate : float
        The longest step of a coordinate, about.
    """

    def __init__(self, size: int, rate: float, decay: tuple[float, float] = (0.9, 0.999)) -> None:
        self.rate, self.decay = rate, decay
        self._mean, self._square, self._count = np.zeros(size), np.zeros(size), 0

    def step(self, gradient: Array) -> Array:
        """Return what to add to the coordinates."""
        first, second = self.decay
        self._count += 1
        self._mean = first * self._mean + (1.0 - first) * gradient
        self._square = second * self._square + (1.0 - second) * gradient**2
        mean = self._mean / (1.0 - first**self._count)
        square = self._square / (1.0 - second**self._count)
        return self.rate * mean / (np.sqrt(square) + 1e-8)
