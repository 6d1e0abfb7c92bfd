"""The contract between a likelihood and the rest of the package: arrays of P predictors, (P, N).

A likelihood of several predictors is a :class:`MultiLikelihood`, or without an augmentation a
:class:`MultiDensity`. :func:`lift` lifts the formulas of one predictor, see :mod:`.base`.

**Groups.** The Gibbs sampler draws the predictors of one *group* together, given the other groups.
With η_g the predictors of group g, ω_g is an auxiliary variable for which

    log p(y, ω_g | η) = h_gᵀ η_g − ½ η_gᵀ Λ_g η_g + log_base,

where h_g, Λ_g and log_base may depend on the other predictors, but not on η_g. A step goes through
the groups in order, and draws ω_g immediately before η_g, given the current predictors. The ω of
other groups are integrated out, so that ω_g is invalid once another group has moved. Coordinate
ascent goes through the groups in the same way.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np

from pymc_augconj.quadrature.tilted import SiteDensity, Tilted, check_cavities, tilted_moments
from pymc_augconj.typing import Array, Generator, Index

from .base import Density, DensityLikelihood, Expected, Likelihood, Params, Sites


@dataclass(frozen=True)
class Traits:
    """Facts about the formulas of a likelihood, for the engines.

    Attributes
    ----------
    coupled : bool
        Whether sites have Λ as blocks, (P, P, N), instead of its diagonal, (P, N).
    factorises : bool
        Whether ``expected_log_density`` is for independent predictors: it ignores covariances, and
        the variational Gaussian is mean-field across predictors.
    expected_by_rule : bool
        Whether ``expected_log_density`` is a quadrature, not a closed form.
    propagates : bool
        Whether ``propagated_sites`` gives the held sites: for a density with a step, which
        variational sites approximate badly.
    is_bounded : bool
        Whether log p is bounded below: an observation far on the wrong side then has no gradient,
        so that fits increase the weight of the observations gradually.
    has_gradient : bool
        Whether there is a ``log_density_and_gradient``; set automatically.
    """

    coupled: bool = False
    factorises: bool = False
    expected_by_rule: bool = False
    propagates: bool = False
    is_bounded: bool = False
    has_gradient: bool = False


class MultiDensity(Density):
    """One observation model of P predictors, known by its density."""

    traits: Traits = Traits()
    #: K, if y is a class 0, …, K − 1, or counts of classes; None otherwise.
    n_classes: int | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        names = [trait.name for trait in fields(Traits)]
        own: dict[str, bool] = {name: vars(cls)[name] for name in names if name in vars(cls)}
        if own:
            warnings.warn(
                f"{cls.__name__}: state {', '.join(own)} as traits = pac.Traits(…) instead; class "
                "attributes of these names will not be read any more",
                FutureWarning,
                stacklevel=2,
            )
        if "log_density_and_gradient" in vars(cls):
            own["has_gradient"] = True
        cls.traits = replace(cls.traits, **own)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The predictors that one Gaussian move draws together, in the order of the moves."""
        return (tuple(range(self.n_predictors)),)

    def log_density_and_gradient(self, y: Array, eta: Array, params: Params) -> tuple[Array, Array]:
        """Return log p(y | η), shape (N,), and an approximation of its gradient, (P, N)."""
        raise NotImplementedError(f"{self.name} has no gradient")

    def expected_log_density_apart(
        self, y: Array, mean: Array, var: Array, params: Params
    ) -> Expected | None:
        """Return :meth:`expected_log_density` of independent predictors, by their variances.

        All arrays but the value have shape (P, N). None without a closed form.
        """
        cov = np.einsum("pq,pn->pqn", np.eye(len(mean)), var)
        found = self.expected_log_density(y, mean, cov, params)
        return None if found is None else (*found[:2], np.einsum("ppn->pn", found[2]))

    def expected_with_gradient(
        self, y: Array, mean: Array, var: Array, params: Params
    ) -> tuple[Array, Array] | None:
        """Return the expectation for independent predictors and its derivative by their means.

        A sampler calls it at every evaluation, so that its quadrature rule may be cheaper
        than the rule of fits. None if there is neither a rule nor a closed form.
        """
        if self.traits.expected_by_rule:
            return None
        found = self.expected_log_density_apart(y, mean, var, params)
        return None if found is None else found[:2]

    def expected_roughly(
        self, y: Array, mean: Array, cov: Array, params: Params
    ) -> Expected | None:
        """Return :meth:`expected_log_density` with few digits, which suffice for held sites.

        None if that method is cheap enough.
        """
        return None

    def propagated_sites(
        self,
        y: Array,
        mean: Array,
        cov: Array,
        residual_var: Array,
        sites: tuple[Array, Array],
        params: Params,
    ) -> tuple[Array, Array]:
        """Return the sites by which expectation propagation replaces ``sites``.

        ``mean`` (P, N) and ``cov`` (P, P, N) are moments of the predictors under the approximation
        that contains ``sites``, (P, N) and (P, P, N). The log density is E log p(y | η + e) with
        e ~ N(0, ``residual_var``), (P, N). The new Λ has no negative eigenvalues.
        """
        raise NotImplementedError(f"{self.name} has no sites by expectation propagation")

    def class_probabilities(self, eta: Array, params: Params) -> Array | None:
        """Return the probability of each class, shape (K, …), or None if y is not a class."""
        if self.n_classes is None:
            return None
        classes = [np.float64(k) for k in range(self.n_classes)]
        return np.exp([self.log_density(np.array(k), eta, params) for k in classes])

    def class_probabilities_apart(self, mean: Array, var: Array, params: Params) -> Array:
        """Return the expected probabilities, (K, N), under independent normal predictors, (P, N).

        Likelihoods of classes with ``factorises`` have them.
        """
        raise NotImplementedError(f"{self.name} has no class probabilities of normal predictors")


