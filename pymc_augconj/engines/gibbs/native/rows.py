"""The rows of a model: their designs on the tape, and their sites.

The site of a normal observation is exact, (h, λ) = (c z, c). That of a density exp(a η) / (1 + eᵑ)ᵇ
is (a − ½ b, ω) with ω ~ PG(b, η).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pymc_augconj.engines.gibbs.chain import Chain
from pymc_augconj.engines.gibbs.observed import Held, SiteData
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.model import LatentGaussianModel, Point
from pymc_augconj.python_mode.tape import NoTapeError, Registers, TapeBuilder
from pymc_augconj.typing import Array, Index

__all__ = ["Rows", "Slot", "read_on_tape", "read_rows", "read_slots"]

# Entries of a row's design, of which all pairs are summed.
_MOST_IN_A_ROW = 64


def read_on_tape(function: Any, tape: TapeBuilder, entries: Mapping[Any, Index]) -> Any:
    """Return the registers of the value of a function of the point, see :class:`.OnTape`."""
    on_tape = getattr(function, "on_tape", None)
    if on_tape is None:
        raise NoTapeError(type(function).__name__)
    return on_tape(tape, entries)


class Slot(NamedTuple):
    """An entry of the design in every row: its latent, its number and the register of a factor."""

    latent: Index
    number: Array
    factor: Index


def read_slots(
    model: LatentGaussianModel, tape: TapeBuilder, entries: Mapping[Any, Index]
) -> list[Slot]:
    """Return the design of all rows."""
    slots, start = [], 0
    for block, read in zip(model.blocks, model.maps, strict=True):
        for factor, A in read_on_tape(read, tape, entries):
            slots += _slots(A, start, model.n_rows, *tape.split(factor))
        start += block.total_size
    if len(slots) > _MOST_IN_A_ROW:
        raise NoTapeError("many latents in a row")
    return slots


def _slots(A: LinearMap, start: int, n_rows: int, known: Array, factor: Index) -> list[Slot]:
    """Return the entries of a fixed map times numbers and registers, see :class:`.BlockMap`."""
    if isinstance(A, RowSelection):
        by = np.broadcast_to(factor, (n_rows, 1))[:, 0]
        number = np.broadcast_to(known, (n_rows, 1))[:, 0]
        return [Slot(start + A.index, number if A.coef is None else number * A.coef, by)]
    matrix, shape = known * A.dense(), (n_rows, A.size)
    by = np.broadcast_to(factor, shape)
    return [Slot(np.full(n_rows, start + j), matrix[:, j], by[:, j]) for j in range(A.size)]


class Rows(NamedTuple):
    """Sites of all rows: h and Λ as numbers times a register, Λ times ω where that is drawn.

    Attributes
    ----------
    h, lam : ndarray, shape (N,)
        Numbers.
    factor : ndarray of int, shape (N,)
        The register by which both are multiplied.
    of : ndarray of int, shape (N,)
        The number of ω; −1 where the site has none.
    base : list of (ndarray of int, ndarray)
        Registers and numbers, the products of which add up to log p(y | η) − (h η − ½ λ η²) of
        exact sites.
    trials, successes, sites, log_constant
        As for :class:`.Problem`.
    """

    h: Array
    lam: Array
    factor: Index
    of: Index
    base: list[tuple[Index, Array]]
    trials: Array
    successes: Array
    sites: Index
    log_constant: float


def read_rows(chain: Chain, point: Point, tape: TapeBuilder, entries: Mapping[Any, Index]) -> Rows:
    """Return the sites of all rows."""
    none = tape.constants(1.0)
    parts: list[tuple[Array, Array, Index, Index]] = []
    trials, successes, sites = np.empty(0), np.empty(0), [0]
    base: list[tuple[Index, Array]] = []
    log_constant = 0.0
    for data in chain.data:
        if isinstance(data.how, Held):
            raise NoTapeError("held sites")
        if not data.exact:
            a, b, constant = _as_logistic(data, tape, entries)
            of = sites[-1] + np.arange(a.size)
            parts.append((a - 0.5 * b, np.ones(a.size), np.full(a.size, none), of))
            trials, successes = np.append(trials, b), np.append(successes, a)
            sites.append(sites[-1] + a.size)
            log_constant += constant
            continue
        z, c = _as_normal(data, tape, entries)
        index = np.broadcast_to(c, z.shape)
        known, by = tape.split(index)
        parts.append((known * z, known, by, np.full(z.size, -1)))
        base.append((by, -0.5 * known * z**2))
        log_c = np.where(by == none, none, tape.apply("Log", index))
        base.append((log_c, 0.5 * np.where(by == none, np.log(known), 1.0)))
        base.append((none, np.array([_rest(data, point)])))
    h, lam, factor, of = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Rows(h, lam, factor, of, base, trials, successes, np.array(sites), log_constant)


def _params(
    data: SiteData, tape: TapeBuilder, entries: Mapping[Any, Index]
) -> tuple[dict[str, Any], bool]:
    """Return the parameters, numbers where they are constant; and whether all are."""
    params: dict[str, Any] = {}
    for name, index in read_on_tape(data.site.params, tape, entries).items():
        known, factor = tape.split(index)
        is_known = (factor == tape.constants(1.0)).all()
        params[name] = known if is_known else Registers(tape, index)
    return params, not any(isinstance(value, Registers) for value in params.values())


def _as_normal(
    data: SiteData, tape: TapeBuilder, entries: Mapping[Any, Index]
) -> tuple[Array, Index]:
    """Return z, and the registers of c."""
    found = data.site.terms.as_normal(data.y, _params(data, tape, entries)[0])
    if found is None:
        raise NoTapeError(f"observations of {data.site.name}")
    z, c = found
    return z, c.index if isinstance(c, Registers) else tape.constants(c)


def _rest(data: SiteData, point: Point) -> float:
    """Return what log p(y | η) − (h η − ½ λ η²) has besides ½ Σ log c − c z²."""
    params = data.site.params(point)
    found = data.site.terms.as_normal(data.y, params)
    assert found is not None  # see _as_normal
    z, c = found
    base = data.site.terms.log_base(data.y, None, params, data.eta, 0)
    return float(np.sum(np.broadcast_to(base, z.shape) - 0.5 * (np.log(c) - c * z**2)))


def _as_logistic(
    data: SiteData, tape: TapeBuilder, entries: Mapping[Any, Index]
) -> tuple[Array, Array, float]:
    """Return a and b of every row, and what their log densities have besides."""
    params, are_known = _params(data, tape, entries)
    found = data.site.terms.as_logistic(data.y, params) if are_known else None
    if found is None:
        raise NoTapeError(f"observations of {data.site.name}")
    a, b = (np.broadcast_to(np.asarray(x, dtype=float), data.y.shape) for x in found)
    at_zero = data.site.terms.log_density(data.y, np.zeros((1, data.y.size)), params)
    return a, b, float(np.sum(at_zero)) + math.log(2.0) * float(b.sum())
