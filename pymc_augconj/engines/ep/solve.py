"""Expectation propagation: sites that match the moments of their tilted distributions.

The default is parallel sweeps (:mod:`.sweeps`). If these are stuck the double loop
(:mod:`.double_loop`) takes over, whose evidence rises at every outer step.
``schedule="sequential"`` is Minka's original, one site at a time.

Site precisions may be negative where the likelihood is not log-concave; then there may be several
fixed points.

References
----------
Minka, T. (2001). A family of algorithms for approximate Bayesian inference. MIT.
Jylänki, P., Vanhatalo, J. & Vehtari, A. (2011). Robust Gaussian process regression with a
Student-t likelihood. JMLR 12.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from pymc_augconj.engines.options import SMALLEST_DAMPING
from pymc_augconj.quadrature.tilted import SiteDensity
from pymc_augconj.typing import Array

from .double_loop import climb_double_loop
from .objective import EPObjective
from .record import EPInfo, EPResult, EPState, Recorder, Report
from .sites import SiteGroup, dense_prior
from .sweeps import sweep_parallel, sweep_sequential

__all__ = ["as_groups", "run_ep", "solve"]


def run_ep(
    C: Array,
    m: Array,
    sites: SiteDensity | Sequence[SiteGroup],
    start: EPState | None = None,
    *,
    power: float = 1.0,
    **options: Any,
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
        ``info.converged`` tells whether the state is a fixed point.
    """
    groups = as_groups(sites)
    result = solve(EPObjective(dense_prior(C, m), groups, power), start, **options)
    return result.state, result.info


def as_groups(sites: SiteDensity | Sequence[SiteGroup]) -> Sequence[SiteGroup]:
    """Return groups of sites, given groups or one density."""
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
        By default the prior, which is also used if ``start`` has no posterior.
    schedule : {"parallel", "sequential"}
    damping : float
        The largest fraction of the way to the targets, in (0, 1].
    tol : float
        Tolerance on the residual.
    max_iter : int
        Sweeps and outer steps in all.
    accelerate : bool
        Whether parallel sweeps are extrapolated.
    double_loop : bool
        Whether the double loop takes over where sweeps fail; for EP only.
    report : callable, optional
        Called with (Sweep, EPEvaluation) after each sweep.

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
    method: str = schedule
    if schedule == "sequential":
        current, failure = sweep_sequential(recorder, current, damping=damping)
    else:
        current, failure = sweep_parallel(recorder, current, damping=damping, accelerate=accelerate)
    stuck = current.residual > tol and recorder.left > 0
    if stuck and double_loop and np.all(objective.shrink == 1.0):
        current, failure = climb_double_loop(recorder, current)
        method = "double loop"
    return recorder.result(current, method, failure)
