"""A chain's steps by the native loop, many at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pymc_augconj.engines.gibbs.moves.latents import OVERRELAXATION
from pymc_augconj.engines.gibbs.sampler import GibbsSampler
from pymc_augconj.errors import AugmentationError
from pymc_augconj.linalg.rounding import SMALL_ERROR
from pymc_augconj.model import Point
from pymc_augconj.python_mode.tape import NoTapeError, OnTape
from pymc_augconj.typing import Array

from .problem import Layout, make_problem

__all__ = ["Block", "Drawn", "NativeLoop", "Update"]

# A difference between two ways, in nats and relative to what is compared, that is no rounding.
_WRONG, _RELATIVE = 10.0 * SMALL_ERROR, 1e-9


class Update(Protocol):
    """Slices along ellipses and axes that were learned, see :class:`.SliceUpdate`.

    Attributes
    ----------
    state : dict
        ``centre`` and ``axes``, and the moments of the present window.
    schedule : tuple of int
        Elliptical slices a step; and slices along axes, see :class:`.kernel.Learned`.
    """

    state: dict[str, Any]

    @property
    def schedule(self) -> tuple[int, int]: ...


class Drawn(dict[str, Array]):
    """A point that was drawn in a block, with the block and its row of it."""

    __slots__ = ("block", "row")

    block: Block
    row: int


@dataclass(frozen=True)
class Block:
    """Some steps.

    Attributes
    ----------
    layout : Layout
    outputs : ndarray, shape (count, n)
        What was recorded, a row for each step.
    log_density, log_evidence, evaluations : ndarray, shape (count,)
    """

    layout: Layout
    outputs: Array
    log_density: Array
    log_evidence: Array
    evaluations: Array

    def points(self, names: Iterable[str]) -> Iterator[Drawn]:
        """Yield every point, its entries in the order of ``names``."""
        columns = [(name, *self.layout.entries[name]) for name in names]
        for row, values in enumerate(self.outputs):
            point = Drawn((name, values[own].reshape(shape)) for name, own, shape in columns)
            point.block, point.row = self, row
            yield point

    def recorded(self) -> list[Array] | None:
        """Return the further values of all steps; None where they have no tape."""
        if self.layout.recorded is None:
            return None
        return [self.outputs[:, own].reshape(-1, *shape) for own, shape in self.layout.recorded]


class NativeLoop:
    """Makes steps of the chains of one model.

    Parameters
    ----------
    sampler : GibbsSampler
        The Python step.
    point : mapping
    recorded : OnTape, optional
        As for :func:`.make_problem`.

    Raises
    ------
    NoTapeError
        If it cannot make the model's steps.
    """

    def __init__(self, sampler: GibbsSampler, point: Point, recorded: OnTape | None = None) -> None:
        self._problem, self.layout = make_problem(sampler.chain, point, recorded)
        if sampler.sweeps > 1 and not self._problem.trials.size:
            raise NoTapeError("draws of latents given nothing that is drawn between")
        from . import kernel  # which imports Numba

        self._kernel, self._work = kernel, kernel.make_work(self._problem)
        self._sweeps = sampler.sweeps
        # The whitened latents that were drawn last, on which the next ones may depend.
        self._v = np.zeros(self._problem.std.size)
        self._block: Block | None = None

    def run(
        self,
        rng: np.random.Generator,
        sampler: GibbsSampler,
        point: Point,
        update: Update,
        steps: int,
        *,
        tune: bool,
    ) -> Block:
        """Make steps; fewer where one is for Python, perhaps none.

        Parameters
        ----------
        rng, sampler, point
        update : Update
            Of the hyperparameters.
        steps : int
        tune : bool
            Whether the update learns.
        """
        if not (isinstance(point, Drawn) and point.block is self._block):
            self._v = np.concatenate(sampler.chain.whitened(point))[self.layout.order]
        given, v = rng.bit_generator.state, self._v
        block = self._made(rng, point, update, steps, tune)
        if len(block.outputs) < steps:
            # The step that was begun is undone.
            rng.bit_generator.state, self._v = given, v
            block = self._made(rng, point, update, len(block.outputs), tune)
        self._block = block
        return block

    def check_evidence(
        self, rng: np.random.Generator, point: Point, update: Update, expected: float
    ) -> None:
        """Compare the log evidence at a point with Python's; raise where they differ."""
        work = self._work
        work.found[:] = np.nan
        self._made(rng, point, update, 0, False)
        _compare("log evidence", expected, self._kernel.log_evidence(work))

    def check_density(self, sampler: GibbsSampler, point: Point, found: float) -> None:
        """Compare the log density of a point that was made with Python's."""
        _compare("log density", sampler.log_density(point), found)

    def _made(
        self, rng: np.random.Generator, point: Point, update: Update, steps: int, tune: bool
    ) -> Block:
        p, state, kernel = self._problem, update.state, self._kernel
        x = np.concatenate([np.empty(0), *(point[name].ravel() for name in self.layout.theta)])
        axes = np.eye(x.size) if state["axes"] is None else state["axes"]
        centre = np.zeros(x.size) if state["centre"] is None else state["centre"]
        number, mean, scatter = (
            np.array([state["count"]]),
            state["mean"].copy(),
            state["scatter"].copy(),
        )
        # Of no hyperparameters there is no update.
        schedule = update.schedule if x.size else (0, 0)
        learned = kernel.Learned(
            centre, axes, np.linalg.inv(axes), number, mean, scatter, *schedule, tune
        )
        outputs, stats = np.empty((steps, p.outputs.size)), np.empty((kernel.N_STATS, steps))
        v = self._v.copy()
        done = kernel.run_steps(
            rng, p, self._work, learned, x, v, self._sweeps, OVERRELAXATION, outputs, stats
        )
        if done == steps:
            self._v = v
            if tune:
                update.state |= {"count": int(number[0]), "mean": mean, "scatter": scatter}
        return Block(self.layout, outputs[:done], *stats[:, :done])


def _compare(name: str, expected: float, found: float) -> None:
    """Raise where two numbers differ by more than rounding; NaN has no digits to compare."""
    if abs(found - expected) > _WRONG + _RELATIVE * abs(expected):
        raise AugmentationError(
            f"native step: expected a {name} of {expected:.8g}, as the Python step gives it, found "
            f"{found:.8g}; no draw of this chain can be trusted; use "
            "pm.sample(step=pac.AugmentedGibbs()), and please report it"
        )
