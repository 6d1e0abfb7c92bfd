"""log C = −log ∫ φ(e²) de over the real line, as a differentiable graph of the hyperparameters.

The double-exponential substitution e = s exp(½π sinh t) turns the integral over (0, ∞) into one
over t whose integrand decays twice exponentially at both ends, for algebraic tails of φ as for
exponential ones, so that the trapezoidal rule converges geometrically (Takahashi & Mori 1974). The
integral does not depend on the scale s, which is chosen such that −log φ(s²) is about one, without
a derivative. Beyond the last node the tail is continued as a power of e, with the exponent of the
last node; where that is not integrable, C = 0 and the log density is −∞.

References
----------
Takahashi, H. & Mori, M. (1974). Double exponential formulas for numerical integration.
Publications of the Research Institute for Mathematical Sciences 9.
"""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad
from pytensor.graph.basic import Variable

from .formula import Formula

__all__ = ["log_normalizer"]

_STEP = 1.0 / 18.0
_T = np.arange(-3.72, 5.95, _STEP)
# log(e/s), and the log of a node's weight, (de/dt)/s · step.
_LOG_E = 0.5 * np.pi * np.sinh(_T)
_LOG_WEIGHT = _LOG_E + np.log(0.5 * np.pi * np.cosh(_T) * _STEP)

# Grids of log e for the search of the scale, first by decades and then within one.
_LOG_SCALES = np.log(10.0) * np.arange(-30.0, 31.0)
_LOG_REFINED = np.log(10.0) * np.arange(-0.5, 0.51, 0.1)

# log of the share of the integrand's largest value below which a node adds nothing.
_NEGLIGIBLE = -60.0


def log_normalizer(phi: Formula, parameters: list[Variable]) -> Variable:
    """Return the graph of log C, of the shape that ``parameters`` broadcast to.

    Parameters
    ----------
    phi : Formula
        log φ as a formula of r = e².
    parameters : list of Variable
        Values of ``phi.parameters``.
    """
    ndim = max((p.ndim for p in parameters), default=0)

    def column(values: np.ndarray) -> Variable:
        # Nodes along a new first axis.
        return pt.constant(values.reshape((-1,) + (1,) * ndim))

    def log_phi(log_e: Variable) -> Variable:
        return phi(pt.exp(2.0 * log_e), parameters)

    log_scale = pt.zeros((1,) * (ndim + 1))
    for candidates in (_LOG_SCALES, _LOG_REFINED):
        log_e = log_scale + column(candidates)
        distance = pt.abs(pt.log(-log_phi(log_e)))
        distance = pt.where(pt.isnan(distance), np.inf, distance)
        best = pt.argmin(distance, axis=0, keepdims=True)
        shift = pt.constant(candidates)[best]
        log_scale = log_scale + shift
    log_scale = disconnected_grad(log_scale)

    # Where φ is zero its formula and its derivative may overflow, so the graph leaves it out there
    # instead of multiplying it by zero.
    log_e = log_scale + column(_LOG_E)
    log_terms = log_phi(log_e) + column(_LOG_WEIGHT)
    log_terms = pt.where(pt.isnan(log_terms), -np.inf, log_terms)
    largest = log_terms.max(axis=0, keepdims=True)
    kept = disconnected_grad(log_terms - largest) > _NEGLIGIBLE
    safe = pt.where(kept, log_e, log_scale)
    log_terms = pt.where(kept, log_phi(safe) + column(_LOG_WEIGHT), -np.inf)

    # φ ~ e^{−p} from the last node on: ∫ = e φ(e²)/(p − 1).
    ends = log_scale + column(_LOG_E[-2:])
    at_end = log_phi(pt.where(kept[-2:], ends, log_scale))
    power = disconnected_grad((at_end[0] - at_end[1]) / (_LOG_E[-1] - _LOG_E[-2]))
    reached = kept[-1] & kept[-2]
    # The last node's own weight counts half.
    tail = at_end[1] + _LOG_E[-1] - pt.log(pt.maximum(power - 1.0, 1e-300))
    tail = pt.where(reached & (power > 1.0), tail, -np.inf)
    half_last = pt.where(reached, pt.log(0.5), 0.0)
    log_terms = pt.set_subtensor(log_terms[-1], log_terms[-1] + half_last)
    total = pt.logsumexp(pt.concatenate([log_terms, tail[None]], axis=0), axis=0)
    log_c = -(np.log(2.0) + log_scale[0] + total)
    return pt.where(reached & (power <= 1.0), -np.inf, log_c)
