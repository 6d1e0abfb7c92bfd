"""The dense covariance of a block whose prior is known by its precision matrix."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pymc_augconj.linalg.precision import FactorizedCovariance, covariance_of_precision
from pymc_augconj.model import Point, Precision

__all__ = ["CovarianceOfPrecision"]

Array = NDArray[np.float64]


class CovarianceOfPrecision:
    """K(θ) = Q(θ)⁻¹ and its Cholesky factor as a function of the point.

    Parameters
    ----------
    precision : Precision
    name : str
        The latent variable, for error messages.
    """

    def __init__(self, precision: Precision, name: str):
        self._precision, self._name = precision, name
        self.names = precision.values.names

    def __call__(self, point: Point) -> FactorizedCovariance:
        """Return K and chol(K); raises NotPositiveDefiniteError where Q has no factor."""
        precision = self._precision
        return covariance_of_precision(
            precision.size,
            precision.rows,
            precision.cols,
            precision.values(point),
            name=f"the prior precision of {self._name!r}",
        )

    def pull(self, point: Point, weights: Array) -> dict[str, Array]:
        """Return the derivatives of ⟨weights, K⟩ = tr(weightsᵀ K), by entry of the point.

        ∂K = −K ∂Q K, so that they are those of ⟨−K weights K, Q⟩.
        """
        K = self(point).cov
        by_Q = K @ weights @ K
        precision = self._precision
        return precision.pullback(point, -by_Q[precision.rows, precision.cols])
