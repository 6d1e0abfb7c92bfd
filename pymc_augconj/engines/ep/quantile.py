"""Quantile propagation: sites that match the tilted distributions in the L2 Wasserstein distance.

The Gaussian nearest to a tilted distribution has its mean and the standard deviation

    σ_QP = σ_EP (1 − δ),    δ = ½ E_tilted[(u − z)²],    u = (f − mean)/σ_EP,  z = Φ⁻¹(F(f)).

QP runs EP with tilted standard deviations multiplied by 1 − δ. As δ varies slowly, it is fixed
while sweeps of EP converge, and then recomputed, until the state agrees with its own δ. Where
sweeps fail, Newton steps follow the fixed point from one δ to the next. QP is the optimum of no
known objective: hyperparameters are EP's, and the evidence is EP's formula at QP's sites.

References
----------
Zhang, R., Walder, C., Bonilla, E., Rizoiu, M.-A. & Xie, L. (2020). Quantile propagation for
Wasserstein-approximate Gaussian processes. NeurIPS 33.
"""

from __future__ import annotations

import numpy as np

from pymc_augconj.typing import Array

from .objective import (
    EPEvaluation,
    EPObjective,
    EPResult,
    EPState,
    Recorder,
    Report,
    all_moments,
)
from .solve import LARGEST_SIZE, polish, solve
from .sweeps import sweep_parallel

# Sweeps at one δ reduce the mismatch from its update to this share.
_PART = 0.01
_PATIENCE = 20
# Shortest step towards a new δ, as a share of the way.
_SHORTEST_STEP = 1.0 / 64.0


def solve_qp(
    objective: EPObjective,
    start: EPState | None = None,
    *,
    damping: float = 1.0,
    tol: float = 1e-8,
    max_iter: int = 400,
    accelerate: bool = True,
    report: Report | None = None,
) -> EPResult:
    """Find a fixed point of QP; its residual is evaluated with the δ of the state."""
    if start is None:
        start = solve(
            objective, damping=damping, tol=tol, max_iter=max_iter, accelerate=accelerate
        ).state
    recorder = Recorder(objective, max_iter, tol, report)
    current = recorder.attempt(start.h, start.lam)
    if current is None:
        current = objective.at_prior()
    best, held, failure, repelled = None, np.ones(current.h.size), "", False
    while True:
        shrink = 1.0 - _deltas(objective, current)
        current = objective.rematched(current, shrink)
        if best is None or current.residual < best.residual:
            best = current
        if best.residual <= tol or failure:
            break
        if recorder.left <= 0:
            failure = f"stopped after {max_iter} sweeps: increase max_iter"
            break
        recorder.tol = max(_PART * current.residual, 0.5 * tol)
        recorder.objective = objective.shrunk(shrink)
        if not repelled:
            following, failure = sweep_parallel(
                recorder, current, damping=damping, accelerate=accelerate, patience=_PATIENCE
            )
            repelled = bool(failure) and recorder.left > 0
        if repelled:
            following, failure = _follow(recorder, objective, current, held, shrink)
        current, held = following, shrink
    recorder.tol = tol
    return recorder.result(best, "parallel", failure)


def _follow(
    recorder: Recorder, objective: EPObjective, at: EPEvaluation, old: Array, new: Array
) -> tuple[EPEvaluation, str]:
    """Follow the fixed point from factors ``old`` to ``new`` by Newton steps, even if it repels."""
    if at.h.size > LARGEST_SIZE:
        return at, f"stopped: sweeps fail, and Newton steps are for at most {LARGEST_SIZE} sites"
    done, step = 0.0, 1.0
    while done < 1.0 and recorder.left > 0:
        aim = min(1.0, done + step)
        shrink = old + aim * (new - old)
        recorder.objective = objective.shrunk(shrink)
        found = polish(recorder, objective.rematched(at, shrink))
        if found.residual <= recorder.tol:
            at, done = found, aim
            continue
        step *= 0.5
        if step < _SHORTEST_STEP:
            return at, "stopped: neither sweeps nor Newton steps reach a fixed point"
    return at, ""


def _deltas(objective: EPObjective, at: EPEvaluation) -> Array:
    if at.tilted.panels is not None:
        # Starts from the panels of the moments.
        return at.tilted.panels.delta()
    asked = {"power": objective.power, "delta": True}
    delta = all_moments(objective.groups, at.cavity_mean, at.cavity_var, **asked).delta
    assert delta is not None
    return delta
