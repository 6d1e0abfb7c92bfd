"""The rows of a model: their designs on the tape, and their sites.

The site of a normal observation is exact, (h, λ) = (c z, c). That of a density exp(a η) / (1 + eᵑ)ᵇ
is (a − ½ b, ω) with ω ~ PG(b, η). That of a normal one whose precision ω has the distribution
Gamma(a, r) is (ω y, ω); given η, ω ~ Gamma(a + ½, r + ½ (y − η)²), and

    log p(y | η) = log Γ(a + ½) − log Γ(a) − ½ log(2 π r) − (a + ½) log(1 + ½ (y − η)² / r).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pymc_augconj.engines.gibbs.chain import Chain
from pymc_augconj.engines.gibbs.observed import Held, SiteData
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.point import Point
from pymc_augconj.python_mode.tape import NoTapeError, Registers, TapeBuilder
from pymc_augconj.typing import Array, Index

__all__ = ["Rows", "Slot", "read_rows", "read_slots"]

# Entries of a row's design, of which all pairs are summed.
_MOST_IN_A_ROW = 64


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
        for factor, A in tape.evaluate(read, entries):
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


class Drawn(NamedTuple):
    """The observations of a variable that have an ω.

    Attributes
    ----------
    number, weight : ndarray, shape (R,)
        a and b of logistic ones; y and NaN of others.
    shape, rate, log_peak : ndarray of int, shape (R,)
        Registers of a, r and log p(y | y) of normal ones.
    """

    number: Array
    weight: Array
    shape: Index
    rate: Index
    log_peak: Index


class Rows(NamedTuple):
    """Sites of all rows: h and Λ as numbers times a register, and times ω where that is drawn.

    Attributes
    ----------
    h, lam : ndarray, shape (N,)
        Numbers.
    factor : ndarray of int, shape (N,)
        The register by which both are multiplied.
    of, h_of : ndarray of int, shape (N,)
        The numbers of the ω of Λ and h; −1 where these have none.
    base : list of (ndarray of int, ndarray)
        Registers and numbers, the products of which add up to log p(y | η) − (h η − ½ λ η²) of
        exact sites.
    drawn : Drawn
        Of all observed variables.
    sites : ndarray of int
        Where those of each of them begin, and their end.
    log_constant : float
        What the log densities of logistic ones have besides.
    """

    h: Array
    lam: Array
    factor: Index
    of: Index
    h_of: Index
    base: list[tuple[Index, Array]]
    drawn: Drawn
    sites: Index
    log_constant: float


def read_rows(chain: Chain, point: Point, tape: TapeBuilder, entries: Mapping[Any, Index]) -> Rows:
    """Return the sites of all rows."""
    none = tape.constants(1.0)
    parts: list[tuple[Array, Array, Index, Index, Index]] = []
    empty, no_index = np.empty(0), np.empty(0, dtype=np.intp)
    drawn, sites = [Drawn(empty, empty, no_index, no_index, no_index)], [0]
    base: list[tuple[Index, Array]] = []
    log_constant = 0.0
    for data in chain.data:
        if isinstance(data.how, Held):
            raise NoTapeError("held sites")
        size, one = data.y.size, np.ones(data.y.size)
        fixed, by = np.full(size, -1), np.full(size, none)
        of = sites[-1] + np.arange(size)
        params, are_known = _params(data, tape, entries)
        mixture = data.site.likelihood.as_normal_mixture(data.y, params)
        if data.exact:
            z, c = _as_normal(data, tape, params)
            index = np.broadcast_to(c, z.shape)
            known, by = tape.split(index)
            parts.append((known * z, known, by, fixed, fixed))
            base.append((by, -0.5 * known * z**2))
            log_c = np.where(by == none, none, tape.apply("Log", index))
            base.append((log_c, 0.5 * np.where(by == none, np.log(known), 1.0)))
            base.append((none, np.array([_rest(data, point)])))
            continue
        if mixture is not None:
            parts.append((data.y, one, by, of, of))
            drawn.append(_mixed(data, tape, *mixture))
        else:
            a, b, constant = _as_logistic(data, params, are_known)
            parts.append((a - 0.5 * b, one, by, of, fixed))
            drawn.append(Drawn(a, b, 0 * fixed, 0 * fixed, 0 * fixed))
            log_constant += constant
        sites.append(sites[-1] + size)
    h, lam, factor, of, h_of = (np.concatenate(part) for part in zip(*parts, strict=True))
    every = Drawn(*(np.concatenate(part) for part in zip(*drawn, strict=True)))
    return Rows(h, lam, factor, of, h_of, base, every, np.array(sites), log_constant)


def _mixed(data: SiteData, tape: TapeBuilder, a: Any, r: Any) -> Drawn:
    """Return what the loop is to know of normal observations with a precision of their own."""
    shape, rate = (x.index if isinstance(x, Registers) else tape.constants(x) for x in (a, r))
    gammas = [tape.apply("GammaLn", tape.apply("Add", shape, tape.constants(c))) for c in (0.5, 0)]
    scaled = tape.apply("Mul", tape.constants(2.0 * math.pi), rate)
    half = tape.apply("Mul", tape.constants(0.5), tape.apply("Log", scaled))
    log_peak = tape.apply("Sub", tape.apply("Sub", *gammas), half)
    of_all = [np.broadcast_to(x, data.y.shape) for x in (shape, rate, log_peak)]
    return Drawn(data.y, np.full(data.y.size, np.nan), *of_all)


def _params(
    data: SiteData, tape: TapeBuilder, entries: Mapping[Any, Index]
) -> tuple[dict[str, Any], bool]:
    """Return the parameters, numbers where they are constant; and whether all are."""
    params: dict[str, Any] = {}
    for name, index in tape.evaluate(data.site.params, entries).items():
        known, factor = tape.split(index)
        is_known = (factor == tape.constants(1.0)).all()
        params[name] = known if is_known else Registers(tape, index)
    return params, not any(isinstance(value, Registers) for value in params.values())


def _as_normal(data: SiteData, tape: TapeBuilder, params: Mapping[str, Any]) -> tuple[Array, Index]:
    """Return z, and the registers of c."""
    found = data.site.likelihood.as_normal(data.y, params)
    if found is None:
        raise NoTapeError(f"observations of {data.site.name}")
    z, c = found
    return z, c.index if isinstance(c, Registers) else tape.constants(c)


def _rest(data: SiteData, point: Point) -> float:
    """Return what log p(y | η) − (h η − ½ λ η²) has besides ½ Σ log c − c z²."""
    params = data.site.params(point)
    found = data.site.likelihood.as_normal(data.y, params)
    assert found is not None  # see _as_normal
    z, c = found
    base = data.site.likelihood.log_base(data.y, None, params, data.eta, 0)
    return float(np.sum(np.broadcast_to(base, z.shape) - 0.5 * (np.log(c) - c * z**2)))


def _as_logistic(
    data: SiteData, params: dict[str, Any], are_known: bool
) -> tuple[Array, Array, float]:
    """Return a and b of every row, and what their log densities have besides."""
    found = data.site.likelihood.as_logistic(data.y, params) if are_known else None
    if found is None:
        raise NoTapeError(f"observations of {data.site.name}")
    a, b = (np.broadcast_to(np.asarray(x, dtype=float), data.y.shape) for x in found)
    at_zero = data.site.likelihood.log_density(data.y, np.zeros((1, data.y.size)), params)
    return a, b, float(np.sum(at_zero)) + math.log(2.0) * float(b.sum())
