"""A chain's steps by the native loop, many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from pymc_augconj.engines.gibbs.coordinates import flatten
from pymc_augconj.engines.gibbs.moves.latents import OVERRELAXATION
from pymc_augconj.engines.gibbs.moves.ridges import Ridge
from pymc_augconj.engines.gibbs.sampler import GibbsSampler
from pymc_augconj.errors import AugmentationError
from pymc_augconj.linalg.dense import SMALL_ERROR
from pymc_augconj.plan import ALONG, BY_ENTRY
from pymc_augconj.point import Point
from pymc_augconj.python_mode.tape import NoTapeError, OnTape, TapeBuilder
from pymc_augconj.typing import Array

from .columns import MOVES as MOVES_OF_COLUMNS
from .columns import Columns
from .precisions import Spans, columns_of, coordinates
from .problem import MOVES, N_STATS, make_problem

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
    trials_beside : sequence of ndarray
        Evaluations of each of the slices of other latents that are drawn in turn.
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
    trials_beside: Sequence[Array] = ()
    statistics: dict[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Their number."""
        return len(self.outputs)

    def points(self) -> Iterator[DrawnPoint]:
        """Yield the points after each step."""
        return (DrawnPoint(self, self.entries, row) for row in range(self.steps))


class NativeLoop:
    """Makes steps of the chains of one model, those of the Python step ``sampler``.

    Values of ``recorded``, a function of the point, are recorded too, unless it has no tape. The
    samplers ``beside`` are those of latents that are drawn after the first ones, which they
    multiply; values move along the ``ridges`` of all before that. Raises NoTapeError if it cannot
    make the model's steps.
    """

    def _read_block(
        self, sampler: GibbsSampler, point: Point, columns: Spans, ridges: Sequence[Ridge] = ()
    ) -> None:
        """Read the model of a sampler's latents."""
        self._problem, self._entries, self.layout = make_problem(
            sampler.chain, point, columns=columns, ridges=ridges
        )
        if sampler.sweeps > 1 and not self._problem.design.offsets.size:
            raise NoTapeError("draws of latents given nothing that is drawn between")
        from . import density, held, kernel, slices, work  # which import Numba

        self._density, self._slices = density, slices
        self._kernel: Any = kernel
        self._work = w = work.make_work(self._problem)
        # Updates of one scalar each are one after the other in the same arrays.
        self._moves = MOVES
        of_blocks = range(len(self._problem.shared.ridges) - 1)
        self._scalars = [*sampler.chain.plan.ridges, *(f"{ALONG}{i}" for i in of_blocks)]
        if isinstance(self._entries, Columns):
            from . import column_steps

            self._kernel, self._moves = column_steps, MOVES_OF_COLUMNS
            size = max(w.scratch.shape[1], self._entries.theta.size)
            self._work = w._replace(scratch=np.empty((4, size)))
        else:
            of_entries = self._entries.densities
            for tapes, file in ((self._problem.held, w.file), (of_entries, of_entries.file)):
                held.read_part(tapes, w.registers, file, held.OF_DATA)
        # The whitened latents that were drawn last, on which the next ones may depend.
        self._v = np.zeros(self._problem.std.size)

    def __init__(
        self, sampler: GibbsSampler, point: Point, recorded: OnTape | None = None,
        beside: Sequence[GibbsSampler] = (), ridges: Sequence[Ridge] = (),
    ) -> None:  # fmt: skip
        every: list[Any] = []
        for own in (sampler, *beside) if beside else ():
            every += [*own.chain.plan.updated, *own.model.blocks]
        spans = columns_of([one.shape for one in every])
        columns = dict(zip([one.value_name for one in every], spans, strict=True))
        self._read_block(sampler, point, columns, ridges)
        self.layout = self.layout._replace(entries=columns or self.layout.entries)
        self._beside = [object.__new__(NativeLoop) for _ in beside]
        for loop, other in zip(self._beside, beside, strict=True):
            loop._read_block(other, point, columns)
            loop._work = loop._work._replace(row=self._work.row)
        self._size = max(own.stop for own, _ in self.layout.entries.values())
        recorded = None if sampler.model.forward else recorded
        self._recorded = of_all_steps(recorded, self.layout.entries, self._size)
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
        updates: Mapping[str, Any], steps: int, *, tune: bool, beside: Sequence[Any] = (),
    ) -> Block:  # fmt: skip
        """Make steps; fewer where one is for Python, perhaps none.

        ``updates`` are those of hyperparameters, by move, with a ``schedule`` as
        :class:`.SliceUpdate`; they learn if told to ``tune``. ``beside`` has the generator, sampler
        and updates of each block of latents that is drawn after the first.
        """
        if not beside and self.whitened(point) is None:
            every = coordinates(sampler.chain, point)
            self._v = np.concatenate([self._v[:0], *every])[self.layout.order]
        generators = [rng.bit_generator, *(own.bit_generator for own, *_ in beside)]
        given, v = [one.state for one in generators], self._v
        block = self._made(rng, sampler, point, updates, steps, tune, beside)
        if block.steps < steps:
            # The step that was begun is undone.
            self._v = v
            for one, state in zip(generators, given, strict=True):
                one.state = state
            block = self._made(rng, sampler, point, updates, block.steps, tune, beside)
        self._block = block
        return block

    def check_evidence(
        self, sampler: GibbsSampler, point: Point, updates: Mapping[str, Any], expected: float
    ) -> None:
        """Compare the log evidence at a point with Python's; raise where they differ.

        That of models with an ω is of this ω, and not compared.
        """
        if self._problem.drawn.number.size:
            return
        given, _ = self._turn(np.random.default_rng(0), sampler, point, updates, tune=False)
        if self._kernel.run_steps(*given, *np.empty((2, 1, 0))):
            _compare("log evidence", expected, self._density.log_evidence(self._work))

    def check_density(self, sampler: GibbsSampler, point: Point, found: float) -> None:
        """Compare the log density of a point that was made with Python's.

        Python reads latents from the point, in which rounding leaves them no digits where their
        scale is far smaller than their mean.
        """
        expected = sampler.chain.log_density(point)
        _compare("log density", expected, found, partial(sampler.rounding, point))

    def _hold(self, sampler: GibbsSampler) -> int:
        """Take the held sites as they were chosen; return the number of slices."""
        w, tilted = self._work, next((part.tilted for part in sampler.parts), None)
        if tilted is not None:
            w.record[:] = tilted.record
            nu = np.empty((tilted.ensemble, w.u.size))
            self._work = w._replace(nu=nu, ratios=np.empty(len(nu)))
        return 0 if tilted is None else tilted.count

    def _made(
        self, rng: np.random.Generator, sampler: GibbsSampler, point: Point,
        updates: Mapping[str, Any], steps: int, tune: bool, beside: Sequence[Any] = (),
    ) -> Block:  # fmt: skip
        # Trajectories are Python's.
        steps = 0 if sampler.follows else steps
        turns = [self._turn(rng, sampler, point, updates, tune)]
        for loop, (own_rng, own, own_updates) in zip(self._beside, beside, strict=True):
            turns.append(loop._turn(own_rng, own, point, own_updates, tune))
        n_stats = N_STATS + len(beside)
        outputs, stats = np.empty((steps, self._size)), np.empty((n_stats, steps))
        if beside:
            self._work.row[:] = np.concatenate([point[x].ravel() for x in self.layout.entries])
            done = self._in_turn([given for given, _ in turns], outputs, stats)
        else:
            done = self._kernel.run_steps(*turns[0][0], outputs, stats) if steps else 0
        for _, keep in turns if done == steps else ():
            keep()
        return self._block_of(outputs[:done], stats[:, :done], point)

    def _in_turn(self, turns: Sequence[tuple[Any, ...]], outputs: Array, stats: Array) -> int:
        """Make steps of all latents, one block after the other; return their number."""
        from numba import typeof

        row, run, n = self._work.row, self._kernel.run_steps, N_STATS
        found, stop, calls = np.empty((len(turns), n, 1)), 0, []
        for loop, turn, own in zip((self, *self._beside), turns, found, strict=True):
            start, stop = stop, stop + loop._problem.outputs.size
            given = *turn, row[None, start:stop], own
            # To find types takes longer than the arithmetic of a step.
            calls.append((run.compile(tuple(map(typeof, given))), given))
        for step in range(len(outputs)):
            if not all(call(*given) for call, given in calls):
                return step
            outputs[step], stats[:n, step] = row, found[0, :, 0]
            # The density is that of all.
            stats[0, step], stats[2, step] = found[-1, 0, 0], found[:, 2, 0].sum()
            stats[n:, step] = found[1:, 4, 0] / np.maximum(found[1:, 3, 0], 1.0)
        return len(outputs)

    def _turn(
        self, rng: np.random.Generator, sampler: GibbsSampler, point: Point,
        updates: Mapping[str, Any], tune: bool,
    ) -> tuple[tuple[Any, ...], Callable[[], None]]:  # fmt: skip
        """Return what the kernel is given of some latents, and what keeps what it has written."""
        xs = {move: self._flat(point, move) for move in self._moves}
        learned = {move: self._learned(updates[move], x.size, tune) for move, x in xs.items()}
        parts = [part for move, x in xs.items() for part in (learned[move], x)]
        by_entry = [updates[f"{BY_ENTRY}{h.name}"].state for h in sampler.chain.plan.by_entry]
        self._work.registers[self._entries.of_theta] = self._flat(point, BY_ENTRY)
        widths = np.concatenate([np.empty(0), *(state["widths"] for state in by_entry)])
        n_tunes = np.array([state["n_tunes"] for state in by_entry], dtype=np.intp)
        names = self._scalars
        scalars = [self._learned(updates[name], 1, tune) for name in names]
        along = np.array([own.along for own in scalars], dtype=np.intp)
        fields = zip(*(scalars or [next(iter(learned.values()))]), strict=True)
        every: Any = [np.concatenate(x) if isinstance(x[0], np.ndarray) else x[0] for x in fields]
        v, slices, of = self._v.copy(), self._hold(sampler), self._slices.Learned
        nu, last = self._work.nu[0], [part.nu for part in sampler.parts]
        alternates = any(own is not None and own.size == nu.size for own in last)
        if alternates:
            nu[:] = last[0]

        def keep() -> None:
            self._v = v
            for part in sampler.parts:
                part.nu = None if part.nu is None else nu.copy()
            each = np.split(widths, self._entries.begin[1:])
            for state, own_widths, n in zip(by_entry, each, n_tunes, strict=False):
                state |= {"widths": own_widths, "n_tunes": int(n)}
            for i, name in enumerate(names):
                own: Any = (x[i : i + 1] if isinstance(x, np.ndarray) else x for x in every)
                learned[name] = of(*own)
            if tune:
                self._take(updates, learned)

        given = rng, self._problem, self._entries, self._work, *parts, of(*every), along
        given = *given, widths, n_tunes, v, sampler.sweeps, slices
        return (*given, OVERRELAXATION, alternates), keep

    def _take(self, updates: Mapping[str, Any], learned: Mapping[str, Any]) -> None:
        """Take what updates have learned."""
        for move, own in learned.items():
            state = {"count": int(own.number[0]), "mean": own.mean, "scatter": own.scatter}
            steps_out = {"widths": own.widths, "n_tunes": int(own.n_tunes[0])}
            updates[move].state |= state | steps_out
            updates[move].end_window()

    def _block_of(self, outputs: Array, stats: Any, point: Point) -> Block:
        def column(own: slice, shape: tuple[int, ...]) -> Array:
            return outputs[:, own].reshape(-1, *shape)

        layout = self.layout
        fields: Any = *stats[:6], list(stats[6:])
        # Others are to be drawn forward.
        entries = {
            name: column(*layout.entries[name])
            if name in layout.entries
            else np.empty((len(outputs), *np.shape(value)))
            for name, value in point.items()
        }
        further = None if self._recorded is None else self._recorded(outputs)
        return Block(outputs, entries, further, *fields)

    def _flat(self, point: Point, move: str) -> Array:
        return flatten(self.layout.members[move], point)

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

    tape = TapeBuilder(of_rows=True)
    given = tape.inputs((size,))
    point = {name: given[own].reshape(shape) for name, (own, shape) in entries.items()}
    try:
        found = [] if recorded is None else tape.evaluate(recorded, point)
        code, start = tape.finish()
    except NoTapeError:
        return None
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
