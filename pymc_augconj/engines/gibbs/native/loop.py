"""A chain's steps by the native loop, many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from pymc_augconj.engines.gibbs.moves.latents import OVERRELAXATION
from pymc_augconj.engines.gibbs.sampler import GibbsSampler
from pymc_augconj.errors import AugmentationError
from pymc_augconj.linalg.dense import SMALL_ERROR
from pymc_augconj.plan import BY_ENTRY
from pymc_augconj.point import Point
from pymc_augconj.python_mode.tape import NoTapeError, OnTape, TapeBuilder
from pymc_augconj.typing import Array

from .problem import MOVES, columns_of, make_problem

# A difference between two ways, in nats and relative to what is compared, that is no rounding.
_WRONG, _RELATIVE = 10.0 * SMALL_ERROR, 1e-9
# Steps whose recorded values are computed at once.
_TOGETHER = 32


class Drawn(Mapping[str, Any]):
    """A row of columns by name, read when it is asked for: a step's statistics, or a point."""

    __slots__ = ("block", "columns", "row")

    def __init__(self, block: Block, columns: Mapping[str, Any], row: int) -> None:
        self.block, self.columns, self.row = block, columns, row

    def __getitem__(self, name: str) -> Any:
        return self.columns[name][self.row]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)


class DrawnPoint(Drawn):
    """A point, all values of which are arrays."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        return self.columns[name][self.row, ...]


@dataclass(frozen=True, eq=False)
class Block:
    """Some steps.

    Attributes
    ----------
    outputs : ndarray, shape (steps, n)
        All that is recorded, a row for each step; the arrays below are columns of it.
    entries : mapping
        Arrays of shape (steps, …) for every entry of the point.
    recorded : list of ndarray, optional
        The further values of all steps; None where they have no tape.
    log_density, log_evidence, evaluations : ndarray, shape (steps,)
    slices, trials, residual : ndarray, shape (steps,)
        Elliptical slices, evaluations that these took, and r, where sites are held.
    statistics : dict
        A sequence of length ``steps`` for every statistic, written by :class:`.AugmentedGibbs`.
    """

    outputs: Array
    entries: Mapping[str, Array]
    recorded: list[Array] | None
    log_density: Array
    log_evidence: Array
    evaluations: Array
    slices: Array
    trials: Array
    residual: Array
    statistics: dict[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Their number."""
        return len(self.outputs)

    def points(self) -> Iterator[DrawnPoint]:
        """Yield the points after each step."""
        return (DrawnPoint(self, self.entries, row) for row in range(self.steps))


