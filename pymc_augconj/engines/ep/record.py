"""Results of a run of EP: state, info and history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.typing import Array

from .objective import EPEvaluation, EPObjective

__all__ = ["EPInfo", "EPResult", "EPState", "Recorder", "Report", "Sweep"]


_FAILURES = (NotPositiveDefiniteError, FloatingPointError)


@dataclass(frozen=True)
class EPState:
    """The sites exp(h f − ½ λ f²), each of shape (N,), from which a run can continue."""

    h: Array
    lam: Array


@dataclass(frozen=True)
class Sweep:
    """Record of one sweep; ``damping`` is None for an extrapolation or an outer step."""

    residual: float
    evidence: float
    damping: float | None
    n_negative: int
    smallest_cavity_precision: float


@dataclass(frozen=True)
class EPInfo:
    """Report of a run.

    Attributes
    ----------
    converged : bool
        Whether the residual is within the tolerance.
    message : str
    method : str
        ``"parallel"``, ``"sequential"``, or ``"double loop"`` if sweeps alone failed.
    residual : float
        Relative moment mismatch, see
        :attr:`~pymc_augconj.engines.ep.objective.EPEvaluation.residual`.
    evidence : float
        log Z.
    sweeps : int
        Number of sweeps and outer steps.
    evaluations : int
        Number of sets of tilted moments, rejected sweeps included.
    damping : float
        The smallest damping of an accepted sweep.
    n_negative : int
        Number of sites of negative precision.
    smallest_cavity_precision : float
    quadrature_error : float
        Largest estimated relative error of a site's tilted moments.
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
    quadrature_error: float
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
    """History of a run, and its number of evaluations."""

    def __init__(
        self, objective: EPObjective, max_iter: int, tol: float, report: Report | None
    ) -> None:
        self.objective, self.max_iter, self.tol, self._report = objective, max_iter, tol, report
        self.history: list[Sweep] = []
        self.evaluations = 0

    @property
    def left(self) -> int:
        """Number of remaining sweeps."""
        return self.max_iter - len(self.history)

    def attempt(self, h: Array, lam: Array) -> EPEvaluation | None:
        """Return the evaluation at these sites, or None if it fails."""
        if not (np.isfinite(h).all() and np.isfinite(lam).all()):
            return None
        self.evaluations += 1
        try:
            return self.objective.evaluate(h, lam)
        except _FAILURES:
            return None

    def accept(self, at: EPEvaluation, damping: float | None) -> None:
        """Record one sweep."""
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
            quadrature_error=0.0 if at.tilted.error is None else float(at.tilted.error.max()),
            history=self.history,
        )
        return EPResult(at, info)
