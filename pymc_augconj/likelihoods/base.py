"""Likelihoods of one predictor.

A :class:`DensityLikelihood` is one observed variable's density log p(y | η), which is enough for
engines that integrate over one site at a time. A :class:`Likelihood` also has an
auxiliary variable ω, given which every observation becomes a Gaussian *site*

    log p(y, ω | η) = h(ω) η − ½ λ(ω) η² + log_base(y, ω),        ω | y, η  drawn exactly.

The rest of the package sees these formulas through :mod:`.contract`. The contract test checks, for
every likelihood with an ω, that log p(y, ω | η) − log p(ω | y, η) equals log p(y | η).

``y``, ``eta``, ``h`` and ``lam`` are float64 arrays of shape (N,); entries of ``params`` are
float64 too and broadcast against (N,). ω is an array of shape (N,), a tuple of such arrays, or
None.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from pymc_augconj.errors import AugmentationError
from pymc_augconj.quadrature.tilted import Tilted
from pymc_augconj.typing import Array, Generator, Mask

from .pattern import Pattern

Params = Mapping[str, Array]
#: h and λ of Gaussian sites.
Sites = tuple[Array, Array]
#: An expectation, and its derivatives by the means and (co)variances of predictors.
Expected = tuple[Array, Array, Array]
# Nodes and weights of Gauss–Legendre quadrature on (0, 1).
_LEGENDRE = tuple(0.5 * part for part in np.polynomial.legendre.leggauss(40))
_LEGENDRE = (_LEGENDRE[0] + 0.5, _LEGENDRE[1])


def refusal(y: Array, good: Mask, expected: str) -> str | None:
    """Return "expected …, found … at position …" for the first y not ``good``, or None.

    Comparisons with NaN are false, so that ``good`` also excludes NaN.
    """
    bad = np.flatnonzero(~good)
    if bad.size == 0:
        return None
    return f"expected {expected}, found {y[bad[0]]:.12g} at position {bad[0]}"


def is_count(y: Array) -> Mask:
    """Return whether each y is a non-negative integer."""
    return (y >= 0) & (y < np.inf) & (y == np.floor(y))


def are_vectors(params: Params) -> bool:
    """Return whether observations are vectors, whose entries are parameters; y is their sum."""
    return "entry_0" in params


def refuse_classes(y: Array, n_classes: int) -> str | None:
    """Return the fault of y as classes 0, …, n_classes − 1, or None."""
    top = n_classes - 1
    return refusal(y, is_count(y) & (y <= top), f"a class from 0 to {top}")


class Density(ABC):
    """The density of one observed variable, for any number of predictors.

    η has shape (N,) in a :class:`DensityLikelihood`, which is of one predictor, and (P, N) in a
    :class:`~.contract.MultiDensity`. Only :meth:`log_density` is required; the other methods are
    optional closed forms.
    """

    #: Its name in reports and messages, for instance ``"Bernoulli"``.
    name: str
    #: The link in reports and messages, for instance ``"logit"``.
    link: str = "identity"
    #: The auxiliary variable in reports, for instance ``"Pólya–Gamma PG(1, η)"``.
    augmentation: str = "none"
    #: Whether there is an augmentation; without one the Gibbs sampler and CAVI refuse.
    can_augment: bool = False
    #: Its spellings in a model.
    patterns: tuple[Pattern, ...]
    #: P, the number of predictors that one observation depends on.
    n_predictors: int = 1
    #: See :class:`Likelihood`.
    has_auxiliary: bool = False
    #: Whether there is an ω, and held sites are better, as the compiled loop does not draw it.
    prefers_held: bool = False
    #: False for a pseudo-likelihood, whose density does not sum to one over y.
    is_normalized: bool = True
    #: Whether y takes integer values only.
    discrete: bool = False
    #: Positive parameters whose logarithm moves against the location of a predictor, with its
    #: number: the data determine their product better than either.
    levels: Mapping[str, int] = MappingProxyType({})
    #: Parameters that move with the location of the predictor without changing the density.
    cutpoints: tuple[str, ...] = ()
    #: False for a prior between bounds, whose density is zero outside.
    is_positive: bool = True
    #: False for a potential, whose y is only the number of an entry's term.
    has_observations: bool = True
    #: Reason why coordinate ascent has no bound, with an alternative; None if it has one.
    why_no_bound: str | None = None
    #: Reason why y cannot be predicted, with an alternative; None if it can.
    unpredictable: str | None = None

    def label(self, name: str) -> str:
        """Return the description of variable ``name`` for messages."""
        return f"{'observed variable' if self.has_observations else 'potential'} {name!r}"

    def check(self, y: Array, params: Params) -> str | None:
        """Return a message about the first value out of range, or None if all are valid.

        It checks ``y``, and the augmentation's requirements on the parameters; PyMC checks all
        other parameters. The default accepts every finite y.
        """
        return refusal(y, np.isfinite(y), "a finite number")

    def check_augmentation(self, params: Params) -> str | None:
        """Return the reason why these parameters have no ω; None, the default, if they have one."""
        return None

    @abstractmethod
    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        """Return log p(y | η), shape (N,), normalised, ω integrated out; arguments broadcast."""

    def expected_log_density(
        self, y: Array, mean: Array, var: Array, params: Params
    ) -> Expected | None:
        """Return E[log p(y | η)], η ~ N(mean, var), and its derivatives by mean and by var.

        For several predictors ``var`` is their covariance, (P, P, N); the derivative D by it is
        symmetric, d E = Σ_pq D_pq dV_pq. None, the default, if there is no closed form: engines
        then integrate :meth:`log_density` numerically, which converges slowly if log p has a kink.
        """
        return None

    @property
    def has_moments(self) -> bool:
        """Whether :meth:`moments` has formulas."""
        return type(self).moments is not Density.moments

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array] | None:
        """Return E[y | η] and Var[y | η]; NaN or infinite if they do not exist.

        None, the default, if there is no formula: the moments are then integrals over y.
        """
        return None

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        """Return P(Y ≤ y | η); arguments broadcast."""
        raise AugmentationError(
            f"expected a distribution with a distribution function, which quantiles of y need, "
            f"found {self.name}; ask for its mean and standard deviation, or for log densities "
            "(ynew=…)"
        )

    def caution(self, y: Array, prior_mean: Array, params: Params) -> str | None:
        """Return a warning about the error of a Gaussian approximation, or None.

        The default detects a posterior that is symmetric in one predictor because both the density
        and the prior are, where the density is not highest at their centre; ``prior_mean`` is the
        predictors' prior mean, of η's shape.
        """
        if self.n_predictors > 1 or np.any(prior_mean):
            return None
        rises = False
        for eta in (0.5, 1.0, 2.0):
            here, there, centre = (
                self.log_density(y, np.full(prior_mean.shape, value), params)
                for value in (eta, -eta, 0.0)
            )
            if not np.array_equal(here, there):
                return None
            rises = rises or bool(np.any(here > centre))
        if not rises:
            return None
        return (
            "the prior mean of its predictor is zero and its density is the same for η and −η, so "
            "that the posterior may be bimodal (±η), while a Gaussian approximation captures one "
            "mode; give the process a non-zero mean_func, or add a constant"
        )

    # -- one predictor: all arrays are of shape (N,) ------------------------------------------

    def bounds(self, params: Params) -> tuple[Array, Array] | None:
        """Return the bounds of a censored y: a probability at each, a density between them.

        An infinite bound means no censoring on its side. None, the default, if y is not censored.
        """
        return None

    def landmarks(self, y: Array, params: Params) -> Array:
        """Return values of η to integrate around, at which p(y | η) may be narrow or not smooth.

        Of shape (L, N). The default is y for the identity link, and none for other links.
        """
        return y[None] if self.link == "identity" else np.empty((0, y.size))

    def tilted_moments(
        self, y: Array, mean: Array, var: Array, params: Params, *, power: float, delta: bool
    ) -> Tilted | None:
        """Return the moments of p(y | η)^power N(η | mean, var), or None without a closed form.

        ``delta`` requests δ of quantile propagation too. None, the default, means quadrature.
        """
        return None

    def predictive_moments(
        self, mean: Array, var: Array, params: Params
    ) -> tuple[Array, Array] | None:
        """Return E[y] and Var[y] for η ~ N(mean, var), or None without a closed form."""
        return None

    def log_predictive(self, y: Array, mean: Array, var: Array, params: Params) -> Array | None:
        """Return log E[p(y | η)] for η ~ N(mean, var), or None without a closed form."""
        return None

    def as_normal(self, y: Array, params: Params) -> tuple[Array, Array] | None:
        """Return (z, c) if p(y | η) is proportional to N(z | η, 1/c), with z free of parameters.

        Then sites are exactly (c z, c), and learning the noise level takes no pass over the
        observations. None for every other likelihood.
        """
        return None

    def as_logistic(self, y: Array, params: Params) -> tuple[Array, Array] | None:
        """Return (a, b) if p(y | η) is proportional to exp(a η) / (1 + exp η)ᵇ.

        Then ω ~ PG(b, η), sites are (a − ½ b, ω), and observations of one predictor can be summed.
        None for every other likelihood.
        """
        return None

    def as_normal_mixture(self, y: Array, params: Params) -> tuple[Array, Array] | None:
        """Return (a, r) if y ~ N(η, 1/ω) with ω ~ Gamma(a, r).

        Then ω ~ Gamma(a + ½, r + ½ (y − η)²), and sites are (ω y, ω). None for other likelihoods.
        """
        return None

    def as_tilted_laplace(self, y: Array, params: Params) -> tuple[Any, Any, Any] | None:
        """Return (a, d, c) if log p(y | η) = c − a |y − η| − d (y − η).

        Then ω ~ InverseGaussian(a / |y − η|, a²), and sites are (ω y + d, ω). None for others.
        """
        return None

    def joint(self, write: JointWriter, y: Any, eta: Any, params: Mapping[str, Any]) -> Joint:
        """Write ω as a model's variable and return it with log p(y | ω, η), for ``pac.augment``.

        ``write`` makes variables of a model; the other arguments are such variables. The log
        densities of ω and of y given ω add up to log p(y, ω | η).
        """
        raise NotImplementedError(f"{self.name} has no auxiliary variable to be written")


class DensityLikelihood(Density):
    """A likelihood of one predictor, given by its density; no augmentation is required.

    It suffices for the engines ``"vgp"``, ``"ep"``, ``"qp"`` and ``"svi"``, and for held sites.
    """


class Likelihood(DensityLikelihood):
    """A likelihood of one predictor with an augmentation; see the module's docstring."""

    can_augment = True
    #: False where the site is exact without an auxiliary variable (the normal likelihood): the
    #: likelihood's parameters can then be sampled with the latents integrated out.
    has_auxiliary = True

    @abstractmethod
    def draw_auxiliary(self, rng: Generator, y: Array, eta: Array, params: Params) -> Any:
        """Draw ω ~ p(ω | y, η) exactly."""

    @abstractmethod
    def sites(self, y: Array, omega: Any, params: Params) -> Sites:
        """Return (h, λ) of the Gaussian sites given ω, each of η's shape."""

    @abstractmethod
    def expected_sites(self, y: Array, mean: Array, var: Array, params: Params) -> Sites:
        """Return E[(h, λ)] under the optimal q(ω) when η ~ N(mean, var): the CAVI update."""

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        """Return E[log p(y, ω | η) − log q(ω)] under the optimal q(ω) when η ~ N(mean, var), (N,).

        It is log ∫ exp(h(ω) m − ½ λ(ω) (m² + v) + log_base(y, ω)) dω, the site's part of the
        evidence lower bound: log p(y | m) where v = 0, at most E[log p(y | η)] elsewhere, with
        the expected sites as its derivatives, ∂/∂m = h − λm and ∂/∂v = −½λ. The
        default integrates the second derivative,

            bound(m, v) = log p(y | m) − ∫₀¹ t Σ λ(m, t²v) v dt.
        """
        # Gauss–Legendre in the standard deviation, in which even a kink of log p gives a smooth λ.
        bound = np.array(self.log_density(y, mean, params), dtype=float)
        for node, weight in zip(*_LEGENDRE, strict=True):
            lam = self.expected_sites(y, mean, node**2 * var, params)[1]
            bound -= weight * node * (lam * var)
        return bound

    @abstractmethod
    def log_base(self, y: Array, omega: Any, params: Params) -> Array:
        """Return log p(y, ω | η) − (h η − ½ λ η²), which is free of η; shape (N,)."""

    @abstractmethod
    def log_conditional(self, omega: Any, y: Array, eta: Array, params: Params) -> Array:
        """Return log p(ω | y, η), the density that :meth:`draw_auxiliary` draws from."""

    def joint(self, write: JointWriter, y: Any, eta: Any, params: Mapping[str, Any]) -> Joint:
        """See :meth:`Density.joint`; the default is numerical, for an ω that is one array.

        ω ~ p(ω | y, η = 0),    log p(y | η = 0) + h(ω) η − ½ λ(ω) η².
        """
        names = tuple(params)

        def named(values: tuple[Array, ...]) -> Params:
            return dict(zip(names, values, strict=True))

        def logpdf(omega: Array, y: Array, *values: Array) -> Array:
            return self.log_conditional(omega, y, np.zeros(np.shape(y)), named(values))

        def random(rng: Generator, shape: tuple[int, ...], y: Array, *values: Array) -> Array:
            at = np.broadcast_to(y, shape)
            return self.draw_auxiliary(rng, at, np.zeros(shape), named(values))

        def log_factor(y: Array, eta: Array, omega: Array, *values: Array) -> Array:
            own = named(values)
            h, lam = self.sites(y, omega, own)
            return self.log_density(y, np.zeros(np.shape(y)), own) + h * eta - 0.5 * lam * eta**2

        omega = write.numerical(
            "omega", "Auxiliary", logpdf, random, [y, *params.values()], positive=False
        )
        return [omega], lambda y, eta, omega, params: write.evaluate(
            log_factor, y, eta, omega, *params.values()
        )


