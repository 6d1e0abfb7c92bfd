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
from pymc_augconj.typing import Array

#: ``point -> (value, {entry of the point: derivative})``
LogPrior = Callable[[Point], tuple[float, dict[str, Array]]]


class SiteRule(Protocol):
    """Bound and target sites of a variational engine."""

    #: True where moving all sites to their targets cannot decrease the bound.
    monotone: bool
    #: True if the rule needs an augmentation.
    augmented: bool

    def full(self, site: Site) -> bool:
        """Return whether the rule uses covariances of predictors and full Λ, (P, P, N).

        Otherwise it uses variances and the diagonal of Λ, (P, N).
        """

    def value(self, site: Site, y: Array, mean: Array, cov: Array, params: Params) -> Array:
        """Return ℓ(m, V) of observations y of a site, shape (N,), for ``mean`` of shape (P, N)."""

    def targets(
        self, site: Site, y: Array, mean: Array, cov: Array, params: Params
    ) -> tuple[Array, Array, Array]:
        """Return ℓ and the target sites (ĥ, Λ̂), of the shapes of ``mean`` and ``cov``."""


class SiteEvaluation(Protocol):
    """State of an engine at one set of sites, see :class:`Evaluation`."""

    @property
    def h(self) -> Array: ...
    @property
    def lam(self) -> Array: ...
    @property
    def target_h(self) -> Array: ...
    @property
    def target_lam(self) -> Array: ...
    @property
    def residual(self) -> float: ...
    @property
    def mean(self) -> Array: ...
    @property
    def var(self) -> Array: ...
    @property
    def cov(self) -> Array: ...
    @property
    def precision_units(self) -> Array: ...
    @property
    def bound(self) -> float: ...
    @property
    def posterior(self) -> object: ...


