"""What every fitting engine shares: the problem it is given, what it reports, what it returns.

An engine is a callable ``(FitProblem) -> FitOutcome``; ``registry.py`` names them. An engine that
moves sites is stated by a :class:`SiteRule`, and :class:`.SiteFit` makes an engine of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.likelihoods.base import Params
from pymc_augconj.likelihoods.several import MultiLikelihood
from pymc_augconj.model import Hyperparameter, LatentGaussianModel, Point, ProcessPrior
from pymc_augconj.typing import Array

__all__ = [
    "Climb",
    "Evaluation",
    "FirstWeights",
    "FitOutcome",
    "FitProblem",
    "FitState",
    "Iteration",
    "LogPrior",
    "SiteEvaluation",
    "SiteRule",
    "SparseProblem",
    "reporter",
]


# Natural-gradient steps to a step of Adam, which costs more than one: as low a bound after as many
# iterations with 4 as with 1. With 8, too, from a good start, but from a length of half and a scale
# of twice the best 700 nats lower after 400 iterations.
_HYPER_EVERY = 4

#: ``point -> (value, {entry of the point: derivative})``
LogPrior = Callable[[Point], tuple[float, dict[str, Array]]]


class SiteRule(Protocol):
    """What makes one variational engine differ from another."""

    #: True where moving all sites to their targets cannot decrease the bound.
    monotone: bool
    #: True if the rule needs an augmentation.
    augmented: bool

    def full(self, terms: MultiLikelihood) -> bool:
        """Return whether it takes covariances of the predictors, (P, P, N), and gives such Λ.

        Else it takes their variances, (P, N), and gives the diagonal of Λ.
        """
        ...

    def value(
        self, terms: MultiLikelihood, y: Array, mean: Array, cov: Array, params: Params
    ) -> Array:
        """Return ℓ(m, V) of every observation, shape (N,), for ``mean`` of shape (P, N)."""
        ...

    def targets(
        self, terms: MultiLikelihood, y: Array, mean: Array, cov: Array, params: Params
    ) -> tuple[Array, Array, Array]:
        """Return ℓ and the target sites (ĥ, Λ̂), of the shapes of ``mean`` and ``cov``."""
        ...


class SiteEvaluation(Protocol):
    """What an engine knows at one set of sites; arrays are stacked as those of Evaluation."""

    @property
    def h(self) -> Array:
        """The sites' linear coefficients."""
        ...

    @property
    def lam(self) -> Array:
        """The sites' precisions."""
        ...

    @property
    def target_h(self) -> Array:
        """Where the engine wants ``h``."""
        ...

    @property
    def target_lam(self) -> Array:
        """Where the engine wants ``lam``."""
        ...

    @property
    def residual(self) -> float:
        """How far the sites are from where the engine wants them."""
        ...

    @property
    def mean(self) -> Array:
        """Means of the predictors."""
        ...

    @property
    def var(self) -> Array:
        """Variances of the predictors."""
        ...

    @property
    def cov(self) -> Array:
        """Variances of the predictors, then covariances of coupled pairs."""
        ...

    @property
    def precision_units(self) -> Array:
        """What a unit of each entry of ``lam`` does to q, for changes to be weighed by."""
        ...

    @property
    def bound(self) -> float:
        """The engine's value of the log evidence."""
        ...

    @property
    def posterior(self) -> Any:
        """The posterior of the latents; None where it has not been made."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """The bound at one set of sites; arrays are stacked as in :mod:`pymc_augconj.gaussian.sites`.

    Attributes
    ----------
    h, lam : ndarray
        The sites.
    target_h, target_lam : ndarray
        Where the rule wants them.
    mean, cov : ndarray
        Moments of the predictors.
    expected, divergence : float
        Σ ℓ and KL(q‖p); the bound is their difference.
    rounding : float
        Size of what rounding may do to the bound.
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
    #: A SitePosterior, or what a sparse engine keeps of its own; None where none has been made.
    posterior: Any = field(repr=False, default=None)
    buffer: int = 0

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
        """How far the sites are from their targets, in units of q.

        The change of the means, in standard deviations, and the relative change of the variances
        that each site's step would make if it were the only one; root of the sum of squares over
        sites.
        """
        d_lam = self.target_lam - self.lam
        pull = self.coupling.product(d_lam, self.mean)
        d_mean = (self.target_h - self.h - pull) * np.sqrt(self.var)
        return float(np.sqrt(d_mean @ d_mean + self.coupling.squared_norm(d_lam, self.cov)))

    def narrow(self, std: float) -> tuple[Array, Array]:
        """Return sites of this standard deviation about the means, to start from."""
        lam = np.zeros_like(self.lam)
        lam[: self.mean.size] = std**-2
        return std**-2 * self.mean, lam

    @property
    def precision_units(self) -> Array:
        """What a unit of each entry of ``lam`` does to q, for changes to be weighed by."""
        std = np.sqrt(self.var)
        units = self.var + std * np.abs(self.mean)
        pairs = np.sqrt(units[self.coupling.first] * units[self.coupling.second])
        return np.concatenate([units, pairs])


