"""A recognised model in terms of NumPy arrays: the interface between recognition and engines.

Recognition, which produces a :class:`LatentGaussianModel`, knows no algorithm; engines, which use
it, know no PyTensor graph. In symbols, with θ the hyperparameters,

    u_b ~ N(0, K_b(θ))                       latent blocks (innovations)
    η   = offset(θ) + Σ_b A_b(θ) u_b         predictors of all sites, stacked, shape (n,)
    y_s ~ p_s(y | η_s, params_s(θ))          one site per observed variable

θ is passed as a *point*: a mapping from the names of PyMC's value variables (``"ls_log__"``) to
arrays on PyMC's unconstrained scale. A point may hold more than a function needs. Arguments that
are no entries of PyMC's point have an :class:`Argument` as their key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from pymc_augconj.typing import Array, Index

from .errors import AugmentationError, NotSuperGaussianError
from .likelihoods.base import DensityLikelihood
from .likelihoods.several import MultiDensity, MultiLikelihood, as_several
from .linalg.linear_map import LinearMap
from .linalg.sparse import SymmetricPattern, find_pattern

__all__ = [
    "Argument",
    "FixedValue",
    "ForwardVariable",
    "Hyperparameter",
    "Key",
    "LatentBlock",
    "LatentGaussianModel",
    "Point",
    "PointMap",
    "ProcessPrior",
    "Site",
]


class Argument(NamedTuple):
    """The key of an argument of a function of the point that is no entry of PyMC's point.

    PyMC lets a variable have any string for its name, so that no string is free for these.
    ``Argument("value", name)`` is the flat value of the latent block ``name`` (of a whitened
    block its innovation), which prior means and forward variables are functions of.
    """

    role: str
    of: str = ""


Key = str | Argument
# Keys are a Key. A Mapping is invariant in its keys, so that one from str would be no mapping from
# Key for mypy, nor the other way round.
Point = Mapping[Any, np.ndarray]


class PointMap[T](Protocol):
    """A function of a point that knows which of its entries it reads."""

    @property
    def names(self) -> tuple[Key, ...]:
        """The keys of the point that the value depends on; empty for a constant."""
        ...

    def __call__(self, point: Point) -> T:
        """Evaluate at ``point``."""
        ...


@dataclass(frozen=True)
class FixedValue:
    """The :class:`PointMap` of a value that does not depend on the point."""

    value: Array
    names: tuple[Key, ...] = ()

    def __call__(self, point: Point) -> Array:
        """Return the value."""
        return self.value


@dataclass(frozen=True)
class LatentBlock:
    """One Gaussian variable of the user's model, as its innovation u ~ N(0, K(θ)).

    Attributes
    ----------
    name : str
        The variable the user sees: ``"f"`` for both forms of ``gp.prior``.
    value_name : str
        Its entry in PyMC's point: ``"f_rotated_"`` where PyMC's free variable is whitened.
    form : str
        For printed tables: ``"GP (whitened)"``, ``"multivariate normal"``, ``"normal"``.
    shape : tuple of int
        Shape of the entry in the point.
    size : int
        Length of one independent copy of u; K is (size, size).
    copies : int
        Number of independent copies that share K (``gp.prior(n_outputs=2)``).
    whitened : bool
        True where the point holds v with u = chol(K) v; otherwise it holds mean(θ, …) + u.
    kind : str
        Structure of its covariance, which determines what ``scale`` returns: ``"dense"`` K, shape
        (size, size); ``"factor"`` its lower Cholesky factor, of that shape; ``"diagonal"`` standard
        deviations, shape (copies·size,); ``"standard"`` likewise, ones at every θ;
        ``"precision"`` entries of Q = K⁻¹, shape (E,), and for W random walks the precisions of
        their first values, (E + W,). See :mod:`pymc_augconj.latents.registry`.
    scale : PointMap
    scale_pullback : callable, optional
        ``(point, G) -> {name: derivative}``: the derivative of ⟨G, scale(θ)⟩ with respect to the
        entries of the point in ``scale.names``.
    mean : PointMap, optional
        Prior mean of the value, flattened, as a function of θ and of the values of other blocks;
        None where it is zero.
    entries : ndarray of int, shape (2, E), optional
        For ``"precision"``: rows and columns of the entries of Q, in both triangles.
    log_factor : callable, optional
        ``point -> (value, {name: derivative})`` of the log ratio between the user's density and
        the normal one, where that depends on θ; it is part of ``log_prior``. None otherwise.
    log_peak : PointMap, optional
        For ``"precision"``: the normal log density at its mean, by the user's own formula, which
        has digits where log|Q| as the entries tell it has none.
    """

    name: str
    value_name: str
    form: str
    shape: tuple[int, ...]
    size: int
    copies: int
    whitened: bool
    kind: str
    scale: PointMap[Array]
    scale_pullback: Callable[[Point, Array], dict[str, Array]] | None = None
    mean: PointMap[Array] | None = None
    entries: Index | None = None
    log_factor: Callable[[Point], tuple[float, dict[str, Array]]] | None = None
    log_peak: PointMap[Array] | None = None

    @property
    def total_size(self) -> int:
        """Number of latent values."""
        return self.size * self.copies

    @cached_property
    def sparsity(self) -> SymmetricPattern:
        """Where the entries of Q stand, and in which order it is factorised."""
        assert self.entries is not None  # asked for by the kind "precision" alone
        return find_pattern(self.size, *self.entries)

    @cached_property
    def _entry_at(self) -> Index:
        """Which of the entries stands at each place of the flat Q; their number where none."""
        assert self.entries is not None
        rows, cols = self.entries
        lower = np.flatnonzero(rows >= cols)
        found = np.full(self.sparsity.n_flat, rows.size)
        found[self.sparsity.positions(rows[lower], cols[lower])] = lower
        return found

    def flat_precision(self, array: Array) -> Array:
        """Return Q, flat, given what ``scale`` gives."""
        return np.append(array, 0.0)[self._entry_at]


@dataclass(frozen=True)
class Site:
    """One observed variable or potential.

    Attributes
    ----------
    name : str
        The observed variable or potential.
    likelihood : DensityLikelihood or MultiDensity
        Its density and augmentation, as its file has them.
    size : int
        Number of observations.
    rows : slice
        The rows of its predictors in the stacked η, one predictor after the other.
    y : PointMap
        The observations, float64, shape (size,); reads shared data, never the point.
    params : PointMap
        The likelihood's parameters, each broadcastable against (size,).
    refusal : AugmentationError, optional
        The error that engines which need an augmentation raise; None where there is one.
    """

    name: str
    likelihood: DensityLikelihood | MultiDensity
    size: int
    rows: slice
    y: PointMap[Array]
    params: PointMap[dict[str, Array]]
    refusal: AugmentationError | None = None

    @property
    def label(self) -> str:
        """What messages call it."""
        return self.likelihood.label(self.name)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (P, N) of its predictors."""
        return self.likelihood.n_predictors, self.size

    @cached_property
    def terms(self) -> MultiLikelihood:
        """The likelihood as engines see it, with arrays of shape (P, N)."""
        # Methods of the augmentation may be called only where ``likelihood.can_augment``.
        return cast(MultiLikelihood, as_several(self.likelihood))

    @property
    def row_numbers(self) -> Index:
        """Its rows of the stacked η, shape (P, N)."""
        return np.arange(self.rows.start, self.rows.stop).reshape(self.shape)

    def select(self, stacked: Array) -> Array:
        """Return this site's part of a stacked vector, shape (P, N), as a view."""
        return stacked[self.rows].reshape(self.shape)


