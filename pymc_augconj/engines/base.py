"""Contract of the fitting engines: problem, reports and result.

An engine is a callable ``(FitProblem) -> FitOutcome``; ``registry.py`` names them. A variational
engine is defined by a :class:`SiteRule`, which :class:`.SiteFit` turns into an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from pymc_augconj.engines.options import Options
from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.likelihoods.base import Params
from pymc_augconj.model import Hyperparameter, LatentGaussianModel, Site
from pymc_augconj.point import Key, Point
from pymc_augconj.typing import Array, Generator

#: ``point -> (value, {entry of the point: derivative})``
LogPrior = Callable[[Point], tuple[float, dict[str, Array]]]


class SiteRule(Protocol):
    """Bound and target sites of a variational engine."""

    #: True where moving all sites to their targets cannot decrease the bound.
    monotone: bool
    #: True if the rule needs an augmentation.
    augmented: bool
    #: Error of ℓ relative to its terms, within which bounds are not compared.
    error: float

    def full(self, site: Site) -> bool:
        """Return whether the rule uses covariances and full Λ, (P, P, N), or variances, (P, N)."""

    def groups(self, site: Site) -> tuple[tuple[int, ...], ...]:
        """Return the groups of predictors that the rule takes as independent of each other."""

    def value(self, site: Site, y: Array, mean: Array, cov: Array, params: Params) -> Array:
        """Return ℓ(m, V) of observations y of a site, shape (N,), for ``mean`` of shape (P, N)."""

    def targets(
        self, site: Site, y: Array, mean: Array, cov: Array, params: Params
    ) -> tuple[Array, Array, Array]:
        """Return ℓ and the target sites (ĥ, Λ̂), of the shapes of ``mean`` and ``cov``."""


@dataclass(frozen=True)
class Evaluation:
    """State of an engine at the sites (h, λ), stacked as in :mod:`pymc_augconj.gaussian.sites`."""

    h: Array
    lam: Array
    target_h: Array
    target_lam: Array
    #: Moments of the predictors: variances, then covariances of coupled pairs.
    mean: Array
    cov: Array
    #: Σ ℓ and KL(q‖p), the difference of which is the bound, and the rounding error of the latter.
    expected: float
    divergence: float
    rounding: float
    coupling: Coupling = field(repr=False)
    #: A Posterior, or a sparse engine's own; None if it has not been computed.
    posterior: object = field(repr=False)

    @property
    def var(self) -> Array:
        """Variances of the predictors."""
        return self.cov[: self.mean.size]

    @property
    def bound(self) -> float:
        """The engine's value of the log evidence."""
        return self.expected - self.divergence

    @cached_property
    def residual(self) -> float:
        """Root of the sum of squares of the changes that each site's step alone would make.

        Changes of the mean are in standard deviations, changes of the variance relative.
        """
        d_lam = self.target_lam - self.lam
        pull = self.coupling.product(d_lam, self.mean)
        d_mean = (self.target_h - self.h - pull) * np.sqrt(self.var)
        return float(np.sqrt(d_mean @ d_mean + self.coupling.squared_norm(d_lam, self.cov)))

    def narrow(self, std: float) -> tuple[Array, Array]:
        """Return starting sites with this standard deviation about the means."""
        lam = np.zeros_like(self.lam)
        lam[: self.mean.size] = std**-2
        return std**-2 * self.mean, lam

    @property
    def precision_units(self) -> Array:
        """Effect on q of a unit of each entry of ``lam``, the weight of its changes."""
        std = np.sqrt(self.var)
        units = self.var + std * np.abs(self.mean)
        pairs = np.sqrt(units[self.coupling.first] * units[self.coupling.second])
        return np.concatenate([units, pairs])


@dataclass(frozen=True)
class Iteration:
    """One accepted iteration: its number from 0 for the start, the bound and its terms.

    ``residual`` is that of :class:`Evaluation`, ``rate`` the fraction of the way to the targets,
    and ``evaluations`` the number of factorisations.
    """

    iteration: int
    bound: float
    expected: float
    divergence: float
    residual: float
    rate: float = 1.0
    extrapolated: bool = False
    evaluations: int = 1


