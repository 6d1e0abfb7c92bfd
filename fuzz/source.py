"""Source text of a random model, as the grammar writes it a statement at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Source", "identifier", "literal"]

Array = NDArray[Any]

_HEADER = """\
import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_augconj as pac

transforms = pm.distributions.transforms
"""

# Names that a package must not use for something of its own in the same place.
_AWKWARD = ("direction", "weights", "innovation:b", "latent:f", "y", "eta", "mu", "0", "b_")

_DIGITS = 5


class Source:
    """A program that builds ``model``, and the choices that are still open.

    Parameters
    ----------
    seed : int
        The same seed gives the same program.
    scalars : int, optional
        Number of free scalars that the model may have; None where it does not matter.
    wild : bool
        Whether scales are from 1e-9 to 1e9 that do not go with one another.
    """

    def __init__(self, seed: int, scalars: int | None = None, *, wild: bool = False):
        self.seed, self.scalars, self.wild = seed, scalars, wild
        self.rng = np.random.default_rng([seed, scalars or 0, *([1] if wild else [])])
        self._data: list[str] = []
        self._model: list[str] = []
        self._coords: list[str] = []
        self._names: set[str] = set()

    # -- choices ------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return bool(self.rng.random() < probability)

    def pick[T](self, options: Sequence[T]) -> T:
        """Return one of the options; how often one is listed is its weight."""
        return options[int(self.rng.integers(len(options)))]

    def unit(self, probability: float = 0.35) -> float:
        """Return a unit of measurement: mostly one, otherwise from 1e-9 to 1e9."""
        power = int(self.rng.integers(-9, 10))
        return _odd(10.0**power) if self.chance(probability) else 1.0

    def wild_scale(self, scale: float) -> float:
        """Return ``scale``, or in a wild model perhaps one that does not go with the others."""
        if not self.wild or not self.chance(0.25):
            return scale
        return _odd(_rounded(np.clip(scale * 10.0 ** self.rng.uniform(-9, 9), 1e-9, 1e9)))

    def number(self, scale: float = 1.0) -> float:
        """Return a positive number of the order of ``scale``."""
        return _odd(_rounded(scale * float(np.exp(0.5 * self.rng.standard_normal()))))

    def normal(self, shape: int | tuple[int, ...], scale: float | Array = 1.0) -> Array:
        """Return normal numbers of a few digits."""
        return _rounded(scale * self.rng.standard_normal(shape))

    def afford(self, count: int) -> bool:
        """Take ``count`` free scalars from those that are left, if there are as many."""
        if self.scalars is None:
            return True
        if self.scalars < count:
            return False
        self.scalars -= count
        return True

    @property
    def is_tiny(self) -> bool:
        """Whether the number of free scalars is limited."""
        return self.scalars is not None

    # -- statements ---------------------------------------------------------------------------

    def name(self, stem: str) -> str:
        """Return a new name for a variable of the model, or for one of the program."""
        if stem not in ("X", "idx") and self.chance(0.03):
            stem = self.pick(_AWKWARD)
        name, count = stem, 1
        while name in self._names:
            count += 1
            name = f"{stem}{count}"
        self._names.add(name)
        return name

    def data(self, stem: str, values: Array, *, shared: float = 0.0) -> str:
        """Define an array before the model, perhaps as ``pm.Data`` within; return its code."""
        name = self.name(stem) if stem in ("X", "idx") else self.name(f"{stem}_data")
        code = identifier(name)
        if not self.chance(shared):
            self._data.append(f"{code} = {literal(values)}")
            return code
        self.define(code, f"pm.Data({name!r}, {literal(values)})")
        return code

    def free(self, stem: str, distribution: str, arguments: str) -> str:
        """Define a free variable of the model; return the name that the program gives it."""
        name = self.name(stem)
        return self.define(identifier(name), f"{distribution}({name!r}, {arguments})")

    def define(self, target: str, code: str) -> str:
        """Assign within the model."""
        self._model.append(f"{target} = {code}")
        return target

    def temporary(self, stem: str, code: str) -> str:
        """Give an expression a name of its own, perhaps as a ``Deterministic``."""
        name = self.name(stem)
        if self.chance(0.3):
            code = f"pm.Deterministic({name!r}, pt.as_tensor({code}))"
        return self.define(identifier(name), code)

    def statement(self, code: str) -> None:
        """Add a statement within the model."""
        self._model.append(code)

    def dims(self, size: int) -> str:
        """Return a shape argument: ``shape=``, or ``dims=`` with new coordinates."""
        if not self.chance(0.25):
            return f"shape={size}"
        name = f"dim{len(self._coords)}"
        self._coords.append(f"{name!r}: {list(range(10, 10 + size))}")
        return f"dims={name!r}"

    def text(self) -> str:
        """Return the program."""
        coords = f"coords={{{', '.join(self._coords)}}}" if self._coords else ""
        lines = [_HEADER, *self._data, f"with pm.Model({coords}) as model:"]
        return "\n".join([*lines, *(f"    {line}" for line in self._model)]) + "\n"


def literal(values: Array | float | int) -> str:
    """Return the code of a number or of an array."""
    if isinstance(values, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(values).tolist()
        return f"np.ma.masked_array({_list(values.data)}, mask={mask})"
    return f"np.array({_list(values)})" if isinstance(values, np.ndarray) else repr(values)


def _list(values: Array) -> str:
    return repr(values.tolist())


def _rounded(values: Any) -> Any:
    """Keep a few digits, so that a program is readable."""
    flat = [float(f"{x:.{_DIGITS}g}") + 0.0 for x in np.ravel(values)]
    return np.array(flat).reshape(np.shape(values)) if np.ndim(values) else flat[0]


def _odd(value: float) -> float:
    """Return a number beside ``value`` that single precision cannot hold.

    One that it can hold PyTensor keeps in it, and puts its reciprocal or its logarithm, rounded,
    in its place: PyMC's own log density is then off by 1e-8.
    """
    found = float(f"{1.0000001 * value:.9g}")
    return float(f"{1.00000013 * value:.9g}") if found == np.float32(found) else found


def identifier(name: str) -> str:
    """Return a Python name; names of modules and of ``model`` are not taken."""
    cleaned = "".join(c if c.isalnum() else "_" for c in name)
    return f"v_{cleaned}" if not cleaned[0].isalpha() else f"{cleaned}_"
