"""A recognised model in terms of NumPy arrays: the interface between recognition and engines.

Recognition produces a :class:`LatentGaussianModel` and does not depend on algorithms; engines use
it and do not depend on PyTensor graphs. In symbols, with θ the hyperparameters,

    u_b ~ N(0, K_b(θ))                       latent blocks (innovations)
    η   = offset(θ) + Σ_b A_b(θ) u_b         predictors of all sites, stacked, shape (n,)
    y_s ~ p_s(y | η_s, params_s(θ))          one site per observed variable

θ is passed as a :mod:`~pymc_augconj.point`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Protocol

import numpy as np

from pymc_augconj.typing import Array, Generator, Index, Mask

from .block import LatentBlock
from .errors import AugmentationError, NotSuperGaussianError
from .likelihoods.contract import MultiLikelihood
from .linalg.linear_map import DenseMap, LinearMap
from .point import Point, PointMap


@dataclass(frozen=True)
class Site:
    """One observed variable or potential."""

    name: str
    #: Its density and augmentation, with arrays of shape (P, N).
    likelihood: MultiLikelihood
    #: Number of observations.
    size: int
    #: The rows of its predictors in the stacked η, one predictor after the other.
    rows: slice
    #: The observations, (size,), one array that all share and none changes; never of the point.
    y: PointMap[Array]
    #: The likelihood's parameters, each broadcastable against (size,).
    params: PointMap[dict[str, Array]]
    #: Where σ of normal observations is one number times known w: parameters with that, and w.
    common: tuple[PointMap[dict[str, Array]], PointMap[Array]] | None = None
    #: Error of engines that need an augmentation; None if there is one.
    refusal: AugmentationError | None = None
    #: Whether it is the prior of a latent whose block is flat, named as that variable.
    is_prior: bool = False

    @property
    def label(self) -> str:
        """Name of the variable or potential in messages."""
        return f"prior of {self.name!r}" if self.is_prior else self.likelihood.label(self.name)

    @property
    def has_observations(self) -> bool:
        """Whether it has observations to leave out and to predict; priors and potentials do not."""
        return self.likelihood.has_observations and not self.is_prior

    @property
    def is_part_of_vector(self) -> bool:
        """Whether entries of y stand for a vector of dependent observations."""
        alone = self.likelihood.n_predictors == 1 and self.likelihood.unpredictable is not None
        return alone and self.has_observations

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (P, N) of its predictors."""
        return self.likelihood.n_predictors, self.size

    @property
    def row_numbers(self) -> Index:
        """Its rows of the stacked η, shape (P, N)."""
        return np.arange(self.rows.start, self.rows.stop).reshape(self.shape)

    def select(self, stacked: Array) -> Array:
        """Return a view of this site's part of a stacked vector, shape (P, N)."""
        return stacked[self.rows].reshape(self.shape)

    def log_densities(self, point: Point, eta: Array) -> Array:
        """Return log p(yᵢ | ηᵢ) at draws of the stacked predictors, (S, …), shape (S, size)."""
        y, params = self.y(point), self.params(point)
        return np.array([self.likelihood.log_density(y, self.select(row), params) for row in eta])


@dataclass(frozen=True)
class EntryRidge:
    """A move of one hyperparameter h by s, that a vector x of others follows.

    With the sign ±1 and the value c of the hyperparameter ``beside``, zero if there is none, x goes
    to c + (x − c) e^{±s} if it ``scales``, and to x ± s e^{−c} otherwise. Each is named by its
    entry in the point and its number there. The prior of the vector stays the same, with the
    Jacobian, where the sign is positive, and where it is negative all but the priors of both.
    """

    h: tuple[str, int]
    vector: str
    size: int
    sign: int
    scales: bool
    beside: tuple[str, int] | None = None

    @property
    def log_jacobian(self) -> int:
        """The log Jacobian of the move by s, divided by s."""
        return self.scales * self.sign * self.size

    def moved(self, point: Point, s: float) -> dict[str, Array]:
        """Return the point moved by s."""
        raised, x = np.array(point[self.h[0]]), point[self.vector]
        raised.flat[self.h[1]] += s
        c = 0.0 if self.beside is None else point[self.beside[0]].flat[self.beside[1]]
        far = c + (x - c) * np.exp(self.sign * s) if self.scales else x + self.sign * s * np.exp(-c)
        return {**point, self.h[0]: raised, self.vector: far}