@dataclass(frozen=True)
class Evaluation:
    """The bound at one set of sites; arrays are stacked as in :mod:`pymc_augconj.gaussian.sites`.

    ``expected`` and ``divergence`` are Σ ℓ and KL(q‖p), whose difference is the bound, and
    ``rounding`` the size of its rounding error.
    """

    h: Array
    lam: Array
    target_h: Array
    target_lam: Array
    mean: Array
    cov: Array
    expected: float
    divergence: float
    rounding: float
    coupling: Coupling = field(repr=False)
    #: A Posterior, or a sparse engine's own; None if it has not been computed.
    posterior: object = field(repr=False, default=None)

    @property
    def var(self) -> Array:
        """Variances of the predictors."""
        return self.cov[: self.mean.size]

    @property
    def bound(self) -> float:
        """The evidence lower bound."""
        return self.expected - self.divergence

    @cached_property
    def residual(self) -> float:
        """Distance of the sites from their targets, in units of q.

        Root of the sum over sites of squares of the changes that each site's step alone would
        make: of the mean, in standard deviations, and of the variance, relatively.
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
class Climb[E: SiteEvaluation]:
    """End and history of an optimiser run; ``diagnostics`` as in :class:`FitOutcome`."""

    evaluation: E
    converged: bool
    message: str
    iterations: list[Iteration] = field(default_factory=list)
    diagnostics: dict[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class FitState:
    """State passed to a callback after every iteration.

    ``count`` is the number of iterations over all θ; ``iteration`` is numbered from the last change
    of θ; ``mean`` and ``var`` are of the predictors, or of the weights where data are in chunks.
    """

    count: int
    iteration: Iteration
    mean: Array
    var: Array


class ProcessPrior(Protocol):
    """The prior of a Gaussian process at arbitrary inputs X, shape (P, d), as a function of θ.

    ``name`` is its latent block at the model's own ``inputs``, (n, d), perhaps a memory map;
    ``names`` are the entries of the point that it depends on; ``jitter`` is added to the diagonal
    of K(Z, Z).
    """

    name: str
    names: tuple[Key, ...]
    inputs: Array
    jitter: float

    def thread_copies(self, count: int) -> Sequence[ProcessPrior]:
        """Return this object and up to ``count`` − 1 copies, one for each thread."""

    def cov(self, point: Point, Z: Array) -> Array:
        """Return K(Z, Z)."""

    def cross(self, point: Point, X: Array, Z: Array) -> tuple[Array, Array]:
        """Return K(X, Z), which callers may overwrite, and the diagonal of K(X, X)."""

    def pull_cov(
        self, point: Point, Z: Array, weights: Array
    ) -> tuple[dict[str, Array], Array | None]:
        """Return the weighted sum of the derivatives of K(Z, Z).

        By entry of the point; and by Z, or None if not requested.
        """

    def pull_cross(
        self, point: Point, X: Array, Z: Array, weights: tuple[Array, Array]
    ) -> tuple[dict[str, Array], Array | None]:
        """Return the derivatives of K(X, Z) and diag K(X, X), like :meth:`pull_cov`."""

    def mean(self, point: Point, X: Array) -> Array:
        """Return the prior mean at X, shape (P,)."""


@dataclass(frozen=True)
class FirstWeights:
    """Posterior q(w) ∝ N(w | 0, I) exp(bᵀw − ½ wᵀBw) of the weights from an earlier fit.

    ``precision`` is B, (D, D), ``linear`` b, and ``count`` the iterations of that fit.
    """

    precision: Array
    linear: Array
    count: int


@dataclass(frozen=True)
class SparseProblem:
    """A fit through inducing points.

    ``inducing`` has inputs of each process, (M, d), initial or fixed. ``data`` are all the data, of
    which the model has a sample, by default the model's; ``first`` is the start, by default the
    prior.
    """

    priors: Sequence[ProcessPrior]
    inducing: Sequence[Array]
    rng: np.random.Generator
    #: A :class:`~pymc_augconj.engines.sparse.chunks.ChunkedData`, which no dense engine knows.
    data: object = None
    first: FirstWeights | None = None


@dataclass(frozen=True)
class FitProblem:
    """Input of a fitting engine.

    ``point`` is the initial or fixed θ, and ``probes`` are other values at which predictors must
    agree to be merged. ``members`` are the hyperparameters to optimise, ``log_prior`` is added to
    the evidence, and ``callback`` is called with a :class:`FitState` after every iteration.
    ``options`` of another class than the engine's stand for the defaults.
    """

    model: LatentGaussianModel
    point: Point
    probes: Sequence[Point]
    members: Sequence[Hyperparameter]
    log_prior: LogPrior
    max_iter: int
    tol: float
    callback: Callable[[FitState], object] | None = None
    options: Options = field(default_factory=Options)
    sparse: SparseProblem | None = None


@dataclass
class FitOutcome:
    """Result of a fitting engine: a posterior as its sites, and the history of the fit.

    Attributes
    ----------
    point, h, lam
        θ, and the sites of every predictor.
    evidence, objective, evidence_error : float
        The engine's value of log p(y | θ); the same plus the log prior if requested; and the
        estimated rounding error of the Gaussian log evidence at the end.
    prior, groups
        The prior at θ, and the merged rows.
    space : str
        The cheapest solver, see :mod:`pymc_augconj.latents.choice`.
    gradient : dict
        Gradient of the objective at θ, by entry of the point.
    diagnostics : dict
        Further results of the engine, numbers and words; for EP the fields of :class:`.EPInfo`.
    inducing : dict
        Inducing inputs, by process, where there are any: ``h`` and ``lam`` are then sites of the
        weights, see :mod:`.sparse_outcome`.
    nested : NestedPosterior, optional
        The density over θ, of an engine that integrates over it.
    """

    point: dict[str, np.ndarray]
    h: Array
    lam: Array
    evidence: float
    objective: float
    prior: LatentPrior
    groups: RowGroups
    space: str
    converged: bool
    message: str
    iterations: list[Iteration] = field(default_factory=list)
    gradient: dict[str, Array] = field(default_factory=dict)
    diagnostics: dict[str, float | str] = field(default_factory=dict)
    inducing: dict[str, Array] = field(default_factory=dict)
    evidence_error: float = 0.0
    #: A :class:`~pymc_augconj.engines.nested.importance.NestedPosterior`.
    nested: object = None


def reporter(problem: FitProblem) -> Callable[[Iteration, SiteEvaluation], None]:
    """Return a function that passes iterations to the problem's callback, counted over all θ."""
    count = 0

    def report(iteration: Iteration, evaluation: SiteEvaluation) -> None:
        nonlocal count
        count += 1
        if problem.callback is not None:
            problem.callback(FitState(count, iteration, evaluation.mean, evaluation.var))

    return report
