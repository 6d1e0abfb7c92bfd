"""The normaliser of φ, and checks of φ when a user writes a model.

log C = −log ∫ φ(e²) de over the real line, as a differentiable graph of the hyperparameters.

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

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.initial_point import make_initial_point_expression
from pymc.model import Model
from pytensor.gradient import disconnected_grad
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import toposort
from pytensor.tensor.random.op import RandomVariable

from pymc_augconj.errors import NotSuperGaussianError
from pymc_augconj.python_mode import without_compilation

from .formula import Formula

_LARGEST_AT_ZERO = 1e-9
# log e at which the exponent of the tail is computed, beyond the scale of any data.
_LOG_FAR = np.log(10.0) * np.array([40.0, 60.0, 80.0, 100.0])
_MOST_CHECKED = 5


def initial_values(graphs: Sequence[Variable], model: Model | None = None) -> list[np.ndarray]:
    """Return the values of graphs of random variables at PyMC's initial point.

    ``model``, by default the model in context, has the user's initial values.
    """
    graphs = list(graphs)
    if not graphs:
        return []
    kinds = RandomVariable | SymbolicRandomVariable
    nodes = [node for node in toposort(graphs) if isinstance(node.op, kinds)]
    # Variables such as components of a mixture are parts of another, from which PyMC starts.
    whole = [node for node in nodes if isinstance(node.op, SymbolicRandomVariable)]
    parts = {parent for node in whole for parent in node.inputs if parent.name is None}
    drawn = [rv for node in nodes if (rv := node.default_output()) not in parts]
    model = Model.get_context(error_if_none=False) if model is None else model
    strategies = {} if model is None else model.rvs_to_initial_values
    chosen = {rv: strategies.get(rv) for rv in drawn}
    values = make_initial_point_expression(
        free_rvs=drawn, rvs_to_transforms={}, initval_strategies=chosen
    )
    replaced = graph_replace(graphs, dict(zip(drawn, values, strict=True)), strict=False)
    with without_compilation():
        function = pytensor.function([], replaced, on_unused_input="ignore")
    return [np.asarray(value) for value in function()]


def check_phi(phi: Formula, parameters: Sequence[np.ndarray]) -> None:
    """Raise NotSuperGaussianError if log φ(0) is not zero or φ not completely monotone.

    For array parameters it checks the first few distinct values.
    """
    # Imported here, as other likelihoods need no Numba.
    from pymc_augconj.auxiliary.laplace_transform.complete_monotonicity import (
        check_completely_monotone,
    )

    for values in distinct(parameters)[:_MOST_CHECKED]:
        where = _described(phi, values)
        at_zero = float(phi.evaluate(np.zeros(1), values)[0])
        if not abs(at_zero) <= _LARGEST_AT_ZERO:
            raise NotSuperGaussianError(
                f"expected log_phi(0) = 0, that is φ(0) = 1, found {at_zero:.6g}{where}; subtract "
                "log_phi(0) and put it into log_c"
            )
        with np.errstate(all="ignore"):
            reason = check_completely_monotone(partial(phi.evaluate, parameters=values))
        if reason is not None:
            raise NotSuperGaussianError(
                f"{reason}{where}, so that the likelihood is no mixture of Gaussians and "
                "has no augmentation"
            )


def check_integrable(phi: Formula, parameters: Sequence[np.ndarray]) -> None:
    """Raise NotSuperGaussianError unless φ(e²) of a location family decays faster than 1/|e|."""
    for values in distinct(parameters)[:_MOST_CHECKED]:
        with np.errstate(all="ignore"):
            log_phi = phi.evaluate(np.exp(2.0 * _LOG_FAR), values)
            power = -np.diff(log_phi) / np.diff(_LOG_FAR)
        power = power[np.isfinite(power)]
        if power.size and power[-1] <= 1.0 + 1e-9:
            raise NotSuperGaussianError(
                "expected a φ(e²) that is integrable over e, found that it decays like "
                f"|e|^-{max(0.0, power[-1]):.3g}{_described(phi, values)}, so that there is no "
                "density of y; use a φ that decays faster than 1/|e|, or pass log_c to use it as a "
                "pseudo-likelihood"
            )


def distinct(parameters: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """Return the distinct sets of scalars in broadcast parameters."""
    if not parameters:
        return [[]]
    rows = np.stack([p.ravel() for p in np.broadcast_arrays(*parameters)], axis=-1)
    _, first = np.unique(rows, axis=0, return_index=True)
    return [[np.asarray(value) for value in rows[i]] for i in np.sort(first)]


def _described(phi: Formula, values: Sequence[np.ndarray]) -> str:
    pairs = zip(phi.parameters, values, strict=True)
    named = [f"{par.name} = {float(value):.4g}" for par, value in pairs if par.name]
    return f" at {', '.join(named)}" if named else ""


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

    ``phi`` is log φ as a formula of r = e², with values of its parameters.
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
