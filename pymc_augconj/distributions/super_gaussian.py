"""Any super-Gaussian likelihood, stated by its log φ, as a PyMC distribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import Distribution
from pymc.distributions.shape_utils import rv_size_is_none
from pymc.logprob.abstract import _logprob
from pytensor.graph.basic import Variable
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.auxiliary.laplace_transform.distribution import ResidualDistribution
from pymc_augconj.errors import AugmentationError, NotSuperGaussianError

from .formula import Formula
from .normalizer import check_integrable, check_phi, distinct, initial_values, log_normalizer

#: The coefficients of the general form, and their default values.
COEFFICIENTS = {"g": 0.0, "alpha": 0.0, "beta": 0.0, "gamma": 1.0}

# Tolerance on a negative least value of c², relative to α.
_ROUNDING = 1e-9


class Family:
    """The formulas of one super-Gaussian likelihood, detached from the model.

    ``coefficients`` are g, alpha, beta and gamma as formulas of y, None for a location family;
    ``log_c`` is None if the normaliser is computed; ``support`` is every value of a discrete y;
    ``closed_form`` requests a family with a closed form. ``parameters`` are the parameters of
    all formulas, each once.
    """

    def __init__(
        self,
        log_phi: Formula,
        coefficients: dict[str, Formula] | None = None,
        log_c: Formula | None = None,
        support: Sequence[float] | None = None,
        closed_form: bool = False,
    ) -> None:
        self.log_phi, self.coefficients, self.log_c = log_phi, coefficients, log_c
        self.support, self.closed_form = support, closed_form
        self.formulas = {"log_phi": log_phi, **(coefficients or {})}
        if log_c is not None:
            self.formulas["log_c"] = log_c
        self.parameters = list(
            dict.fromkeys(p for formula in self.formulas.values() for p in formula.parameters)
        )
        read = {name: formula.parameters for name, formula in self.formulas.items()}
        self._slots = {k: [self.parameters.index(p) for p in own] for k, own in read.items()}

    def __str__(self) -> str:
        return "location" if self.is_location else "general"

    @property
    def is_location(self) -> bool:
        """Whether the density is C φ((y − f)²)."""
        return self.coefficients is None

    def select[T](self, name: str, parameters: Sequence[T]) -> list[T]:
        """Return the entries of ``parameters`` that the formula ``name`` depends on."""
        return [parameters[i] for i in self._slots[name]]

    # -- graphs -------------------------------------------------------------------------------

    def constants(self, y: Variable, parameters: Sequence[Variable]) -> dict[str, Variable]:
        """Return the graphs of log_c and of the given g, alpha, beta and gamma."""
        y = y.astype("float64")
        others = {name: formula for name, formula in self.formulas.items() if name != "log_phi"}
        graphs = {name: f(y, self.select(name, parameters)) for name, f in others.items()}
        if self.log_c is None:
            graphs["log_c"] = log_normalizer(self.log_phi, self.select("log_phi", parameters))
        return graphs

    def log_density(self, y: Variable, f: Variable, parameters: Sequence[Variable]) -> Variable:
        """Return the graph of log p(y | f)."""
        y = y.astype("float64")
        graphs = self.constants(y, parameters)
        phi = self.select("log_phi", parameters)
        if self.is_location:
            return graphs["log_c"] + self.log_phi((y - f) ** 2, phi)
        beta, gamma, alpha = graphs["beta"], graphs["gamma"], graphs["alpha"]
        # α − βf + γf² with its square completed: no cancellation where the square is all of it.
        least = alpha - beta**2 / (4.0 * gamma)
        least = pt.where(least < -_ROUNDING * (1.0 + pt.abs(alpha)), np.nan, pt.maximum(least, 0.0))
        r = gamma * (f - beta / (2.0 * gamma)) ** 2 + least
        return graphs["log_c"] + graphs["g"] * f + self.log_phi(r, phi)

    # -- draws --------------------------------------------------------------------------------

    def draw(
        self, rng: np.random.Generator, f: np.ndarray, parameters: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Draw y | f, all broadcast to the shape of ``f``."""
        draw = self._draw_location if self.is_location else self._draw_discrete
        return draw(rng, f, parameters)

    def _draw_location(
        self, rng: np.random.Generator, f: np.ndarray, parameters: Sequence[np.ndarray]
    ) -> np.ndarray:
        phi = self.select("log_phi", parameters)
        y = np.empty(f.shape)
        rows = np.stack([np.broadcast_to(p, f.shape) for p in phi], axis=-1) if phi else None
        for values in distinct(phi):
            here = np.ones(f.shape, bool) if rows is None else (rows == np.stack(values)).all(-1)

            def log_phi(r: np.ndarray, values: Sequence[np.ndarray] = values) -> np.ndarray:
                return self.log_phi.evaluate(r, values)

            y[here] = f[here] + ResidualDistribution(log_phi).random(rng, int(here.sum()))
        return y

    def _draw_discrete(
        self, rng: np.random.Generator, f: np.ndarray, parameters: Sequence[np.ndarray]
    ) -> np.ndarray:
        constant = [name for name, formula in self.formulas.items() if name != "log_phi"]
        if self.support is None:
            raise AugmentationError(
                "SuperGaussian in its general form cannot be simulated: expected support=, every "
                "value that y can take, and functions of y for g, alpha, beta, gamma and log_c if "
                "they depend on y, found no support; give them, for instance "
                "g=lambda y: y / 2, support=(-1, 1)"
            )
        log_mass = []
        for value in self.support:
            y = np.full(f.shape, float(value))
            at = {n: self.formulas[n].evaluate(y, self.select(n, parameters)) for n in constant}
            least = np.maximum(at["alpha"] - at["beta"] ** 2 / (4.0 * at["gamma"]), 0.0)
            r = at["gamma"] * (f - at["beta"] / (2.0 * at["gamma"])) ** 2 + least
            log_phi = self.log_phi.evaluate(r, self.select("log_phi", parameters))
            log_mass.append(at["log_c"] + at["g"] * f + log_phi)
        # The largest of independent Gumbel variables shifted by log p is at y with probability
        # p(y).
        shifted = np.stack(log_mass) + rng.gumbel(size=(len(self.support), *f.shape))
        return np.asarray(self.support)[shifted.argmax(axis=0)]


