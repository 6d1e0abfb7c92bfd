"""The support vector machine's hinge loss as a factor of a PyMC model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import Discrete
from pymc.distributions.shape_utils import rv_size_is_none
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.errors import AugmentationError

__all__ = ["BayesianSVM"]


class BayesianSVMRV(RandomVariable):
    """The random variable of :class:`BayesianSVM`."""

    name = "bayesian_svm"
    signature = "()->()"
    dtype = "int64"
    _print_name = ("BayesianSVM", "\\operatorname{BayesianSVM}")

    @classmethod
    def rng_fn(cls, rng: np.random.Generator, f: np.ndarray, size: Any) -> np.ndarray:
        """Refuse to draw."""
        raise AugmentationError(
            "BayesianSVM is a pseudo-likelihood: exp(−2 max(1 − y f, 0)) does not sum to one over "
            "y = −1 and 1, so that y has no distribution to draw from; predict sign(f), or use "
            "pm.Bernoulli for predictive probabilities"
        )


class BayesianSVM(Discrete):
    r"""The Bayesian support vector machine: the factor :math:`\exp(-2 \max(1 - y f, 0))`.

    This is a **pseudo-likelihood**. The factors do not sum to one over y ∈ {−1, 1}, so that the
    posterior of f is one of a loss, not of a sampling model: y cannot be simulated, and evidences
    and information criteria have no meaning.

    Parameters
    ----------
    f : tensor_like
        The predictor.

    Notes
    -----
    ``observed`` holds −1 and 1.

    References
    ----------
    Polson, N. G. & Scott, S. L. (2011). Data augmentation for support vector machines. Bayesian
    Analysis 6.

    Examples
    --------
    >>> pac.BayesianSVM("y", f, observed=y)  # doctest: +SKIP
    """

    rv_op = BayesianSVMRV()

    @classmethod
    def dist(cls, f: Any, **kwargs: Any) -> TensorVariable:
        """Return the variable outside a model; see the class."""
        return super().dist([pt.as_tensor(f)], **kwargs)

    def support_point(rv: TensorVariable, size: Any, f: TensorVariable) -> TensorVariable:
        """Return 1."""
        return pt.ones(f.shape if rv_size_is_none(size) else size, dtype="int64")

    def logp(value: TensorVariable, f: TensorVariable) -> TensorVariable:
        """Return the log factor."""
        loss = pt.maximum(1.0 - value * f, 0.0)
        return pt.where(pt.eq(pt.abs(value), 1), -2.0 * loss, -float("inf"))