#: The auxiliary variables in the order in which they are written, and log p(y | ω, η), a function
#: of y, η, each auxiliary variable, and the parameters by name.
Joint = tuple[Sequence[Any], Callable[..., Any]]


class JointWriter(Protocol):
    """Writes auxiliary variables with the shape of y into a model.

    Every method returns the new variable; ``name`` is appended to the name of y.
    """

    @property
    def math(self) -> Any:
        """A module with NumPy's elementwise functions and ``gammaln``, for variables."""

    def gamma(self, name: str, shape: Any, rate: Any) -> Any:
        """Write a gamma variable."""

    def inverse_gamma(self, name: str, shape: Any, scale: Any) -> Any:
        """Write an inverse gamma variable."""

    def normal(self, name: str, mean: Any, std: Any, start: Any) -> Any:
        """Write a normal variable with initial value ``start``."""

    def poisson(self, name: str, rate: Any) -> Any:
        """Write a Poisson variable."""

    def polya_gamma(self, name: str, h: Any) -> Any:
        """Write a PG(h, 0) variable."""

    def numerical(
        self,
        name: str,
        distribution: str,
        logpdf: Callable[..., Array],
        random: Callable[..., Array],
        parameters: Sequence[Any],
        *,
        positive: bool,
    ) -> Any:
        """Write a variable whose density NumPy computes, without derivatives.

        ``logpdf`` is ``(value, *parameters)``, which broadcast, ``random`` is ``(rng, shape,
        *parameters)``; a graph of the model shows ``distribution``. With ``positive`` the support
        is the positive half-line.
        """

    def evaluate(self, function: Callable[..., Array], *arguments: Any) -> Any:
        """Return an elementwise NumPy function of variables, without derivatives."""
