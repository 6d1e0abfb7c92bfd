"""Updates of the hyperparameters of one move: by slices, or by PyMC's NUTS on a function.

An update is called once per step with the density of that step, which changes with ω. The scales,
axes and step sizes that it learns during tuning are kept from step to step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from pymc.blocking import RaveledVars
from pymc.step_methods.hmc.integration import CpuLeapfrogIntegrator
from pymc.step_methods.hmc.nuts import NUTS
from pymc.step_methods.hmc.quadpotential import QuadPotentialDiagAdapt
from pymc.step_methods.step_sizes import DualAverageAdaptation

from pymc_augconj.engines.gibbs.targets import Target
from pymc_augconj.typing import Array

__all__ = ["EntrywiseSliceUpdate", "GradientUpdate", "SliceUpdate"]

# Length of the first window after which the covariance is re-estimated during tuning; windows
# double.
_FIRST_WINDOW = 25

# Length of the initial interval of a slice, in standard deviations along the axis. So wide an
# interval rarely needs stepping out, which costs two evaluations before the first proposal;
# shrinking it costs two or three.
_WIDTH = 10.0
# Of stepping out, while the axes are not known.
_MAX_STEPS = 100


class SliceUpdate:
    """Slice sampling along the principal axes of the posterior, as learned during tuning.

    Until the first estimate of the covariance, coordinates are updated one by one, with stepping
    out from intervals whose lengths are averages of those that slices had.

    Parameters
    ----------
    size : int
        Number of scalars.

    References
    ----------
    Neal (2003), Slice sampling, figures 3 and 5.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.state: dict[str, Any] = {
            "widths": np.ones(size),
            "n_tunes": 0,
            "count": 0,
            "window": _FIRST_WINDOW,
            "mean": np.zeros(size),
            "scatter": np.zeros((size, size)),
            "axes": None,
            "centre": None,
        }

    def __call__(self, target: Target, start: Array, rng: np.random.Generator, tune: bool) -> Array:
        """Return the next value."""
        state = self.state
        x, value = start, target(start)
        if state["axes"] is None:
            n = state["n_tunes"]
            widths = state["widths"].copy()
            for i, axis in enumerate(np.eye(self.size)):
                x, value, width = _slice(target, x, value, axis, widths[i], _MAX_STEPS, rng)
                if tune:
                    widths[i] = (n * widths[i] + width) / (n + 1)
            state["widths"], state["n_tunes"] = widths, n + tune
        else:
            for axis in state["axes"].T:
                x, value, _ = _slice(target, x, value, axis, _WIDTH, 1, rng)
        if tune:
            self._learn(x)
        return x

    @property
    def schedule(self) -> tuple[int, int]:
        """Elliptical slices a step, and slices along axes, see :class:`.kernel.Learned`."""
        return 0, 2

    def _along_one_axis(self, target: Target, start: Array, rng: np.random.Generator) -> Array:
        """Return the next value on a line along a principal axis, chosen at random."""
        axis = self.state["axes"][:, rng.integers(self.size)]
        moved, _, _ = _slice(target, start, target(start), axis, _WIDTH, 1, rng)
        return moved

    def _learn(self, x: Array) -> None:
        """Add ``x`` to the running covariance; at the end of a window, take its axes."""
        state = self.state
        state["count"] += 1
        n = state["count"]
        difference = x - state["mean"]
        state["mean"] = state["mean"] + difference / n
        state["scatter"] = state["scatter"] + np.outer(difference, x - state["mean"])
        if n < state["window"]:
            return
        # Shrunk towards a small multiple of the identity, as Stan does for its metric.
        cov = state["scatter"] / (n - 1) * (n / (n + 5.0)) + 1e-3 * (5.0 / (n + 5.0)) * np.eye(
            self.size
        )
        variances, vectors = np.linalg.eigh(cov)
        state["axes"], state["centre"] = vectors * np.sqrt(variances), state["mean"]
        state["window"] *= 2
        state["count"] = 0
        state["mean"] = np.zeros(self.size)
        state["scatter"] = np.zeros((self.size, self.size))


def _slice(
    target: Target,
    x: Array,
    value: float,
    axis: Array,
    width: float,
    max_steps: int,
    rng: np.random.Generator,
) -> tuple[Array, float, float]:
    """Return the next point on a line through ``x``, its log density, and the interval's length.

    The interval of length ``width`` around ``x`` grows by stepping out at most ``max_steps − 1``
    times, which are divided between its ends at random.
    """
    level = value - rng.standard_exponential()
    left = -width * rng.random()
    right = left + width
    if max_steps > 1:
        to_the_left = int(rng.integers(max_steps))
        for _ in range(to_the_left):
            if target(x + left * axis) < level:
                break
            left -= width
        for _ in range(max_steps - 1 - to_the_left):
            if target(x + right * axis) < level:
                break
            right += width
    while True:
        z = left + (right - left) * rng.random()
        moved = x + z * axis
        value = target(moved)
        if value >= level:
            return moved, value, right - left
        if z < 0.0:
            left = z
        else:
            right = z


