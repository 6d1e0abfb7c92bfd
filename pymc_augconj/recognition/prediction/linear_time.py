"""Draws of a Markov process at new inputs, given its values at the old ones, in linear time.

By Matheron's rule: with f₀ a draw of the process at all inputs, and C = K + jitter I at the old,

    f* = m* + f₀* + K*ₓ C⁻¹ (f − m − f₀ − noise).
"""

from __future__ import annotations

import numpy as np
from pymc.model import Model
from pytensor.graph.basic import Apply
from pytensor.graph.traversal import ancestors

from pymc_augconj.gaussian.observations import SMALLEST_PRECISION
from pymc_augconj.linalg.state_space import MarkovFactor, transitions_of
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.latents.markov import MarkovRoot, inputs_beside, inputs_of
from pymc_augconj.recognition.processes.other_graphs import in_linear_time
from pymc_augconj.typing import Array, Generator

from .evaluate import in_variables

# Variance at new inputs that repeat old ones, relative to that of the process.
_ROUNDING = 1e-10
_NAME = "the covariance at the old and new inputs"


class MarkovProcess:
    """A process at its own inputs and P new ones.

    ``array`` has that of a :class:`.MarkovFactor` as a function of variables of the model, by name.
    """

    def __init__(self, node: Apply, array: PointFunction, Xnew: Array) -> None:
        self.array, self.inputs = array, inputs_of(node)
        if len(Xnew):
            self._every = inputs_beside(node, Xnew)

    @classmethod
    def find(cls, model: Model, name: str, Xnew: Array) -> MarkovProcess | None:
        """Return the process ``name``, if it takes linear time."""
        linear = in_linear_time(model)
        if linear is model or name not in linear.named_vars:
            return None
        for var in ancestors([linear[name]]):
            if var.owner is not None and isinstance(var.owner.op, MarkovRoot):
                (graph,), inputs = in_variables(linear, [var.owner.inputs[1]])
                return cls(var.owner, PointFunction(graph, inputs, first_calls=1), Xnew)
        return None

    def draw(
        self, rng: Generator, array: Array, deviation: Array, diagonal: Array, *, joint: bool
    ) -> Array:
        """Return a draw of f* − m*, (S, P), for each draw of f − m in ``deviation``, (S, n).

        ``array`` is the value of :attr:`array`; ``diagonal``, (P,), has the prior variances at the
        new inputs, white noise included. With ``joint`` the entries of a draw are drawn jointly.
        """
        n, noise, every = self.inputs.size, array[-1], self._every
        size, motion = every.size - n, transitions_of(every, array)
        variance = every.back(np.broadcast_to(motion.variance, every.size))[n:]
        extra = np.append(np.full(n, noise), np.full(size, 1.0 / SMALLEST_PRECISION))
        given = MarkovFactor(every, np.append(array[:-1], 0.0), extra, _NAME, motion)
        smooth = np.append(array[:-1], _ROUNDING * np.max(motion.variance))
        prior = MarkovFactor(every, smooth, None, _NAME, motion)

        def mean(deviation: Array) -> Array:
            weights = given.solve(np.pad(deviation, ((0, 0), (0, size))))
            weights[:, n:] = 0.0
            return prior.product(prior.transpose_product(weights))[:, n:]

        own = np.maximum(diagonal - variance, 0.0)
        eps = rng.standard_normal((len(deviation), size))
        if not joint:
            return mean(deviation) + np.sqrt(given.var()[n:] + own) * eps
        found = prior.product(rng.standard_normal((len(deviation), n + size)))
        away = deviation - found[:, :n] - np.sqrt(noise) * rng.standard_normal(deviation.shape)
        return found[:, n:] + mean(away) + np.sqrt(own) * eps