@dataclass(frozen=True)
class Hyperparameter:
    """One free variable that is not a Gaussian latent.

    Attributes
    ----------
    name, value_name : str
        The variable, and its entry in the point (``"ls"`` and ``"ls_log__"``).
    shape : tuple of int
        Shape of the entry in the point.
    continuous : bool
        Whether its dtype is a float.
    role : {"prior", "likelihood", "both", "none"}
        Where it enters besides log priors: ``"prior"`` the latents' prior and the predictors;
        ``"likelihood"`` the parameters of a likelihood with an auxiliary variable (and perhaps the
        predictors); ``"both"`` a block's covariance and such a likelihood; ``"none"`` nowhere.
    why_not_optimised : str, optional
        Why a point estimate of it is no summary of its posterior; None where it may be used.
    """

    name: str
    value_name: str
    shape: tuple[int, ...]
    continuous: bool
    role: str
    why_not_optimised: str | None = None

    @cached_property
    def size(self) -> int:
        """Number of scalars."""
        return prod(self.shape)


@dataclass(frozen=True)
class ForwardVariable:
    """A free variable that nothing observed depends on, such as an imputed observation.

    ``draw(rng, point)`` samples its value on PyMC's unconstrained scale given the rest;
    ``log_density(point)`` is its term of the model's log density there.
    """

    name: str
    value_name: str
    shape: tuple[int, ...]
    draw: Callable[[np.random.Generator, Point], np.ndarray]
    log_density: PointMap[np.ndarray]


