"""Names for the types of arrays and generators."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
ComplexArray = NDArray[Any]  # complex128, but NumPy's stubs do not know the precision of 1j * x
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]
Generator = np.random.Generator
