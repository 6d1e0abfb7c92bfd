"""One model: read it, and compare its log density with PyMC's wherever a sampler may come."""

from __future__ import annotations

import re
import signal
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytensor
from numpy.typing import NDArray
from pymc.model import Model

import pymc_augconj as pac

from .interpreter import UnsupportedGraphError
from .reading import REST, Reading
from .reference import Density, PriorDraws, Reference

__all__ = ["MismatchError", "Outcome", "build", "check_step", "compare_densities", "guarded"]

Array = NDArray[np.float64]

_STEPS = 2
_SECONDS = 60.0

_FAILURES = (
    *("mismatch", "traceback", "invalid", "slow"),
    *("not finite", "fallen", "misread"),
)

# How far beyond a draw from its prior a latent is pushed, and a hyperparameter.
_FAR = (1.0, 6.0, 40.0)
_FAR_HYPER = 2.0


@dataclass(frozen=True)
class Outcome:
    """What became of a model.

    Attributes
    ----------
    kind : str
        ``"read"``, ``"refused"``, ``"unverified"`` (PyMC's own density has no digits anywhere),
        ``"unsupported"`` (PyMC's density cannot be evaluated here), ``"slow"``, ``"mismatch"``,
        ``"traceback"`` or ``"invalid"`` (no model of PyMC's); and of chains those of
        :func:`fuzz.chains.sample_chain`.
    detail : str
        The refusal's sentence, what differs, or the traceback.
    """

    kind: str
    detail: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether the package, or the fuzzer, is wrong."""
        return self.kind in _FAILURES


class MismatchError(Exception):
    """The package's density is not PyMC's."""


class _OutOfTime(BaseException):
    """Not to be caught by ``except Exception``."""


def build(text: str) -> Model:
    """Run a program and return its model."""
    namespace: dict[str, Model] = {}
    # Where in a program a node was made takes a third of the time of making it.
    pytensor.config.traceback__limit = 0
    exec(compile(text, "<fuzz>", "exec"), namespace)
    return namespace["model"]


def guarded(text: str, check, seconds: float = _SECONDS) -> Outcome:
    """Return what ``check(model)`` finds, or how it ends."""
    try:
        with _time_limit(seconds):
            return _outcome(text, check)
    except _OutOfTime:
        return Outcome("slow", f"more than {seconds:g} seconds of processor time")


def _outcome(text: str, check) -> Outcome:
    try:
        model = build(text)
    except pac.AugmentationError as error:
        return Outcome("refused", sentence(error))
    except Exception:
        return Outcome("invalid", traceback.format_exc(limit=-3))
    try:
        return check(model)
    except MismatchError as difference:
        return Outcome("mismatch", str(difference))
    except pac.AugmentationError as error:
        return Outcome("refused", sentence(error))
    except UnsupportedGraphError as error:
        return Outcome("unsupported", str(error))
    except Exception:
        return Outcome("traceback", traceback.format_exc(limit=-6))


def sentence(error: Exception | str) -> str:
    """Return an error's sentence, or a warning's, without the names and numbers of this model."""
    text = re.sub(r"(?<!\w)'[^' ]*'", "‘…’", str(error))
    return re.sub(r"\d[\d.e+-]*", "#", text)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    def stop(*_):
        raise _OutOfTime

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


# -- log densities --------------------------------------------------------------------------------


def compare_densities(model: Model, seed: int = 0) -> Outcome:
    """Compare the reading's log density with PyMC's at many points, then along a few steps."""
    reading = Reading(model)
    reference = Reference(model, seed)
    rng = np.random.default_rng(seed)
    verified: dict[str, bool] = dict.fromkeys(
        (site.name for site in reading.lgm.sites if not site.is_prior), False
    )
    for label, point in _points(model, reading, rng):
        try:
            ours = reading.log_densities(point)
        except pac.NotPositiveDefiniteError:
            continue  # outside the support of the sampler's target
        theirs = _grouped(reference(point), ours)
        if _different(ours, theirs):
            theirs = _grouped(reference(point, carefully=True), ours)
        for name in _different(ours, theirs):
            raise MismatchError(_difference(name, label, ours[name], theirs[name], point))
        for name, density in theirs.items():
            if name in verified:
                verified[name] |= bool((density.is_tight & np.isfinite(density.value)).any())
    if reading.can_sample:
        _compare_steps(reading, reference, rng)
    likelihoods = "; ".join(reading.likelihoods)
    return Outcome("read" if all(verified.values()) else "unverified", likelihoods)


def _points(
    model: Model, reading: Reading, rng: np.random.Generator
) -> Iterator[tuple[str, dict[str, Array]]]:
    """Yield points: draws from the prior, far tails of the latents, and one variable at a time."""
    start = reading.start
    yield "the start", start
    draw = PriorDraws(model)

    def moved(names, by: float) -> dict[str, Array]:
        point, drawn = dict(start), draw(rng)
        for name in names:
            value, at = drawn[name], start[name]
            if value.dtype.kind != "f":
                point[name] = value.astype(at.dtype)
            elif np.isfinite(value).all():
                point[name] = np.asarray(at + by * (value - at))
        return point

    for i in range(2):
        yield f"draw {i} from the prior", moved(start, 1.0)
    for by in _FAR[1:]:
        hyper = moved(set(start) - set(reading.latent_names), 1.0)
        latents = moved(reading.latent_names, by)
        far = {name: (latents if name in reading.latent_names else hyper)[name] for name in start}
        yield f"a draw from the prior, its latents {by:g} times as far", far
    for name in list(start)[:4]:
        for by in (_FAR[0], _FAR[1] if name in reading.latent_names else _FAR_HYPER):
            yield f"{name!r} alone, {by:g} times a draw from its prior", moved([name], by)


def _grouped(theirs: Mapping[str, Density], ours: Mapping[str, Array]) -> dict[str, Density]:
    """Return PyMC's terms as the package has them: sums, but for observations."""
    found: dict[str, Density] = {}
    rest = [density.sum() for name, density in theirs.items() if name not in ours]
    nothing = Density(np.zeros(1), np.full(1, 1e-13), np.zeros(1, dtype=bool))
    found[REST] = sum(rest, start=nothing)
    for name, density in theirs.items():
        if name in ours:
            same = density.value.size == ours[name].size
            found[name] = density if same else density.sum()
    return found