class EntryDensities(Protocol):
    """Log densities of the entries of a vector that are independent given everything else."""

    #: Moves of entries of other hyperparameters that the vector follows.
    ridges: Sequence[EntryRidge]
    #: Terms of the log prior of hyperparameters that are among these densities.
    priors: PointMap[Sequence[Array]]

    def __call__(self, point: Point) -> Array:
        """Return the log density of each entry up to a constant, flat."""

    def check(self, old: Point, new: Point, moved: Mask) -> None:
        """Raise if entries are dependent, of which those ``moved`` are taken from ``new``."""


@dataclass(frozen=True)
class ColumnScales:
    """A vector whose entries each scale one latent, in its prior or in all predictors.

    ``latents`` has the latent of each entry, in the block of number ``block``, and ``densities``
    the log prior of every entry.
    """

    block: int
    latents: Index
    densities: EntryDensities
    _std: PointMap[Array]
    _map: PointMap[LinearMap]

    @property
    def names(self) -> frozenset[Any]:
        """Entries of the point that the scales depend on."""
        return frozenset((*self._std.names, *self._map.names))

    def __call__(self, point: Point) -> tuple[Array, Array]:
        """Return the latents' standard deviations, and the factors of their columns."""
        A, std = self._map(point), np.asarray(self._std(point))[self.latents]
        factors = A.columns if isinstance(A, DenseMap) else None
        if factors is None:
            # Factors that rounding hides are unknown.
            return std, np.full_like(std, np.nan if self._map.names else 1.0)
        return std, factors[self.latents]


@dataclass(frozen=True)
class Hyperparameter:
    """One free variable that is not a Gaussian latent."""

    #: The variable, and its entry in the point (``"ls"`` and ``"ls_log__"``), of this shape.
    name: str
    value_name: str
    shape: tuple[int, ...]
    #: Whether its dtype is a float.
    continuous: bool
    #: Place where it enters besides log priors: ``"prior"`` the latents' prior and the predictors;
    #: ``"likelihood"`` the parameters of a likelihood with an auxiliary variable (and perhaps the
    #: predictors); ``"both"`` a block's covariance and such a likelihood; ``"none"`` nowhere.
    role: str
    #: Reason why a point estimate is no summary of its posterior; None if it is.
    why_not_optimised: str | None = None
    #: None where its entries are few, or not independent given everything else.
    entries: EntryDensities | None = None
    #: None where its entries do not scale one latent each.
    columns: ColumnScales | None = None
    #: Order of the covariance of which it is the packed Cholesky factor, with logarithms of the
    #: diagonal, and moves by rows; 0 of others.
    factor_order: int = 0

    @cached_property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class ForwardVariable:
    """A free variable that nothing observed depends on, such as an imputed observation."""

    name: str
    value_name: str
    shape: tuple[int, ...]
    #: Samples its value on PyMC's unconstrained scale given the rest.
    draw: Callable[[Generator, Point], np.ndarray]
    #: Its term of the model's log density there.
    log_density: PointMap[np.ndarray]