class NativeLoop:
    """Makes steps of the chains of one model.

    Parameters
    ----------
    sampler : GibbsSampler
        The Python step.
    point : mapping
    recorded : OnTape, optional
        A function of the point whose values are recorded too, unless it has no tape.

    Raises
    ------
    NoTapeError
        If it cannot make the model's steps.
    """

    def __init__(self, sampler: GibbsSampler, point: Point, recorded: OnTape | None = None) -> None:
        self._problem, self._entries, self.layout = make_problem(sampler.chain, point)
        self._recorded = of_all_steps(recorded, self.layout.entries, self._problem.outputs.size)
        if sampler.sweeps > 1 and not self._problem.design.offsets.size:
            raise NoTapeError("draws of latents given nothing that is drawn between")
        from . import density, held, kernel, slices, work  # which import Numba

        self._density, self._kernel, self._slices = density, kernel, slices
        self._work = work.make_work(self._problem)
        of_entries, w = self._entries.densities, self._work
        for tapes, file in ((self._problem.held, w.file), (of_entries, of_entries.file)):
            held.read_part(tapes, w.registers, file, held.OF_DATA)
        self._sweeps = sampler.sweeps
        # The whitened latents that were drawn last, on which the next ones may depend.
        self._v = np.zeros(self._problem.std.size)
        self._block: Block | None = None

    def whitened(self, point: Point) -> Array | None:
        """Return the whitened latents of a point that was drawn last; None of any other."""
        ours = isinstance(point, Drawn) and point.block is self._block
        return self._v if ours else None

    def restored(self, point: Point, v: Array) -> DrawnPoint:
        """Return a point to go on from as if it had been drawn last, with ``v``."""
        entries = {name: value[None] for name, value in point.items()}
        self._v, self._block = v, Block(np.empty((1, 0)), entries, None, *np.empty((6, 1)))
        return next(self._block.points())

    def run(
        self, rng: np.random.Generator, sampler: GibbsSampler, point: Point,
        updates: Mapping[str, Any], steps: int, *, tune: bool,
    ) -> Block:  # fmt: skip
        """Make steps; fewer where one is for Python, perhaps none.

        ``updates`` are those of hyperparameters, by move, with a ``schedule`` as
        :class:`.SliceUpdate`; they learn if told to ``tune``.
        """
        if self.whitened(point) is None:
            self._v = np.concatenate(sampler.chain.whitened(point))[self.layout.order]
        given, v = rng.bit_generator.state, self._v
        block = self._made(rng, sampler, point, updates, steps, tune)
        if block.steps < steps:
            # The step that was begun is undone.
            rng.bit_generator.state, self._v = given, v
            block = self._made(rng, sampler, point, updates, block.steps, tune)
        self._block = block
        return block

    def check_evidence(self, sampler: GibbsSampler, point: Point, expected: float) -> None:
        """Compare the log evidence at a point with Python's; raise where they differ.

        That of models with an ω is of this ω, and not compared.
        """
        p, w = self._problem, self._work
        theta, kinds = self._flat(point, "collapsed"), self._density
        self._hold(sampler)
        w.registers[p.theta] = theta
        w.registers[self._entries.of_theta] = self._flat(point, BY_ENTRY)
        kinds.evaluate(p, w, self._flat(point, "likelihood"), kinds.BY_LIKELIHOOD)
        self._kernel.hold(p, w)
        if not p.number.size and kinds.evaluate(p, w, theta, kinds.BY_EVIDENCE):
            _compare("log evidence", expected, self._density.log_evidence(w))

    def check_density(self, sampler: GibbsSampler, point: Point, found: float) -> None:
        """Compare the log density of a point that was made with Python's.

        Python reads latents from the point, in which rounding leaves them no digits where their
        scale is far smaller than their mean.
        """
        expected = sampler.log_density(point)
        _compare("log density", expected, found, partial(sampler.rounding, point))

    def _hold(self, sampler: GibbsSampler) -> int:
        """Take the held sites as they were chosen; return the number of slices."""
        w, tilted = self._work, sampler.parts[0].tilted
        if tilted is not None:
            w.record[:] = tilted.record
            nu = np.empty((tilted.ensemble, w.u.size))
            self._work = w._replace(nu=nu, ratios=np.empty(len(nu)))
        return 0 if tilted is None else tilted.count

    def _made(
        self, rng: np.random.Generator, sampler: GibbsSampler, point: Point,
        updates: Mapping[str, Any], steps: int, tune: bool,
    ) -> Block:  # fmt: skip
        p, kernel, v = self._problem, self._kernel, self._v.copy()
        outputs, stats = np.empty((steps, p.outputs.size)), np.empty((kernel.N_STATS, steps))
        xs = {move: self._flat(point, move) for move in MOVES}
        learned = {move: self._learned(updates[move], x.size, tune) for move, x in xs.items()}
        parts = [part for move, x in xs.items() for part in (learned[move], x)]
        by_entry = [updates[f"{BY_ENTRY}{h.name}"].state for h in sampler.chain.plan.by_entry]
        self._work.registers[self._entries.of_theta] = self._flat(point, BY_ENTRY)
        widths = np.concatenate([np.empty(0), *(state["widths"] for state in by_entry)])
        n_tunes = np.array([state["n_tunes"] for state in by_entry], dtype=np.intp)
        slices = self._hold(sampler)
        done = kernel.run_steps(
            rng, p, self._entries, self._work, *parts, widths, n_tunes, v, self._sweeps, slices,
            OVERRELAXATION, outputs, stats,
        )  # fmt: skip
        if done == steps:
            self._v = v
            each = np.split(widths, self._entries.begin[1:])
            for learned_by_entry, own_widths, n in zip(by_entry, each, n_tunes, strict=False):
                learned_by_entry |= {"widths": own_widths, "n_tunes": int(n)}
            if tune:
                self._take(updates, learned)
        return self._block_of(outputs[:done], stats[:, :done], point)

    def _take(self, updates: Mapping[str, Any], learned: Mapping[str, Any]) -> None:
        """Take what updates have learned."""
        for move, own in learned.items():
            state = {"count": int(own.number[0]), "mean": own.mean, "scatter": own.scatter}
            steps_out = {"widths": own.widths, "n_tunes": int(own.n_tunes[0])}
            updates[move].state |= state | steps_out
            updates[move].end_window()

    def _block_of(self, outputs: Array, stats: Iterable[Array], names: Iterable[str]) -> Block:
        def column(own: slice, shape: tuple[int, ...]) -> Array:
            return outputs[:, own].reshape(-1, *shape)

        layout = self.layout
        entries = {name: column(*layout.entries[name]) for name in names}
        further = None if self._recorded is None else self._recorded(outputs)
        fields: Any = stats
        return Block(outputs, entries, further, *fields)

    def _flat(self, point: Point, move: str) -> Array:
        own = self.layout.names[move]
        return np.concatenate([np.empty(0), *(point[name].ravel() for name in own)])

    def _learned(self, update: Any, size: int, tune: bool) -> Any:
        """Return an update as the loop reads it; of no hyperparameters there is none."""
        state = update.state
        # Arrays of another layout would be another type, for which the loop is compiled anew.
        axes = np.eye(size) if state["axes"] is None else np.ascontiguousarray(state["axes"])
        centre = np.zeros(size) if state["centre"] is None else state["centre"]
        own = (
            np.array([state["count"]]),
            np.array(state["mean"]),
            np.array(state["scatter"], order="C"),
        )
        schedule: tuple[int, int] = update.schedule if size else (0, 0)
        if size and state["axes"] is None:
            schedule = (0, self._slices.COORDINATES)
        widths = np.array(state["widths"]), np.array([state["n_tunes"]])
        return self._slices.Learned(
            centre, axes, np.ascontiguousarray(np.linalg.inv(axes)), *own, *schedule, tune, *widths
        )