class MultiLikelihood(MultiDensity):
    """One observation model of P predictors, augmented; see the module's docstring."""

    can_augment = True
    has_auxiliary = True

    @abstractmethod
    def draw_auxiliary(
        self, rng: Generator, y: Array, eta: Array, params: Params, group: int
    ) -> Any:
        """Draw ω_g ~ p(ω_g | y, η) exactly, given all predictors, shape (P, N)."""

    @abstractmethod
    def sites(self, y: Array, omega: Any, params: Params, eta: Array, group: int) -> Sites:
        """Return (h_g, Λ_g); of ``eta``, shape (P, N), only the other groups' rows may be read."""

    @abstractmethod
    def expected_sites(self, y: Array, mean: Array, var: Array, params: Params) -> Sites:
        """Return E[(h, Λ)] of all predictors under the optimal q(ω) when η ~ N(mean, var).

        ``var`` has the shape of Λ: variances, or covariances where predictors are coupled.
        """

    @abstractmethod
    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        """Return the site's part of the evidence lower bound, see :class:`.base.Likelihood`.

        Its derivatives are the expected sites, ∂/∂m = h − Λm and ∂/∂V = −½Λ.
        """

    @abstractmethod
    def log_base(self, y: Array, omega: Any, params: Params, eta: Array, group: int) -> Array:
        """Return log p(y, ω_g | η) − (h_gᵀη_g − ½ η_gᵀΛ_g η_g), shape (N,)."""

    @abstractmethod
    def log_conditional(
        self, omega: Any, y: Array, eta: Array, params: Params, group: int
    ) -> Array:
        """Return log p(ω_g | y, η), the density that :meth:`draw_auxiliary` draws from."""

    def as_vectors(self, params: Params) -> tuple[Array, list[list[Any]], Any] | None:
        """Return (y, Λ, c) where log p(y | η) = c − ½ (y − η)ᵀΛ(y − η), by arithmetic alone.

        y has the shape (P, N), and entries of Λ that of a parameter. None for other likelihoods.
        """
        return None

    def as_normal_components(self, y: Array, params: Params) -> list[tuple[Any, ...]] | None:
        """Return (p, z, c, a) of every k where p(y | η) = Σ_k exp(a_k − ½ c_k (z_k − η_p)²).

        p is the predictor of component k. None for other likelihoods.
        """
        return None


