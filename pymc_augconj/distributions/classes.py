"""Observations: classes by other links than the softmax or by a hinge loss, and Matérn noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.continuous import Continuous
from pymc.distributions.distribution import Discrete
from pymc.distributions.shape_utils import rv_size_is_none
from pytensor.graph.basic import Constant
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable
from scipy.special import log_expit

from pymc_augconj.auxiliary.generalized_inverse_gaussian import ORDERS
from pymc_augconj.errors import AugmentationError


def _draw(rng: np.random.Generator, p: np.ndarray, size: Any) -> np.ndarray:
    """Draw classes with probabilities ``p``, classes on the last axis."""
    p = p if size is None else np.broadcast_to(p, (*size, p.shape[-1]))
    u = rng.random(p.shape[:-1])[..., None] * p.sum(axis=-1, keepdims=True)
    # Without the last sum, which rounding may leave below u.
    return (u >= np.cumsum(p, axis=-1)[..., :-1]).sum(axis=-1).astype("int64")


def _first_class(f: TensorVariable, size: Any) -> TensorVariable:
    return pt.zeros(f.shape[:-1] if rv_size_is_none(size) else size, dtype="int64")


def _is_class(value: TensorVariable, f: TensorVariable) -> TensorVariable:
    """Return whether the value equals each class, on a new last axis."""
    return pt.eq(pt.expand_dims(value, -1), pt.arange(f.shape[-1]))


class LogisticSoftmaxRV(RandomVariable):
    """The random variable of :class:`LogisticSoftmax`."""

    name = "logistic_softmax"
    signature = "(k)->()"
    dtype = "int64"
    _print_name = ("LogisticSoftmax", "\\operatorname{LogisticSoftmax}")

    @classmethod
    def rng_fn(cls, rng: np.random.Generator, f: np.ndarray, size: Any) -> np.ndarray:
        log_p = log_expit(f)
        return _draw(rng, np.exp(log_p - log_p.max(axis=-1, keepdims=True)), size)


class LogisticSoftmax(Discrete):
    r"""A class with probabilities :math:`\sigma(f_k) / \sum_j \sigma(f_j)`, σ logistic.

    Unlike the softmax, this categorical distribution has an augmentation of all classes at once:
    the sampler draws the latents of all classes together, and ``pac.fit("cavi")`` has a bound.

    Parameters
    ----------
    f : tensor_like, shape (…, K)
        The predictors, with the axis of classes last: ``F.T`` for ``F = gp.prior("F", X=X,
        n_outputs=K)``.

    Notes
    -----
    ``observed`` holds classes from 0 to K − 1.

    References
    ----------
    Galy-Fajou, T., Wenzel, F., Donner, C. & Opper, M. (2019). Multi-class Gaussian process
    classification made conjugate: efficient inference via data augmentation. UAI.

    Examples
    --------
    >>> pac.LogisticSoftmax("y", F.T, observed=label)  # doctest: +SKIP
    """

    rv_op = LogisticSoftmaxRV()

    @classmethod
    def dist(cls, f: Any, **kwargs: Any) -> TensorVariable:
        """Return the variable outside a model; see the class."""
        return super().dist([pt.as_tensor(f)], **kwargs)

    def support_point(rv: TensorVariable, size: Any, f: TensorVariable) -> TensorVariable:
        """Return 0."""
        return _first_class(f, size)

    def logp(value: TensorVariable, f: TensorVariable) -> TensorVariable:
        """Return the log probability."""
        log_terms, own = -pt.softplus(-f), _is_class(value, f)
        log_p = pt.sum(pt.switch(own, log_terms, 0.0), axis=-1) - pt.logsumexp(log_terms, axis=-1)
        return pt.switch(pt.any(own, axis=-1), log_p, -np.inf)


class RobustMaxRV(RandomVariable):
    """The random variable of :class:`RobustMax`."""

    name = "robust_max"
    signature = "(k),()->()"
    dtype = "int64"
    _print_name = ("RobustMax", "\\operatorname{RobustMax}")

    @classmethod
    def rng_fn(
        cls, rng: np.random.Generator, f: np.ndarray, epsilon: np.ndarray, size: Any
    ) -> np.ndarray:
        K = f.shape[-1]
        largest = np.equal(np.argmax(f, axis=-1)[..., None], np.arange(K))
        epsilon = np.asarray(epsilon)[..., None]
        return _draw(rng, np.where(largest, 1.0 - epsilon, epsilon / (K - 1)), size)


class RobustMax(Discrete):
    r"""The class of the largest predictor, with probability :math:`1 - \varepsilon`.

    Each of the other K − 1 classes has the probability :math:`\varepsilon / (K - 1)`. The density
    has steps, which NUTS cannot follow; held sites and ``pac.fit("vgp")`` can.

    Parameters
    ----------
    f : tensor_like, shape (…, K)
        The predictors, with the axis of classes last: ``F.T`` for ``F = gp.prior("F", X=X,
        n_outputs=K)``.
    epsilon : tensor_like
        Probability of a mistake, between 0 and 1.

    Notes
    -----
    ``observed`` holds classes from 0 to K − 1.

    References
    ----------
    Hernández-Lobato, Hernández-Lobato & Dupont (2011), Robust multi-class Gaussian process
    classification. NeurIPS.

    Examples
    --------
    >>> pac.RobustMax("y", F.T, epsilon=1e-3, observed=label)  # doctest: +SKIP
    """

    rv_op = RobustMaxRV()

    @classmethod
    def dist(cls, f: Any, epsilon: Any = 1e-3, **kwargs: Any) -> TensorVariable:
        """Return the variable outside a model; see the class."""
        return super().dist([pt.as_tensor(f), pt.as_tensor(epsilon)], **kwargs)

    def support_point(
        rv: TensorVariable, size: Any, f: TensorVariable, epsilon: TensorVariable
    ) -> TensorVariable:
        """Return 0."""
        return _first_class(f + pt.expand_dims(epsilon, -1), size)

    def logp(value: TensorVariable, f: TensorVariable, epsilon: TensorVariable) -> TensorVariable:
        """Return the log probability."""
        wrong = pt.log(epsilon / (f.shape[-1] - 1))
        log_p = pt.switch(pt.eq(value, pt.argmax(f, axis=-1)), pt.log1p(-epsilon), wrong)
        possible = pt.any(_is_class(value, f), axis=-1) & (epsilon > 0.0) & (epsilon < 1.0)
        return pt.switch(possible, log_p, -np.inf)


class BayesianSVMRV(RandomVariable):
    """The random variable of :class:`BayesianSVM`."""

    name = "bayesian_svm"
    signature = "()->()"
    dtype = "int64"
    _print_name = ("BayesianSVM", "\\operatorname{BayesianSVM}")

    @classmethod
    def rng_fn(cls, rng: np.random.Generator, f: np.ndarray, size: Any) -> np.ndarray:
        raise AugmentationError(
            "BayesianSVM is a pseudo-likelihood: exp(−2 max(1 − y f, 0)) does not sum to one over "
            "y = −1 and 1, so that y has no distribution to draw from; predict sign(f), or use "
            "pm.Bernoulli for predictive probabilities"
        )


class BayesianSVM(Discrete):
    r"""The Bayesian support vector machine: the factor :math:`\exp(-2 \max(1 - y f, 0))`.

    This is a **pseudo-likelihood**. The factors do not sum to one over y ∈ {−1, 1}, so that the
    posterior of f belongs to a loss, not to a sampling model: y cannot be simulated, and evidences
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
        if not isinstance(nu, int | float | np.number) or float(nu) not in ORDERS:
            raise AugmentationError(
                f"MaternNoise: expected nu to be one of {ORDERS}, found {nu!r}; use "
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