def of_all_steps(
    recorded: OnTape | None, entries: Mapping[str, tuple[slice, tuple[int, ...]]], size: int
) -> Callable[[Array], list[Array]] | None:
    """Return what is recorded as a function of the ``size`` outputs of some steps.

    It is None where that has no tape. ``entries`` are the columns of the point's entries.
    """
    from pymc_augconj.python_mode.tape_kernel import run_rows  # which imports Numba

    tape = TapeBuilder()
    given = tape.inputs((size,))
    point = {name: given[own].reshape(shape) for name, (own, shape) in entries.items()}
    try:
        found = [] if recorded is None else tape.evaluate(recorded, point)
    except NoTapeError:
        return None
    code, start = tape.finish()
    file = np.repeat(start[:, None], _TOGETHER, axis=1)
    index = np.concatenate([np.empty(0, np.intp), *(x.ravel() for x in found)])
    columns = columns_of([x.shape for x in found])

    def of(outputs: Array) -> list[Array]:
        values = np.empty((len(outputs), index.size))
        for first in range(0, len(outputs), _TOGETHER):
            own = outputs[first : first + _TOGETHER]
            file[given, : len(own)] = own.T
            run_rows(code, 0, len(code), file)
            values[first : first + len(own)] = file[index, : len(own)].T
        return [values[:, own].reshape(-1, *shape) for own, shape in columns]

    return None if recorded is None else of


def _compare(
    name: str, expected: float, found: float, rounding: Callable[[], float] = float
) -> None:
    """Raise where two numbers differ by more than rounding; NaN has no digits to compare."""
    tolerance, difference = _WRONG + _RELATIVE * abs(expected), abs(found - expected)
    if difference > tolerance and difference > tolerance + rounding():
        raise AugmentationError(
            f"native step: expected a {name} of {expected:.8g}, as the Python step gives it, found "
            f"{found:.8g}; no draw of this chain can be trusted; sample chains of fewer than 500 "
            "steps, all of which Python makes, and please report it"
        )