@dataclass(frozen=True)
class Iteration:
    """What one accepted iteration tells about itself.

    Attributes
    ----------
    iteration : int
        Counts from 0, the start.
    bound, expected, divergence : float
        The bound and its two terms, Σ ℓ and KL(q‖p).
    residual : float
        See :attr:`Evaluation.residual`.
    rate : float
        The fraction of the way to the targets; 1 but for damped steps.
    extrapolated : bool
    evaluations : int
        Factorisations that the iteration took.
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
    """The end of a climb, and how it went; ``diagnostics`` as in :class:`FitOutcome`."""

    evaluation: E
    converged: bool
    message: str
    iterations: list[Iteration] = field(default_factory=list)
    diagnostics: dict[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class FitState:
    """What a callback sees after every iteration.

    Attributes
    ----------
    count : int
        Iterations so far, over all values of θ.
    iteration : Iteration
        Bound, its terms and the residual; numbered from the last change of θ.
    mean, var : ndarray, shape (N,)
        Moments of the predictors; of the weights where the data are in chunks.
    """

    count: int
    iteration: Iteration
    mean: Array
    var: Array


@dataclass(frozen=True)
class FirstWeights:
    """The posterior of the weights that an earlier fit ended with.

    Attributes
    ----------
    precision : ndarray, shape (D, D)
    linear : ndarray, shape (D,)
        B and b of q(w) ∝ N(w | 0, I) exp(bᵀw − ½ wᵀBw).
    count : int
        Number of its iterations, for the step size of stochastic ones.
    """

    precision: Array
    linear: Array
    count: int


@dataclass(frozen=True)
class SparseProblem:
    """A fit through inducing points.

    Attributes
    ----------
    priors : sequence of ProcessPrior
        The processes.
    inducing : sequence of ndarray
        Inducing inputs of each, shape (M, d), to start from or to stay at.
    rng : Generator
    batch_size : int, optional
        Rows of a minibatch; by default all of them.
    rate : float or pair of float, optional
        Of the natural-gradient steps: a constant, or (delay, forgetting) of Robbins and Monro's
        ρ_t = (1 + t/delay)^(−forgetting). By default as
        :func:`~pymc_augconj.engines.sparse.steps.default_rate` has it.
    hyper_rate : float
        Of Adam, on the unconstrained scale; a tenth of it at the end.
    hyper_every : int
        Natural-gradient steps to a step of Adam.
    optimize_inducing : bool
        Whether the inducing inputs move, too.
    data : ChunkedData, optional
        All the data, of which those of the model are a sample; by default these.
    first : FirstWeights, optional
        Where to start; by default at the prior.
    """

    priors: Sequence[ProcessPrior]
    inducing: Sequence[Array]
    rng: np.random.Generator
    batch_size: int | None = None
    rate: float | tuple[float, float] | None = None
    hyper_rate: float = 0.05
    hyper_every: int = _HYPER_EVERY
    optimize_inducing: bool = False
    #: A :class:`~pymc_augconj.engines.sparse.chunks.ChunkedData`, which no dense engine knows.
    data: Any = None
    first: FirstWeights | None = None


@dataclass(frozen=True)
class FitProblem:
    """What a fitting engine is given.

    Attributes
    ----------
    model : LatentGaussianModel
    point : mapping
        θ to start from, or to stay at.
    probes : sequence of mapping
        Other values of θ at which predictors must agree to be merged.
    members : sequence of Hyperparameter
        Those to optimise; none where θ is fixed.
    log_prior : callable
        Value and derivatives of what is added to the evidence.
    max_iter : int
    tol : float
    callback : callable, optional
        Called with a :class:`FitState` after every iteration.
    options : mapping
        The engine's own, by name; :mod:`~pymc_augconj.engines.options` has checked them.
    sparse : SparseProblem, optional
        Where processes act through inducing points.
    """

    model: LatentGaussianModel
    point: Point
    probes: Sequence[Point]
    members: Sequence[Hyperparameter]
    log_prior: LogPrior
    max_iter: int
    tol: float
    callback: Callable[[FitState], object] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    sparse: SparseProblem | None = None


@dataclass
class FitOutcome:
    """What a fitting engine gives back: a posterior as its sites, and how it was found.

    Attributes
    ----------
    point : dict
        θ.
    h, lam : ndarray, shape (N,)
        Sites of every predictor.
    evidence : float
        The engine's value of log p(y | θ).
    objective : float
        Evidence plus log prior, as far as one was asked for.
    prior : LatentPrior
        The prior at θ.
    groups : RowGroups
    space : str
        In which conditioning is cheapest, see :mod:`pymc_augconj.latents.space`.
    converged : bool
    message : str
    iterations : list of Iteration
    gradient : dict
        Of the objective at θ, by entry of the point.
    diagnostics : dict
        What an engine has to say about its state besides, as numbers and words: those of EP are
        the fields of :class:`~pymc_augconj.engines.ep.EPInfo`.
    inducing : dict
        Inducing inputs, by process, where there are any: ``h`` and ``lam`` are then sites of the
        weights, see :mod:`.sparse_outcome`.
    evidence_error : float
        The estimated rounding error of the Gaussian log evidence at the end.
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


def reporter(problem: FitProblem) -> Callable[[Iteration, SiteEvaluation], None]:
    """Return a function that passes iterations to the problem's callback, counted over all θ."""
    count = 0

    def report(iteration: Iteration, evaluation: SiteEvaluation) -> None:
        nonlocal count
        count += 1
        if problem.callback is not None:
            problem.callback(FitState(count, iteration, evaluation.mean, evaluation.var))

    return report
