"""Parallel sweeps of EP with adaptive damping and extrapolation.

A sweep moves every site towards its target by a fraction, the damping, which is halved where a
sweep fails and recovers where sweeps succeed. A sweep fails if there is no posterior, a cavity is
not proper, a marginal variance grows more than `LARGEST_GROWTH` times, or the residual more than
`LARGEST_WORSENING` times. An Anderson extrapolation of the last sweeps is taken where it lowers the
residual.
"""

from __future__ import annotations

from pymc_augconj.engines.anderson import Anderson, extrapolate

from .objective import EPEvaluation
from .record import Recorder

__all__ = ["SMALLEST_DAMPING", "sweep_parallel"]


SMALLEST_DAMPING = 0.01
LARGEST_GROWTH = 4.0
LARGEST_WORSENING = 2.0
# Factors of the damping after a sweep that lowered the residual, and after another one.
_RECOVERY, _SETBACK = 1.25, 0.5
# Sweeps without a halving of the residual that count as stuck.
PATIENCE = 40


def sweep_parallel(
    recorder: Recorder,
    current: EPEvaluation,
    *,
    damping: float = 1.0,
    accelerate: bool = True,
    patience: int = PATIENCE,
) -> tuple[EPEvaluation, str]:
    """Sweep until converged or stuck; return the best evaluation and the reason of the end."""
    anderson, rate = Anderson(), damping
    best, milestone, since = current, current.residual, 0
    while current.residual > recorder.tol:
        if recorder.left <= 0:
            return best, f"stopped after {recorder.max_iter} sweeps: increase max_iter"
        if since >= patience:
            return best, f"stopped: no progress over {patience} sweeps"
        candidate = None
        if accelerate:
            proposal = extrapolate(anderson, current)
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


def _damped(
    recorder: Recorder, current: EPEvaluation, rate: float
) -> tuple[EPEvaluation | None, float]:
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
