"""Expectation propagation: sites that match the moments of their tilted distributions.

The default is parallel: a sweep moves every site towards its target by a fraction, the damping,
which is halved where a sweep fails and recovers where sweeps succeed. A sweep fails if there is no
posterior, a cavity is not proper, a marginal variance grows more than `LARGEST_GROWTH` times, or
the residual more than `LARGEST_WORSENING` times. An Anderson extrapolation of the last sweeps is
taken where it lowers the residual. If sweeps no longer get anywhere the double loop
(:mod:`.ep_double_loop`) takes over, whose evidence rises at every outer step, and sweeps finish
what it began. ``schedule="sequential"`` is Minka's original, one site at a time.

A fixed point need not be unique where the likelihood is not log-concave.

References
----------
Minka, T. (2001). A family of algorithms for approximate Bayesian inference. MIT.
Jylänki, P., Vanhatalo, J. & Vehtari, A. (2011). Robust Gaussian process regression with a
Student-t likelihood. JMLR 12.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import NotPositiveDefiniteError
from .ep_objective import EPEvaluation, EPObjective
from .ep_sites import CovariancePrior, SiteGroup
from .loop import Anderson
from .site_density import SiteDensity

__all__ = ["EPInfo", "EPResult", "EPState", "Sweep", "run_ep", "solve", "sweep_parallel"]

Array = NDArray[np.float64]

SMALLEST_DAMPING = 0.01
LARGEST_GROWTH = 4.0
LARGEST_WORSENING = 2.0
# The damping after a sweep that lowered the residual, and after one that did not.
_RECOVERY, _SETBACK = 1.25, 0.5
# Sweeps without a halving of the residual that count as getting nowhere.
PATIENCE = 40
_FAILURES = (NotPositiveDefiniteError, FloatingPointError)


@dataclass(frozen=True)
class EPState:
    """The sites exp(h f − ½ λ f²), each of shape (N,); all that a further run needs."""

    h: Array
    lam: Array


@dataclass(frozen=True)
class Sweep:
    """What one sweep did; ``damping`` is None for an extrapolation or an outer step."""

    residual: float
    evidence: float
    damping: float | None
    n_negative: int
    smallest_cavity_precision: float


@dataclass(frozen=True)
class EPInfo:
    """How a run went.

    Attributes
    ----------
    converged : bool
        Whether the residual is within the tolerance.
    message : str
    method : str
        ``"parallel"``, ``"sequential"`` or ``"double loop"``, where sweeps alone did not do.
    residual : float
        Relative moment mismatch, see
        :attr:`~pymc_augconj.engines.ep_objective.EPEvaluation.residual`.
    evidence : float
        log Z.
    sweeps : int
        Sweeps and outer steps that were taken.
    evaluations : int
        Sets of tilted moments that were computed, those of rejected sweeps included.
    damping : float
        The smallest damping of an accepted sweep.
    n_negative : int
        Sites of negative precision.
    smallest_cavity_precision : float
    history : list of Sweep
    """

    converged: bool
    message: str
    method: str
    residual: float
    evidence: float
    sweeps: int
    evaluations: int
    damping: float
    n_negative: int
    smallest_cavity_precision: float
    history: list[Sweep] = field(repr=False, default_factory=list)


@dataclass
class EPResult:
    """The last evaluation and the info of a run."""

    evaluation: EPEvaluation
    info: EPInfo

    @property
    def state(self) -> EPState:
        """The sites."""
        return EPState(self.evaluation.h, self.evaluation.lam)


Report = Callable[[Sweep, EPEvaluation], None]


class Recorder:
    """The history of a run, and how many evaluations it took."""

    def __init__(self, objective: EPObjective, max_iter: int, tol: float, report: Report | None):
        self.objective, self.max_iter, self.tol, self._report = objective, max_iter, tol, report
        self.history: list[Sweep] = []
        self.evaluations = 0

    @property
    def left(self) -> int:
        """Sweeps that may still be taken."""
        return self.max_iter - len(self.history)

    def attempt(self, h: Array, lam: Array) -> EPEvaluation | None:
        """Return the evaluation at these sites, or None where there is none."""
        if not (np.isfinite(h).all() and np.isfinite(lam).all()):
            return None
        self.evaluations += 1
        try:
            return self.objective.evaluate(h, lam)
        except _FAILURES:
            return None

    def accept(self, at: EPEvaluation, damping: float | None) -> None:
        """Enter one sweep."""
        sweep = Sweep(
            at.residual, at.evidence, damping, at.n_negative, at.smallest_cavity_precision
        )
        self.history.append(sweep)
        if self._report is not None:
            self._report(sweep, at)

    def result(self, at: EPEvaluation, method: str, failure: str) -> EPResult:
        """Return the end of the run."""
        converged = at.residual <= self.tol
        message = f"converged: residual {at.residual:.1e} ≤ {self.tol:.1e}"
        if not converged:
            message = f"{failure}; the residual is {at.residual:.1e} > {self.tol:.1e}"
        dampings = [s.damping for s in self.history if s.damping is not None]
        info = EPInfo(
            converged=converged,
            message=message,
            method=method,
            residual=at.residual,
            evidence=at.evidence,
            sweeps=len(self.history),
            evaluations=self.evaluations,
            damping=min(dampings, default=1.0),
            n_negative=at.n_negative,
            smallest_cavity_precision=at.smallest_cavity_precision,
            history=self.history,
        )
        return EPResult(at, info)


def run_ep(
    C: Array,
    m: Array,
    sites: SiteDensity | Sequence[SiteGroup],
    start: EPState | None = None,
    *,
    power: float = 1.0,
    **options,
) -> tuple[EPState, EPInfo]:
    """Run expectation propagation on f ~ N(m, C) with one site an entry of f.

    Parameters
    ----------
    C : ndarray, shape (N, N)
        Prior covariance; may be singular.
    m : ndarray, shape (N,)
        Prior mean.
    sites : SiteDensity, or sequence of SiteGroup
        log p(yᵢ | fᵢ).
    start : EPState, optional
        Sites to start from; by default the prior.
    power : float
        η in (0, 1], the fraction of power EP.
    **options
        As for :func:`solve`.

    Returns
    -------
    state : EPState
    info : EPInfo
        ``info.converged`` says whether it is a fixed point.
    """
    groups = as_groups(sites)
    result = solve(EPObjective(CovariancePrior(C, m), groups, power), start, **options)
    return result.state, result.info


def as_groups(sites: SiteDensity | Sequence[SiteGroup]) -> Sequence[SiteGroup]:
    """Return groups of sites, of one density too."""
    return sites if isinstance(sites, Sequence) else (SiteGroup(slice(None), sites),)


def solve(
    objective: EPObjective,
    start: EPState | None = None,
    *,
    schedule: Literal["parallel", "sequential"] = "parallel",
    damping: float = 1.0,
    tol: float = 1e-8,
    max_iter: int = 400,
    accelerate: bool = True,
    double_loop: bool = True,
    report: Report | None = None,
) -> EPResult:
    """Find a fixed point of EP.

    Parameters
    ----------
    objective : EPObjective
    start : EPState, optional
        By default the prior; taken where these sites have no posterior here, too.
    schedule : {"parallel", "sequential"}
    damping : float
        The largest fraction of the way to the targets, in (0, 1].
    tol : float
        On the residual.
    max_iter : int
        Sweeps and outer steps in all.
    accelerate : bool
        Whether parallel sweeps are extrapolated.
    double_loop : bool
        Whether the double loop takes over where sweeps fail; it is EP's alone.
    report : callable, optional
        Called with (Sweep, EPEvaluation) after each.

    Returns
    -------
    EPResult

    Raises
    ------
    ValueError
        If an option is out of range.
    NotPositiveDefiniteError, FloatingPointError
        If not even the prior can be evaluated.
    """
    if schedule not in ("parallel", "sequential"):
        raise ValueError(f"schedule: expected 'parallel' or 'sequential', got {schedule!r}")
    if not SMALLEST_DAMPING <= damping <= 1.0:
        raise ValueError(f"damping: expected a number in [{SMALLEST_DAMPING}, 1], got {damping}")
    recorder = Recorder(objective, max_iter, tol, report)
    current = None if start is None else recorder.attempt(start.h, start.lam)
    if current is None:
        current = objective.at_prior()
        recorder.evaluations += 1
    if schedule == "sequential":
        from .ep_sequential import sweep_sequential

        current, failure = sweep_sequential(recorder, current, damping=damping)
    else:
        current, failure = sweep_parallel(
            recorder, current, damping=damping, accelerate=accelerate
        )
    if current.residual > tol and double_loop and np.all(objective.shrink == 1.0) and recorder.left > 0:
        from .ep_double_loop import climb_double_loop

        current, failure = climb_double_loop(recorder, current)
        schedule = "double loop"
    return recorder.result(current, schedule, failure)


def sweep_parallel(
    recorder: Recorder,
    current: EPEvaluation,
    *,
    damping: float = 1.0,
    accelerate: bool = True,
    patience: int = PATIENCE,
) -> tuple[EPEvaluation, str]:
    """Sweep until converged or stuck; return the best evaluation and, in words, what stopped it."""
    anderson, rate = Anderson(), damping
    best, milestone, since = current, current.residual, 0
    while current.residual > recorder.tol:
        if recorder.left <= 0:
            return best, f"stopped after {recorder.max_iter} sweeps: increase max_iter"
        if since >= patience:
            return best, f"stopped: no progress over {patience} sweeps"
        candidate = None
        if accelerate:
            proposal = _extrapolate(anderson, current)
            candidate = None if proposal is None else recorder.attempt(*proposal)
            if candidate is not None and not (
                candidate.residual < current.residual and _grows_little(candidate, current)
            ):
                candidate = None
            if proposal is not None and candidate is None:
                anderson.reset()
            used = None
        if candidate is None:
            candidate, rate = _damped(recorder, current, rate)
            if candidate is None:
                return best, "stopped: sweeps fail at any damping"
            used = rate
            better = candidate.residual < current.residual
            rate = min(damping, rate * _RECOVERY) if better else rate * _SETBACK
            rate = max(rate, SMALLEST_DAMPING)
        current = candidate
        recorder.accept(current, used)
        best = current if current.residual < best.residual else best
        since += 1
        if best.residual <= 0.5 * milestone:
            milestone, since = best.residual, 0
    return current, ""


def _damped(recorder: Recorder, current: EPEvaluation, rate: float):
    while rate >= SMALLEST_DAMPING:
        h = current.h + rate * (current.target_h - current.h)
        lam = current.lam + rate * (current.target_lam - current.lam)
        if rate == 1.0:
            h, lam = current.target_h, current.target_lam
        candidate = recorder.attempt(h, lam)
        if (
            candidate is not None
            and candidate.residual <= LARGEST_WORSENING * current.residual
            and _grows_little(candidate, current)
        ):
            return candidate, rate
        rate *= 0.5
    return None, rate


def _grows_little(candidate: EPEvaluation, current: EPEvaluation) -> bool:
    return bool((candidate.var <= LARGEST_GROWTH * current.var).all())


def _extrapolate(anderson: Anderson, current: EPEvaluation) -> tuple[Array, Array] | None:
    # In units of q: what a change of a site alone would do to its marginal.
    std = np.sqrt(current.var)
    weights = np.concatenate([std, current.var + std * np.abs(current.mean)])
    x = np.concatenate([current.h, current.lam])
    step = np.concatenate([current.target_h, current.target_lam]) - x
    proposal = anderson.propose(x, step, weights)
    if proposal is None:
        return None
    h, lam = np.split(proposal, 2)
    # A precision that neither the sites nor their targets have negative is not made so.
    least = 0.5 * np.minimum(current.lam, current.target_lam)
    return h, np.where(least >= 0.0, np.maximum(lam, least), lam)
