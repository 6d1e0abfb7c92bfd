"""One model: steps of the compiled loop beside Python's, from the same random numbers."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

import numpy as np
from pymc.model import Model

from pymc_augconj.api.native_step import AugmentedGibbs
from pymc_augconj.api.updates import GradientUpdate
from pymc_augconj.auxiliary.polya_gamma import distribution
from pymc_augconj.engines.gibbs.native.loop import NativeLoop
from pymc_augconj.python_mode.tape import NoTapeError

from .comparison import MismatchError, Outcome

__all__ = ["compare_steps"]

_TUNE, _STEPS = 60, 20
# Of a value, in units of its spread along the chain: one step adds rounding only.
_ROUNDING = 1e-6


# Or fewer tilts of h = 1 have other random numbers in Python.
@patch.object(distribution, "MANY", 0)
def compare_steps(model: Model, seed: int = 0) -> Outcome:
    """Make single steps in both ways, each from the state and the random numbers that Python's
    chain has come to, and compare every value, the evaluations and the state of the numbers.

    A slice whose level rounding decides takes another way; so one step in twenty may differ.
    """
    step = AugmentedGibbs(model=model)
    step.setup_chain(np.random.default_rng(seed), _TUNE, _STEPS)
    point = dict(step.recognition.start)
    for _ in range(_TUNE):
        point, _ = step.step(point)
    point = {name: np.array(value) for name, value in point.items()}
    sampler, rng = step._sampler, np.random.default_rng([seed, 1])
    if sampler is None or not sampler.is_settled:
        return Outcome("unverified", "the sampler is not settled")
    if any(isinstance(own, GradientUpdate) for own in step._updates.values()):
        return Outcome("read in Python", "moves along gradients")
    sampler.chain.verifies = False  # which takes further random numbers
    updates = {move: partial(own, tune=False) for move, own in step._updates.items()}
    try:
        loop = NativeLoop(sampler, point)
    except NoTapeError as error:
        return Outcome("read in Python", str(error))
    # Others are drawn forward, after a block.
    names = [name for name in point if name in loop.layout.entries]
    rows, differences = [], []
    for _ in range(_STEPS):
        given, state = rng.bit_generator.state, sampler.state
        block = loop.run(rng, sampler, point, step._updates, 1, tune=False)
        after, rng.bit_generator.state = rng.bit_generator.state, given
        sampler.state = state
        point, info = sampler.step(rng, point, updates)
        rows.append(np.concatenate([np.ravel(point[name]) for name in names]))
        if block.steps:
            (found,) = block.points()
            ours = np.concatenate([np.ravel(found[name]) for name in names])
            same = after == rng.bit_generator.state and block.evaluations[0] == info.evaluations
            differences.append(np.abs(ours - rows[-1]) if same else np.inf)
    if len(differences) < _STEPS // 2:
        return Outcome("unverified", "steps without digits are left to Python")
    spread = np.std(rows, axis=0) + _ROUNDING * (1.0 + np.abs(rows).max(axis=0))
    largest = np.array([np.max(difference / spread) for difference in differences])
    if np.count_nonzero(~(largest <= _ROUNDING)) > 1:
        raise MismatchError(f"differences of single steps, in spreads: {largest.tolist()}")
    return Outcome("read")
