"""A random model: likelihoods with their data, and what stands around them."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from .hyperparameters import positive, positives, probability
from .likelihoods import LIKELIHOODS, SIGMOIDS
from .predictors import predictor
from .source import Source, literal

__all__ = ["random_model"]

# Prior standard deviations of predictors of a link.
_LINK_SCALES = (1.0, 1.0, 1.0, 0.5, 0.01, 5.0, 30.0)
_SMALL = (1e-2, 1e-4, 1e-7, 1e-10, 1e-13)

_MOST_OBSERVATIONS, _MOST_WILD_OBSERVATIONS = 8, 25
_TINY_SCALARS = 3


def random_model(seed: int, *, tiny: bool = False, wild: bool = False) -> str:
    """Return the source text of a model.

    Parameters
    ----------
    seed : int
    tiny : bool
        Whether the model is to have at most three free scalars.
    wild : bool
        Whether scales are from 1e-9 to 1e9 that do not go with one another, and autoregressions
        may explode.
    """
    source = Source(seed, _TINY_SCALARS if tiny else None, wild=wild)
    observed = 1 if tiny or source.chance(0.92) else 2
    for _ in range(observed):
        _observe(source)
    if not tiny:
        _surroundings(source)
    return source.text()


def _observe(source: Source) -> None:
    weights = np.array([weight for _, weight, _ in LIKELIHOODS])
    kind, _, spellings = LIKELIHOODS[source.rng.choice(len(LIKELIHOODS), p=weights / weights.sum())]
    most = _MOST_WILD_OBSERVATIONS if source.wild else _MOST_OBSERVATIONS
    size = int(source.rng.integers(1, most + 1))
    if source.is_tiny:
        size = max(size, 2)
    _Observed(source, kind, size).write(source.pick(spellings))


class _Observed:
    """One observed variable."""

    def __init__(self, source: Source, kind: str, size: int):
        # What two predictors describe is of the same kind as what one does.
        kind = kind.removeprefix("two ")
        self._source, self._kind, self._size = source, kind, size
        self._shape: tuple[int, ...] = (size,)
        if size % 2 == 0 and source.chance(0.08):
            self._shape = (2, size // 2)
        has_unit = kind in ("real", "positive", "package")
        self._unit = source.unit(0.5) if has_unit else 1.0
        link_scale = source.pick(_LINK_SCALES)
        self._scale = self._unit if kind in ("real", "package") else link_scale
        if kind in ("count", "positive", "from one"):
            self._scale = min(self._scale, 2.0)
        self._trials: NDArray[np.int64] | None = None
        self._eta: dict[str, str] = {}
        self._small = source.pick(_SMALL)

    def write(self, template: str) -> None:
        """Add the variable to the model."""
        source = self._source
        code = re.sub(r"\{sigmoid\}", lambda _: source.pick(SIGMOIDS), template)
        code = re.sub(r"\{(\w+)\}", lambda match: self._fill(match[1]), code)
        distribution, arguments = code.split("(", 1)
        module = "" if distribution.startswith("pac.") else "pm."
        y = self._data().reshape(self._shape)
        if y.size > 1 and not source.is_tiny and source.chance(0.08):
            y = np.ma.masked_array(y, mask=source.rng.random(y.shape) < 0.4)
            y.mask.flat[0] = False
            observed = literal(y)
        else:
            observed = source.data("y", y, shared=0.2)
        name = source.name("y")
        source.statement(f"{module}{distribution}({name!r}, {arguments[:-1]}, observed={observed})")

    def _fill(self, key: str) -> str:
        source, unit = self._source, self._unit
        if key.startswith(("eta", "link")):
            return self._predictor(key)
        if key == "n":
            return self._number_of_trials()
        if key == "S":
            return f"{positives(source, self._size, unit)}.reshape({self._shape})"
        if key == "x":
            return source.data("exposure", np.abs(source.normal(self._shape)) * 5.0 + 1.0)
        if key in ("low", "high"):
            bound = unit * (2.0 if key == "high" else 0.1 if self._kind == "positive" else -2.0)
            if source.chance(0.5):
                return literal(bound)
            # Some observations are not censored.
            none = np.inf if key == "high" else -np.inf
            bounds = np.where(source.rng.random(self._shape) < 0.5, bound, none)
            return f"np.array({bounds.tolist()})".replace("inf", "np.inf")
        simple = {
            "s": lambda: positive(
                source, source.wild_scale(unit * source.pick((1.0, 1.0, 0.1, 10.0)))
            ),
            "per_s": lambda: positive(source, 1.0 / unit),
            "k": lambda: positive(source, source.pick((1.0, 2.0))),
            "p": lambda: probability(source),
            "u": lambda: repr(unit),
            "e": lambda: repr(self._small),
        }
        return simple[key]()

    def _predictor(self, key: str) -> str:
        if key not in self._eta:
            scale = self._scale if key.startswith("eta") else 1.0
            code = predictor(self._source, self._size, scale)
            if self._eta and len(self._shape) == 1 and self._source.chance(0.15):
                # Latents that enter several predictors.
                other = self._source.pick(list(self._eta.values()))
                code = f"({code} + {scale / self._scale!r} * {other})"
            if self._source.chance(0.1):
                code = f"({code} + np.zeros({self._size}))"
            if len(self._shape) > 1 or self._kind == "classes":
                code = f"pt.broadcast_to({code}, ({self._size},)).reshape({self._shape})"
            # An expression that has free variables in it may be written once only.
            self._eta[key] = self._source.temporary("eta", code)
        return self._eta[key]

    def _number_of_trials(self) -> str:
        if self._trials is None:
            self._trials = self._source.rng.integers(1, 12, self._shape)
            if self._source.chance(0.1):
                self._trials = self._trials * 10**5
        if self._source.chance(0.3):
            self._trials = np.full(self._shape, self._trials.max())
            return repr(int(self._trials.max()))
        return self._source.data("trials", self._trials, shared=0.2)

    def _data(self) -> NDArray:
        rng, size = self._source.rng, self._size
        if self._kind in ("real", "package"):
            y = self._source.normal(size, self._unit)
            if self._source.chance(0.3):
                y[0] *= self._source.pick((0.0, 30.0, 1e3))
            # Bounds of censoring are at ±2 units.
            return np.clip(y, -2.0 * self._unit, 2.0 * self._unit) if size % 2 else y
        if self._kind == "positive":
            y = np.abs(self._source.normal(size, self._unit)) + 0.1 * self._unit
            return np.clip(y, 0.1 * self._unit, 2.0 * self._unit)
        if self._kind == "binary":
            return rng.integers(0, 2, size)
        if self._kind == "signed":
            return 2.0 * rng.integers(0, 2, size) - 1.0
        if self._kind == "trials":
            assert self._trials is not None
            return rng.binomial(self._trials, 0.5)
        if self._kind == "share":
            return np.round(rng.uniform(0.05, 0.95, size), 3)
        if self._kind in ("ordinal", "classes"):
            return rng.integers(0, 4 if self._kind == "ordinal" else 3, size)
        counts = rng.poisson(2.0, size) + (self._kind == "from one")
        return np.minimum(counts, 6)


def _surroundings(source: Source) -> None:
    """Add what no observation depends on, and factors of the density."""
    if source.chance(0.1):
        source.free("unused", "pm.Normal", f"{literal(source.number())}, 2.0, shape=2")
    if source.chance(0.06):
        scale = positive(source, source.unit(), random=1.0)
        source.free("loose", "pm.StudentT", f"nu=4, mu=0.0, sigma={scale}")
    if source.chance(0.04):
        source.statement(
            "pm.Normal('apart', 0.0, 1.0, shape=2, transform=transforms.ordered, "
            "initval=np.array([-0.5, 0.5]))"
        )
    if source.chance(0.04):
        interval = "default_transform=transforms.Interval(0.2, 2.0)"
        source.statement(f"pm.HalfNormal('bounded', 1.0, {interval})")
        source.statement("pm.Normal('within', 0.0, 1.0, transform=transforms.Interval(-1.0, 3.0))")
    if source.chance(0.05):
        s = source.free("weighed", "pm.HalfNormal", "1.0")
        source.statement(f"pm.Potential('penalty', -{s} ** 2)")
    if source.chance(0.02):
        b = source.free("b", "pm.Normal", "0.0, 1.0")
        source.statement(f"pm.Potential('pull', -0.5 * ({b} - 1.0) ** 2)")
    if source.chance(0.05):
        source.statement("pm.Poisson('future', pm.Gamma('rate', 2.0, 1.0))")