class EntrywiseSliceUpdate:
    """Slice sampling of all entries of a vector at once, which are independent.

    Every entry has an interval of its own, which grows by stepping out and shrinks until a value
    on the slice is found; an evaluation serves all entries.

    Parameters
    ----------
    size : int
        Number of scalars.

    References
    ----------
    Neal (2003), Slice sampling, figures 3 and 5.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.state: dict[str, Any] = {"widths": np.ones(size), "n_tunes": 0}

    def __call__(
        self,
        target: Callable[[Array], Array],
        start: Array,
        rng: np.random.Generator,
        tune: bool,
    ) -> Array:
        """Return the next value; ``target`` returns the log density of each entry."""
        size, widths, n = self.size, self.state["widths"], self.state["n_tunes"]
        level = target(start) - rng.standard_exponential(size)
        left = start - widths * rng.random(size)
        right = left + widths
        to_the_left = rng.integers(_MAX_STEPS, size=size)
        for end, step, most in (
            (left, -widths, to_the_left),
            (right, widths, _MAX_STEPS - 1 - to_the_left),
        ):
            # What does not grow any more is evaluated where it is.
            for count in range(_MAX_STEPS):
                grows = (count < most) & (target(end) >= level)
                most = np.where(grows, most, 0)
                if not grows.any():
                    break
                end += np.where(grows, step, 0.0)
        x, searched = start.copy(), np.ones(size, dtype=bool)
        while searched.any():
            proposed = np.where(searched, left + (right - left) * rng.random(size), x)
            accepted = searched & (target(proposed) >= level)
            x[accepted] = proposed[accepted]
            searched &= ~accepted
            left = np.where(searched & (proposed < start), proposed, left)
            right = np.where(searched & (proposed >= start), proposed, right)
        if tune:
            self.state = {"widths": (n * widths + right - left) / (n + 1), "n_tunes": n + 1}
        return x


class GradientUpdate:
    """PyMC's NUTS on the density of one step; the step size and scales are kept.

    Parameters
    ----------
    size : int
        Number of scalars.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._nuts = _FunctionNUTS(size)

    @property
    def state(self) -> Any:
        """The state of the adaptation."""
        return self._nuts.learned()

    @state.setter
    def state(self, learned: Any) -> None:
        self._nuts.restore(learned)

    def __call__(self, target: Target, start: Array, rng: np.random.Generator, tune: bool) -> Array:
        """Return the next value."""
        return self._nuts.move(target, start, rng, tune)


class _FunctionNUTS(NUTS):
    """PyMC's NUTS on a plain function with its gradient."""

    # The target changes at every step, so that long trajectories are not worth their cost.
    _MAX_TREEDEPTH = 6

    def __new__(cls, size: int) -> Self:
        # NUTS's own constructor reads a model and compiles its gradient.
        return object.__new__(cls)

    def __getnewargs_ex__(self) -> tuple[tuple[int], dict[str, Any]]:
        return (self.size,), {}

    def __init__(self, size: int) -> None:
        self.size = size
        self.potential = QuadPotentialDiagAdapt(
            size, np.zeros(size), np.ones(size), 10, adaptation_window=50, rng=0
        )
        self.step_size = 0.25 / size**0.25
        self.step_adapt = DualAverageAdaptation(self.step_size, 0.8, 0.05, 0.75, 10)
        self.adapt_step_size, self.Emax, self._step_rand = True, 1000, None
        self.iter_count = self.divergences = self._num_divs_sample = 0
        self.max_treedepth = self.early_max_treedepth = self._MAX_TREEDEPTH
        self._reached_max_treedepth = 0

    def move(self, target: Target, start: Array, rng: np.random.Generator, tune: bool) -> Array:
        """Return the new value."""
        self.rng, self.tune = rng, tune
        self.potential.set_rng(rng)
        self.integrator = CpuLeapfrogIntegrator(self.potential, _AsLogpDlogp(target))
        moved, _ = self.astep(RaveledVars(np.array(start), ()))
        return moved.data

    def learned(self) -> dict[str, Any]:
        """Return the state of the adaptation."""
        return {
            "potential": self.potential.sampling_state,
            "step_adapt": self.step_adapt.sampling_state,
            "iter_count": self.iter_count,
        }

    def restore(self, learned: dict[str, Any]) -> None:
        """Set the state of the adaptation."""
        self.potential.sampling_state = learned["potential"]
        self.step_adapt.sampling_state = learned["step_adapt"]
        self.iter_count = learned["iter_count"]


class _AsLogpDlogp:
    """The interface of a compiled log density that PyMC's integrator needs."""

    dtype = "float64"
    _raveled_inputs = True

    def __init__(self, target: Target) -> None:
        self._pytensor_function = target.value_and_gradient