class SuperGaussianRV(RandomVariable):
    """The random variable of :class:`SuperGaussian`; its first parameter is f."""

    name = "super_gaussian"
    _print_name = ("SuperGaussian", "\\operatorname{SuperGaussian}")
    __props__ = (*RandomVariable.__props__, "family")

    def __init__(self, family: Family, **kwargs: Any) -> None:
        self.family = family
        super().__init__(**kwargs)

    def rng_fn(self, rng: np.random.Generator, f: np.ndarray, *args: Any) -> np.ndarray:
        """Draw y; see :meth:`Family.draw`."""
        *parameters, size = args
        shape = np.broadcast_shapes(np.shape(f), *map(np.shape, parameters))
        shape = shape if size is None else tuple(size)
        return self.family.draw(rng, np.broadcast_to(f, shape), parameters)


@_logprob.register(SuperGaussianRV)
def _log_density(
    op: SuperGaussianRV,
    values: Sequence[TensorVariable],
    rng: Variable,
    size: Variable,
    f: TensorVariable,
    *parameters: TensorVariable,
    **kwargs: Any,
) -> TensorVariable:
    (y,) = values
    return op.family.log_density(y, f, parameters)


class SuperGaussian(Distribution):
    r"""A likelihood stated by its φ: :math:`p(y | f) = C \exp(g f)\, φ(α − β f + γ f^2)`.

    With φ alone it is a location family, p(y | f) = C φ((y − f)²). φ must be completely
    monotone with φ(0) = 1; the constructor checks this. The likelihood is then a mixture of
    Gaussians in f, and :class:`~pymc_augconj.AugmentedGibbs` samples the model without a
    derivation of the mixture. Every PyMC function takes the distribution.

    Parameters
    ----------
    f : tensor_like
        The predictor.
    log_phi : callable
        Takes r ≥ 0 and returns log φ(r), both PyTensor tensors, elementwise. It may use variables
        of the model, which the sampler then treats as parameters of a likelihood. Write it with
        operations that also exist for complex numbers: exp, log, log1p, sqrt, cosh, powers.
    g, alpha, beta, gamma : tensor_like or callable, optional
        The general form; γ > 0. A callable takes y. If at least one is given, the others
        default to 0, 0, 0 and 1.
    log_c : tensor_like or callable, optional
        log C. The default for a location family is −log ∫ φ(e²) de, computed to 1e-13 and
        differentiable; the general form needs it.
    support : sequence of float, optional
        Every value of a discrete y in the general form; needed for random draws only.
    closed_form : bool, default False
        Look for a known family of this φ (Laplace, Student-t, Matérn, logit) when the model is
        recognised, and use its closed-form augmentation. Otherwise ω is drawn by numerical
        inversion of φ.

    Raises
    ------
    NotSuperGaussianError
        If at the initial values of the hyperparameters φ(0) ≠ 1, φ is not completely monotone, or
        there is no normaliser.

    Examples
    --------
    >>> pac.SuperGaussian("y", f, log_phi=lambda r: -pt.sqrt(r) / b, observed=y)  # doctest: +SKIP
    >>> pac.SuperGaussian(
    ...     "y",
    ...     f,
    ...     log_phi=lambda r: -pt.log(pt.cosh(pt.sqrt(r) / 2)),
    ...     g=lambda y: y / 2,
    ...     log_c=-np.log(2),
    ...     support=(-1, 1),
    ...     observed=y,
    ... )  # doctest: +SKIP

    Notes
    -----
    Residuals of a location family are drawn by inversion of their distribution function.

    References
    ----------
    Galy-Fajou, T., Wenzel, F. & Opper, M. (2020). Automated augmented conjugate inference for
    non-conjugate Gaussian process models. AISTATS.
    """

    rv_type = SuperGaussianRV

    def __new__(cls, name: str, *args: Any, **kwargs: Any) -> TensorVariable:
        try:
            return super().__new__(cls, name, *args, **kwargs)
        except NotSuperGaussianError as error:
            raise NotSuperGaussianError(
                f"variable {name!r}: {error}; use another φ, or pm.CustomDist and pm.sample's NUTS"
            ) from None
        except AugmentationError as error:
            raise type(error)(f"variable {name!r}: {error}") from None

    @classmethod
    def dist(
        cls,
        f: Any,
        *,
        log_phi: Callable[[TensorVariable], Variable],
        g: Any = None,
        alpha: Any = None,
        beta: Any = None,
        gamma: Any = None,
        log_c: Any = None,
        support: Sequence[float] | None = None,
        closed_form: bool = False,
        **kwargs: Any,
    ) -> TensorVariable:
        """Return the variable outside a model; see the class."""
        if not callable(log_phi):
            raise AugmentationError(
                f"expected log_phi to be a function of r, found {type(log_phi).__name__}; write "
                "log_phi=lambda r: …"
            )
        phi = Formula(log_phi, "log_phi")
        given = {"g": g, "alpha": alpha, "beta": beta, "gamma": gamma}
        coefficients = None
        if any(value is not None for value in given.values()):
            if log_c is None:
                raise AugmentationError(
                    "expected log_c, the logarithm of the factor that makes p(y | f) sum to one; "
                    "it is computed for location families alone, found the general form without it"
                )
            full = {k: COEFFICIENTS[k] if v is None else v for k, v in given.items()}
            coefficients = {name: Formula(value, name) for name, value in full.items()}
        constant = None if log_c is None else Formula(log_c, "log_c")
        family = Family(phi, coefficients, constant, support, closed_form)
        values = initial_values(phi.parameters)
        check_phi(phi, values)
        if coefficients is None and log_c is None:
            check_integrable(phi, values)
        return super().dist([pt.as_tensor(f), *family.parameters], family=family, **kwargs)

    @classmethod
    def rv_op(
        cls,
        f: TensorVariable,
        *parameters: TensorVariable,
        family: Family,
        size: Any = None,
        rng: Any = None,
        **kwargs: Any,
    ) -> TensorVariable:
        """Return the random variable's node."""
        discrete = family.support is not None and np.asarray(family.support).dtype.kind in "iu"
        signature = ",".join(["()"] * (1 + len(parameters))) + "->()"
        dtype = "int64" if discrete else "float64"
        op = SuperGaussianRV(family=family, signature=signature, dtype=dtype)
        rng = pt.random.shared_rng(seed=None) if rng is None else rng
        return op(f, *parameters, size=size, rng=rng, return_next_rng=True, **kwargs)[1]

    def support_point(
        rv: TensorVariable, size: Any, f: TensorVariable, *parameters: TensorVariable
    ) -> TensorVariable:
        """Return f, or the first value of a discrete y."""
        family = rv.owner.op.family
        point = f if family.is_location else pt.zeros_like(f)
        if family.support is not None:
            point = pt.full_like(f, family.support[0])
        point = pt.broadcast_arrays(point, *parameters)[0]
        return point if rv_size_is_none(size) else pt.full(size, point)