# Facts and functions without an axis of predictors.
_WITHOUT_AXIS = (
    *("name", "link", "augmentation", "can_augment", "has_auxiliary", "is_normalized", "discrete"),
    *("prefers_held", "levels", "has_observations", "why_no_bound", "unpredictable", "check"),
    *("bounds", "landmarks", "tilted_moments", "predictive_moments", "log_predictive"),
    *("as_normal", "as_logistic", "as_normal_mixture", "as_tilted_laplace", "joint", "is_positive"),
    "check_augmentation",
)


class Lifted(MultiLikelihood):
    """A likelihood of one predictor, with an axis of predictors of length one."""

    def __init__(self, formulas: DensityLikelihood) -> None:
        # Cast, because engines call methods of an augmentation only if there is one.
        self.formulas = cast(Likelihood, formulas)
        for name in _WITHOUT_AXIS:
            setattr(self, name, getattr(formulas, name))

    @property
    def has_moments(self) -> bool:
        return self.formulas.has_moments

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        return self.formulas.log_density(y, eta[0], params)

    def expected_log_density(
        self, y: Array, mean: Array, var: Array, params: Params
    ) -> Expected | None:
        found = self.formulas.expected_log_density(y, mean[0], var[0, 0], params)
        return None if found is None else (found[0], found[1][None], found[2][None, None])

    def caution(self, y: Array, prior_mean: Array, params: Params) -> str | None:
        return self.formulas.caution(y, prior_mean[0], params)

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array] | None:
        return self.formulas.moments(eta[0], params)

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        return self.formulas.cdf(y, eta[0], params)

    def draw_auxiliary(
        self, rng: Generator, y: Array, eta: Array, params: Params, group: int
    ) -> Any:
        return self.formulas.draw_auxiliary(rng, y, eta[0], params)

    def sites(self, y: Array, omega: Any, params: Params, eta: Array, group: int) -> Sites:
        h, lam = self.formulas.sites(y, omega, params)
        return h[None], lam[None]

    def expected_sites(self, y: Array, mean: Array, var: Array, params: Params) -> Sites:
        h, lam = self.formulas.expected_sites(y, mean[0], var[0], params)
        return h[None], lam[None]

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        return self.formulas.expected_log_bound(y, mean[0], var[0], params)

    def log_base(self, y: Array, omega: Any, params: Params, eta: Array, group: int) -> Array:
        return self.formulas.log_base(y, omega, params)

    def log_conditional(
        self, omega: Any, y: Array, eta: Array, params: Params, group: int
    ) -> Array:
        return self.formulas.log_conditional(omega, y, eta[0], params)


def lift(likelihood: Density) -> MultiLikelihood:
    """Return a likelihood with arrays of shape (P, N)."""
    if isinstance(likelihood, DensityLikelihood):
        return Lifted(likelihood)
    # Cast as above.
    return cast(MultiLikelihood, likelihood)


# Number of observations from which equal ones are looked for; how many there have to be of each on
# average; and the difference of cavities that are the same, in standard deviations.
_MANY, _FEW, _SAME = 250, 4, 1e-11