@dataclass
class Climb[E: Evaluation]:
    """End and history of an optimiser run; ``diagnostics`` as in :class:`FitOutcome`."""

    evaluation: E
    converged: bool
    message: str
    iterations: list[Iteration] = field(default_factory=list)
    diagnostics: dict[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class FitState:
    """State passed to a callback after every iteration.

    ``count`` is the number of iterations over all θ; ``iteration`` counts from the last change of
    θ; ``mean`` and ``var`` are moments of the predictors, or of the weights for data in chunks.
    """

    count: int
    iteration: Iteration
    mean: Array
    var: Array


class ProcessPrior(Protocol):
    """The prior of a Gaussian process at arbitrary inputs X, shape (P, d), as a function of θ."""

    #: Latent block of the process at the model's own inputs.
    name: str
    #: Entries of the point on which mean and covariances depend.
    names: tuple[Key, ...]
    #: The model's own inputs, (n, d); a memory map is kept as such.
    inputs: Array
    #: Added to the diagonal of K(Z, Z).
    jitter: float

    def compile(self) -> None:
        """Compile what several threads call, as PyTensor compiles in one."""

    def cov(self, point: Point, Z: Array) -> Array:
        """Return K(Z, Z)."""

    def cross(self, point: Point, X: Array, Z: Array) -> tuple[Array, Array]:
        """Return K(X, Z), which callers may overwrite, and the diagonal of K(X, X)."""

    def pull_cov(
        self, point: Point, Z: Array, weights: Array
    ) -> tuple[dict[str, Array], Array | None]:
        """Return the derivatives of ⟨weights, K(Z, Z)⟩ by entry of the point, and by Z or None."""

    def pull_cross(
        self, point: Point, X: Array, Z: Array, weights: tuple[Array, Array]
    ) -> tuple[dict[str, Array], Array | None]:
        """Return the derivatives of K(X, Z) and diag K(X, X), like :meth:`pull_cov`."""

    def mean(self, point: Point, X: Array) -> Array:
        """Return the prior mean at X, shape (P,)."""


@dataclass(frozen=True)
class FirstWeights:
    """Posterior q(w) ∝ N(w | 0, I) exp(bᵀw − ½ wᵀBw) of the weights from an earlier fit."""

    #: B, (D, D), and b, (D,).
    precision: Array
    linear: Array
    #: Number of iterations of that fit, for stochastic step sizes.
    count: int


@dataclass(frozen=True)
class SparseProblem:
    """A fit through inducing points."""

    priors: Sequence[ProcessPrior]
    #: Inducing inputs of each process, (M, d), initial or fixed.
    inducing: Sequence[Array]
    rng: Generator
    #: A :class:`~pymc_augconj.engines.sparse.chunks.ChunkedData`, of which the model has a sample;
    #: by default the model's data.
    data: object = None
    #: Starting point; by default the prior.
    first: FirstWeights | None = None


@dataclass(frozen=True)
class FitProblem:
    """Input of a fitting engine."""

    model: LatentGaussianModel
    #: Initial or fixed θ, and other values at which predictors must agree to be merged.
    point: Point
    probes: Sequence[Point]
    #: Hyperparameters to optimise; empty for a fixed θ.
    members: Sequence[Hyperparameter]
    #: Value and derivatives of the term added to the evidence.
    log_prior: LogPrior
    max_iter: int
    tol: float
    #: Called after every iteration.
    callback: Callable[[FitState], object] | None = None
    #: Of the engine's class; another one stands for the defaults.
    options: Options = field(default_factory=Options)
    #: Present if processes act through inducing points.
    sparse: SparseProblem | None = None


@dataclass
class FitOutcome:
    """Result of a fitting engine: a posterior as its sites, and the history of the fit."""

    #: θ, and the sites of every predictor, (N,).
    point: dict[str, np.ndarray]
    h: Array
    lam: Array
    #: The engine's value of log p(y | θ), and it plus the log prior if requested.
    evidence: float
    objective: float
    #: At θ.
    prior: LatentPrior
    groups: RowGroups
    #: The cheapest solver, see :mod:`pymc_augconj.latents.choice`.
    space: str
    converged: bool
    message: str
    iterations: list[Iteration] = field(default_factory=list)
    #: Of the objective at θ, by entry of the point.
    gradient: dict[str, Array] = field(default_factory=dict)
    #: Numbers and words of the engine; for EP those of :meth:`.Recorder.result`.
    diagnostics: dict[str, float | str] = field(default_factory=dict)
    #: Inducing inputs, by process; where there are any, the sites are those of the weights.
    inducing: dict[str, Array] = field(default_factory=dict)
    #: The estimated rounding error of the Gaussian log evidence at the end.
    evidence_error: float = 0.0
    #: Density over θ of an engine that integrates over it, a
    #: :class:`~pymc_augconj.engines.nested.importance.NestedPosterior`.
    nested: object = None