@dataclass(frozen=True)
class LatentGaussianModel:
    """A user's model in the form that engines use."""

    blocks: tuple[LatentBlock, ...]
    sites: tuple[Site, ...]
    hyperparameters: tuple[Hyperparameter, ...]
    #: In an order that can be sampled.
    forward: tuple[ForwardVariable, ...]
    #: n, the length of the stacked η.
    n_rows: int
    #: η at u = 0, shape (n,).
    offset: PointMap[Array]
    #: A_b(θ) of each block.
    maps: tuple[PointMap[LinearMap], ...]
    #: Log density of the hyperparameters with Jacobians, and all other factors of the model that
    #: depend on hyperparameters alone; ``point -> {name: derivative}`` of it.
    log_prior: PointMap[np.ndarray]
    log_prior_gradient: Callable[[Point], dict[str, Array]]
    #: ``(point, {block name: u}, w) -> {name: derivative}`` of ⟨w, η(θ, u)⟩ at fixed u.
    predictor_pullback: Callable[[Point, Mapping[str, Array], Array], dict[str, Array]]
    #: ``(point, {block name: u}) -> η`` computed from PyMC's graph, to check the maps against.
    predictor: Callable[[Point, Mapping[str, Array]], Array]

    @property
    def latent_size(self) -> int:
        return sum(block.total_size for block in self.blocks)

    @property
    def is_independent(self) -> bool:
        """Whether latents are independent given θ, and no covariance is factorised."""
        return all(b.is_independent and not b.whitened for b in self.blocks)

    @property
    def is_improper(self) -> bool:
        """Whether the latents' prior is no distribution."""
        return any(block.is_flat for block in self.blocks)

    @property
    def is_bounded(self) -> bool:
        """Whether the prior of some latent is zero outside bounds."""
        return bool(self._bounded)

    @property
    def _bounded(self) -> list[str]:
        """Names of latents whose priors are zero outside bounds."""
        found = [block.name for block in self.blocks if block.transform is not None]
        return found or [site.name for site in self.sites if not site.likelihood.is_positive]

    @property
    def is_of_one_predictor(self) -> bool:
        """Whether observations have one predictor, and processes one output."""
        return all(site.shape[0] == 1 for site in self.sites) and all(
            block.copies == 1 for block in self.blocks
        )

    @property
    def has_bounded_densities(self) -> bool:
        """Whether fits increase the weight of observations gradually, see :class:`.Traits`."""
        return any(site.likelihood.traits.is_bounded for site in self.sites)

    def cautions(self, point: Point) -> list[str]:
        """Return warnings about posterior features that a Gaussian approximation lacks."""
        prior_mean = np.asarray(self.offset(point))
        sentences = []
        for site in self.sites:
            if not site.likelihood.can_augment:
                mean, params = site.select(prior_mean), site.params(point)
                sentence = site.likelihood.caution(site.y(point), mean, params)
                if sentence is not None:
                    sentences.append(f"{site.label}: {sentence}")
        return sentences

    def require_latents(self) -> None:
        """Raise if the user's model has integrated its process out: there are no latents."""
        if not self.blocks:
            raise AugmentationError(
                "expected Gaussian latents to approximate, found hyperparameters alone, as the "
                "model has integrated its process out; sample them with pac.sample, or write the "
                "process as a latent one (pm.gp.Latent) with separate noise"
            )

    def require_support(self) -> None:
        """Raise if the prior of a latent is zero somewhere, where a Gaussian has no bound."""
        for name in self._bounded:
            raise AugmentationError(
                f"prior of {name!r}: expected a density that is positive everywhere, since the "
                "variational bound is −∞ otherwise, found bounds; use method='ep' or 'qp', or "
                "pac.sample"
            )

    def require_bound(self) -> None:
        """Raise if coordinate ascent has no bound for an observed variable, with the reason."""
        for site in self.sites:
            if site.likelihood.why_no_bound is not None:
                raise AugmentationError(
                    f"{site.label} ({site.likelihood.name}): {site.likelihood.why_no_bound}"
                )

    def require_augmentation(self, point: Point | None = None) -> None:
        """Raise if an observed variable has no augmentation, in general or at θ of ``point``."""
        for site in self.sites:
            if site.refusal is not None:
                # A new error each time, so that tracebacks do not accumulate.
                raise type(site.refusal)(str(site.refusal))
            if point is not None:
                sentence = site.likelihood.check_augmentation(site.params(point))
                if sentence is not None:
                    raise NotSuperGaussianError(f"{site.label}: {sentence}")