@dataclass(frozen=True)
class LikelihoodDensity:
    """The :class:`.SiteDensity` of a likelihood of one predictor, with its observations."""

    likelihood: Density
    y: Array
    params: Params

    def __post_init__(self) -> None:
        if self.likelihood.n_predictors != 1:
            raise ValueError(
                f"expected a likelihood of one predictor, got {self.likelihood.name} with "
                f"{self.likelihood.n_predictors}; a site's moments are integrals over one η: use "
                'method="cavi" or the Gibbs sampler'
            )
        object.__setattr__(self, "likelihood", lift(self.likelihood))

    @property
    def size(self) -> int:
        """N, the number of observations."""
        return self.y.size

    @property
    def landmarks(self) -> Array:
        """See :class:`~pymc_augconj.quadrature.tilted.SiteDensity`."""
        marks = self.likelihood.landmarks(self.y, self.params)
        return np.broadcast_to(marks, (len(marks), self.size))

    def __call__(self, eta: Array, sites: Index) -> Array:
        """See :class:`~pymc_augconj.quadrature.tilted.SiteDensity`."""
        params = select_params(self.params, sites, self.size)
        return self.likelihood.log_density(self.y[sites], eta[None], params)


def site_moments(
    density: SiteDensity,
    cavity_mean: Array,
    cavity_var: Array,
    *,
    power: float = 1.0,
    higher: bool = False,
    delta: bool = False,
) -> Tilted:
    """Return the tilted moments by the likelihood's closed form, if it exists, or by quadrature.

    Arguments and errors are those of :func:`~pymc_augconj.quadrature.tilted.tilted_moments`. Equal
    observations with equal cavities are integrated once.
    """
    if isinstance(density, LikelihoodDensity) and density.size >= _MANY:
        first, inverse = _distinct(density, cavity_mean, cavity_var)
        if first.size * _FEW <= density.size:
            params = select_params(density.params, first, density.size)
            found = site_moments(
                LikelihoodDensity(density.likelihood, density.y[first], params),
                cavity_mean[first], cavity_var[first], power=power, higher=higher, delta=delta,
            )  # fmt: skip
            values = {each.name: getattr(found, each.name) for each in fields(found)}
            arrays: Any = {k: v[inverse] for k, v in values.items() if isinstance(v, np.ndarray)}
            return Tilted(**arrays)
    if isinstance(density, LikelihoodDensity) and not higher:
        check_cavities(cavity_mean, cavity_var)
        moments = density.likelihood.tilted_moments(
            density.y, cavity_mean, cavity_var, density.params, power=power, delta=delta
        )
        if moments is not None:
            return moments
    return tilted_moments(density, cavity_mean, cavity_var, power=power, higher=higher, delta=delta)


def _distinct(
    density: LikelihoodDensity, cavity_mean: Array, cavity_var: Array
) -> tuple[Index, Index]:
    """Return one of each group of equal observations and cavities, and the group of each."""
    varying = select_params(density.params, np.arange(density.size), density.size).values()
    # Equal cavities differ by the rounding of how they were computed.
    rows = (row for v in varying if np.ndim(v) for row in np.reshape(v, (-1, np.shape(v)[-1])))
    mean = np.rint(cavity_mean / np.sqrt(cavity_var) / _SAME)
    columns = [mean, np.rint(np.log(cavity_var) / _SAME), density.y, *rows]
    first, inverse = np.zeros(1, dtype=np.intp), np.zeros(density.size, dtype=np.intp)
    for column in columns:
        own, values = np.unique(column, return_inverse=True)
        codes = inverse * own.size + values.ravel()
        _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        if first.size * _FEW > density.size:
            break
    return first, inverse


def select_params(params: Params, sites: Index, size: int) -> dict[str, Array]:
    """Return the parameters of the chosen sites; one shared by all sites is unchanged."""
    chosen = {}
    for name, value in params.items():
        value = np.asarray(value)
        varies = value.ndim > 0 and value.shape[-1] == size and size > 1
        chosen[name] = value[..., sites] if varies else value
    return chosen


def params_at_nodes(params: Params, sites: Index, size: int) -> dict[str, Array]:
    """Return the parameters of the chosen sites, to broadcast against several nodes of each."""
    chosen = select_params(params, sites, size)
    return {name: value[..., None] if value.ndim else value for name, value in chosen.items()}