class ProcessPrior(Protocol):
    """The prior of a Gaussian process at arbitrary inputs X, shape (P, d), as a function of θ.

    Attributes
    ----------
    name : str
        The latent block that holds the process at the model's own inputs.
    names : tuple of Key
        The entries of the point that mean and covariances depend on.
    inputs : ndarray, shape (n, d)
        The model's own inputs; a memory map stays one.
    jitter : float
        Added to the diagonal of K(Z, Z).
    """

    name: str
    names: tuple[Key, ...]
    inputs: Array
    jitter: float

    def thread_copies(self, count: int) -> Sequence[ProcessPrior]:
        """Return this object and up to ``count`` − 1 copies, one for each thread."""
        ...

    def cov(self, point: Point, Z: Array) -> Array:
        """Return K(Z, Z)."""
        ...

    def cross(self, point: Point, X: Array, Z: Array) -> tuple[Array, Array]:
        """Return K(X, Z), which the caller may overwrite, and the diagonal of K(X, X)."""
        ...

    def pull_cov(
        self, point: Point, Z: Array, weights: Array
    ) -> tuple[dict[str, Array], Array | None]:
        """Return the derivatives of K(Z, Z), weighted and summed.

        By entry of the point; and by Z, or None where these were not requested.
        """
        ...

    def pull_cross(
        self, point: Point, X: Array, Z: Array, weights: tuple[Array, Array]
    ) -> tuple[dict[str, Array], Array | None]:
        """Return the derivatives of K(X, Z) and diag K(X, X), as :meth:`pull_cov` does."""
        ...

    def mean(self, point: Point, X: Array) -> Array:
        """Return the prior mean at X, shape (P,)."""
        ...


@dataclass(frozen=True)
class LatentGaussianModel:
    """A user's model as engines see it.

    Attributes
    ----------
    blocks, sites, hyperparameters, forward : tuple
        See the classes above; ``forward`` is in an order in which it can be sampled.
    n_rows : int
        n, the length of the stacked η.
    offset : PointMap
        η at u = 0, shape (n,).
    maps : tuple of PointMap
        A_b(θ), one :class:`~pymc_augconj.linalg.linear_map.LinearMap` a block.
    log_prior : PointMap
        Log density of the hyperparameters, Jacobians included, with every factor of the model
        that depends on hyperparameters alone.
    log_prior_gradient : callable
        ``point -> {name: derivative}`` of ``log_prior``.
    predictor_pullback : callable
        ``(point, {block name: u}, w) -> {name: derivative}`` of ⟨w, η(θ, u)⟩ at fixed u.
    predictor : callable
        ``(point, {block name: u}) -> η`` computed from PyMC's graph, to check the maps against.
    """

    blocks: tuple[LatentBlock, ...]
    sites: tuple[Site, ...]
    hyperparameters: tuple[Hyperparameter, ...]
    forward: tuple[ForwardVariable, ...]
    n_rows: int
    offset: PointMap[Array]
    maps: tuple[PointMap[LinearMap], ...]
    log_prior: PointMap[np.ndarray]
    log_prior_gradient: Callable[[Point], dict[str, Array]]
    predictor_pullback: Callable[[Point, Mapping[str, Array], Array], dict[str, Array]]
    predictor: Callable[[Point, Mapping[str, Array]], Array]

    @property
    def latent_size(self) -> int:
        """Total number of latent values."""
        return sum(block.total_size for block in self.blocks)

    @property
    def is_of_one_predictor(self) -> bool:
        """Whether observations have one predictor, and processes one output."""
        return all(site.shape[0] == 1 for site in self.sites) and all(
            block.copies == 1 for block in self.blocks
        )

    @property
    def has_bounded_densities(self) -> bool:
        """Whether fits let the observations gain their weight little by little.

        See :attr:`.MultiDensity.is_bounded`.
        """
        return any(site.terms.is_bounded for site in self.sites)

    def cautions(self, point: Point) -> list[str]:
        """Return warnings about properties of the posterior that Gaussian approximations miss."""
        prior_mean = np.asarray(self.offset(point))
        found = []
        for site in self.sites:
            if not site.likelihood.can_augment:
                mean, params = site.select(prior_mean), site.params(point)
                sentence = site.terms.caution(site.y(point), mean, params)
                if sentence is not None:
                    found.append(f"{site.label}: {sentence}")
        return found

    def require_bound(self) -> None:
        """Raise where coordinate ascent has no bound for an observed variable.

        Raises
        ------
        AugmentationError
            With the reason, and the engines to use instead.
        """
        for site in self.sites:
            if site.likelihood.why_no_bound is not None:
                raise AugmentationError(
                    f"{site.label} ({site.likelihood.name}): {site.likelihood.why_no_bound}"
                )

    def require_augmentation(self, point: Point | None = None) -> None:
        """Raise where an observed variable has no augmentation, at all or at ``point``.

        Raises
        ------
        RecognitionError
            With the reason, an alternative model, and the engines that need no augmentation.
        NotSuperGaussianError
            If there is none at the hyperparameters of ``point``.
        """
        for site in self.sites:
            if site.refusal is not None:
                # A new one each time, so that tracebacks do not pile up.
                raise type(site.refusal)(str(site.refusal))
            if point is not None:
                sentence = site.likelihood.check_augmentation(site.params(point))
                if sentence is not None:
                    raise NotSuperGaussianError(f"{site.label}: {sentence}")