def _different(ours: Mapping[str, Array], theirs: Mapping[str, Density]) -> list[str]:
    """Return the names under which the log densities are not the same."""
    different = [name for name, density in theirs.items() if density.disagrees(ours[name]).any()]
    if np.isneginf(ours[REST]).all() and _is_impossible(theirs):
        # Parameters out of range, which the package puts there.
        return [name for name in different if name != REST]
    return different


def _is_impossible(densities: Mapping[str, Density]) -> bool:
    return any(np.isneginf(density.value).any() for density in densities.values())


def _difference(name: str, label: str, ours: Array, theirs: Density, point: Mapping) -> str:
    wrong = np.flatnonzero(theirs.disagrees(ours))
    worst = wrong[np.argmax(np.nan_to_num(np.abs(ours - theirs.value)[wrong], nan=np.inf))]
    values = {key: np.asarray(value).tolist() for key, value in point.items()}
    return (
        f"log density of {name!r} at {label}, entry {worst}: {ours[worst]!r}, and by PyMC "
        f"{theirs.value[worst]!r} ± {theirs.tolerance[worst]:.2g}\n  point = {values}"
    )


def _compare_steps(reading: Reading, reference: Reference, rng: np.random.Generator) -> None:
    for i, (point, log_density) in enumerate(reading.steps(rng, _STEPS)):
        check_step(i, point, log_density, reference)


def check_step(
    i: int, point: Mapping[str, Array], log_density: float, reference: Reference
) -> None:
    """Raise if what a step says of its point is not PyMC's log density."""
    if not all(np.isfinite(value).all() for value in point.values()):
        raise MismatchError(f"step {i} gives a value that is not finite: {point}")
    ours = np.atleast_1d(log_density)
    for carefully in (False, True):
        densities = reference(point, carefully=carefully).values()
        first, *others = [density.sum() for density in densities]
        total = sum(others, start=first)
        if not total.disagrees(ours).any():
            return
    raise MismatchError(_difference("model_logp", f"step {i}", ours, total, point))
