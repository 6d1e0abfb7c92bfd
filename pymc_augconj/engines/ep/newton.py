"""Newton's method on the mismatch between the moments of q and of the tilted distributions.

In x = f − μᵢ the covariance H of the statistics (x, −½x²) under q is block-diagonal, with Σ and ½
Σ∘Σ; the covariance T of the tilted distributions is diagonal in i. The mismatch E_q − E_tilted has
the Jacobian H − T (D⁻¹H − ηI) by the sites, D the marginal part of H: the cavities change with the
marginals of q and with the sites. The method converges near a fixed point only, but also where
sweeps do not.
"""

from __future__ import annotations

import numpy as np

from pymc_augconj.quadrature.tilted import Tilted
from pymc_augconj.typing import Array

from .objective import EPEvaluation
from .record import Recorder
from .sites import all_moments

__all__ = ["covariance_of_statistics", "polish", "tilted_covariance"]


# Each step has to halve the residual, after shortening to no less than this.
SHORTEST_STEP = 0.1


def polish(recorder: Recorder, current: EPEvaluation) -> EPEvaluation:
    """Take Newton steps as long as each halves the residual; return the last evaluation."""
    objective = recorder.objective
    shrink = np.broadcast_to(objective.shrink, current.h.shape)
    n = current.h.size
    while current.residual > recorder.tol and recorder.left > 0:
        asked = {"power": objective.power, "higher": True}
        tilted = all_moments(objective.groups, current.cavity_mean, current.cavity_var, **asked)
        H = covariance_of_statistics(current.posterior.predictor_cov())
        var, cross, square = tilted_covariance(tilted, current.mean)
        # The change of the cavities, D⁻¹H − ηI, and of the tilted moments.
        change = H / np.concatenate([current.var, 0.5 * current.var**2])[:, None]
        change[np.diag_indices(2 * n)] -= objective.power
        first = var[:, None] * change[:n] + cross[:, None] * change[n:]
        second = cross[:, None] * change[:n] + square[:, None] * change[n:]
        shift = tilted.mean - current.mean
        # −½(s²var + shift²) = s²·(−½E[x²]) + ½(s² − 1) shift²
        H[:n] -= first
        H[n:] -= (shrink**2)[:, None] * second + ((shrink**2 - 1.0) * shift)[:, None] * first
        gap = np.concatenate([-shift, 0.5 * (shrink**2 * tilted.var + shift**2 - current.var)])
        try:
            step = -np.linalg.solve(H, gap)
        except np.linalg.LinAlgError:
            return current
        d_h, d_lam = step[:n] + current.mean * step[n:], step[n:]
        size, candidate = 1.0, None
        while size > SHORTEST_STEP:
            candidate = recorder.attempt(current.h + size * d_h, current.lam + size * d_lam)
            if candidate is not None and candidate.residual <= 0.5 * current.residual:
                break
            size, candidate = 0.5 * size, None
        if candidate is None:
            return current
        current = candidate
        recorder.accept(current, None)
    return current


def covariance_of_statistics(cov: Array) -> Array:
    """Return H, the covariance of (x, −½x²) under q, (2N, 2N)."""
    n = cov.shape[0]
    H = np.zeros((2 * n, 2 * n))
    H[:n, :n] = cov
    H[n:, n:] = 0.5 * cov**2
    return H


def tilted_covariance(tilted: Tilted, mean: Array) -> tuple[Array, Array, Array]:
    """Return T: variance of x, its covariance with −½x², variance of −½x², each (N,)."""
    assert tilted.third is not None
    assert tilted.fourth is not None
    shift = tilted.mean - mean
    cross = -0.5 * tilted.third - shift * tilted.var
    square = tilted.fourth - tilted.var**2 + 4.0 * shift * (tilted.third + shift * tilted.var)
    return tilted.var, cross, 0.25 * square
