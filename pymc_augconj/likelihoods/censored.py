"""Any likelihood of PyMC's, censored below and above.

An observation at ``lower`` means y ≤ lower, one at ``upper`` means y ≥ upper:

    p(lower | η) = F(lower | η),  p(upper | η) = 1 − F(upper | η),  p(y | η) between as it was.

Both are parameters, ``params["lower"]`` and ``params["upper"]``, infinite where there is no bound.

References
----------
Tobin, J. (1958). Estimation of relationships for limited dependent variables. Econometrica 26.
"""

from __future__ import annotations

import numpy as np

from pymc_augconj.typing import Array

from .base import Params
from .generic import GenericLikelihood

__all__ = ["CensoredLikelihood"]


class CensoredLikelihood(GenericLikelihood):
    """See the module's docstring; built as :class:`~.generic.GenericLikelihood`."""

    def bounds(self, params: Params) -> tuple[Array, Array]:
        return params.get("lower", np.array(-np.inf)), params.get("upper", np.array(np.inf))
