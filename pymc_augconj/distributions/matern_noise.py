"""Noise whose density is a Matérn function of the residual, as a PyMC distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.continuous import Continuous
from pymc.distributions.shape_utils import rv_size_is_none
from pytensor.graph.basic import Constant
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.errors import AugmentationError

_SMOOTHNESS = (0.5, 1.5, 2.5)


class MaternNoiseRV(RandomVariable):
    """The random variable of :class:`MaternNoise`."""

    name = "matern_noise"
    signature = "(),(),()->()"
    dtype = "floatX"
    _print_name = ("MaternNoise", "\\operatorname{MaternNoise}")

    @classmethod
    def rng_fn(
        cls, rng: np.random.Generator, nu: np.ndarray, mu: np.ndarray, rho: np.ndarray, size: Any
    ) -> np.ndarray:
        """Draw y = μ + e: e | ω ~ N(0, 1/2ω) with 1/ω ~ Gamma(ν + ½, rate ν/2ρ²)."""
        if size is None:
            size = np.broadcast_shapes(np.shape(nu), np.shape(mu), np.shape(rho))
        inverse = rng.gamma(nu + 0.5, 2.0 * np.square(rho) / nu, size=size)
        return mu + rng.standard_normal(size) * np.sqrt(0.5 * inverse)


class MaternNoise(Continuous):
    r"""Real observations with Matérn-ν noise: heavier tails than the normal's, smooth or peaked.

    With e = y − μ and ν = ½, 3/2, 5/2 the density is, respectively,

    .. math::

        \frac{1}{2ρ} e^{-|e|/ρ}, \quad
        \frac{\sqrt 3}{4ρ} (1 + x) e^{-x},\; x = \sqrt 3 |e|/ρ, \quad
        \frac{3 \sqrt 5}{16ρ} (1 + x + x^2/3) e^{-x},\; x = \sqrt 5 |e|/ρ.

    ν = ½ is Laplace noise; ν → ∞ is normal noise of standard deviation ρ.

    Parameters
    ----------
    nu : {0.5, 1.5, 2.5}
        Smoothness.
    mu : tensor_like
        Location.
    rho : tensor_like
        Scale, positive.

    Raises
    ------
    AugmentationError
        For any other ν.

    Examples
    --------
    >>> pac.MaternNoise("y", nu=1.5, mu=f, rho=rho, observed=y)  # doctest: +SKIP
    """

    rv_op = MaternNoiseRV()

    @classmethod
    def dist(cls, nu: float, mu: Any = 0.0, rho: Any = 1.0, **kwargs: Any) -> TensorVariable:
        """Return the variable outside a model; see the class."""
        if not isinstance(nu, int | float | np.number) or float(nu) not in _SMOOTHNESS:
            raise AugmentationError(
                f"MaternNoise: expected nu to be one of {_SMOOTHNESS}, found {nu!r}; use "
                "pac.SuperGaussian with your own log_phi for another smoothness"
            )
        parameters = [pt.constant(np.float64(nu)), pt.as_tensor(mu), pt.as_tensor(rho)]
        return super().dist(parameters, **kwargs)

    def support_point(
        rv: TensorVariable, size: Any, nu: TensorVariable, mu: TensorVariable, rho: TensorVariable
    ) -> TensorVariable:
        """Return μ."""
        point = pt.broadcast_arrays(mu, rho)[0]
        return point if rv_size_is_none(size) else pt.full(size, point)

    def logp(
        value: TensorVariable, nu: TensorVariable, mu: TensorVariable, rho: TensorVariable
    ) -> TensorVariable:
        """Return the log density."""
        # Broadcasting may have repeated ν, which is one number.
        while not isinstance(nu, Constant):
            nu = nu.owner.inputs[0]
        smoothness = float(np.ravel(nu.data)[0])
        x = np.sqrt(2.0 * smoothness) * pt.abs(value - mu) / rho
        polynomial, log_constant = {
            0.5: (pt.zeros_like(x), -np.log(2.0)),
            1.5: (x, np.log(np.sqrt(3.0) / 4.0)),
            2.5: (x + x**2 / 3.0, np.log(3.0 * np.sqrt(5.0) / 16.0)),
        }[smoothness]
        log_density = log_constant - pt.log(rho) + pt.log1p(polynomial) - x
        return pt.where(rho > 0.0, log_density, -np.inf)
