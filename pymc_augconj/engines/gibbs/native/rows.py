"""The rows of a model: their designs on the tape, and their sites.

λ and h of held sites are numbers that the loop is given, like ω; of several predictors of an
observation also what couples two of them.

The site of a normal observation is exact, (h, λ) = (c z, c). That of a density exp(a η) / (1 + eᵑ)ᵇ
is (a − ½ b, ω) with ω ~ PG(b, η). That of a normal one whose precision ω has the distribution
Gamma(a, r) is (ω y, ω); given η, ω ~ Gamma(a + ½, r + ½ (y − η)²), and

    log p(y | η) = log Γ(a + ½) − log Γ(a) − ½ log(2 π r) − (a + ½) log(1 + ½ (y − η)² / r).

That of c − a |y − η| − d (y − η) is (ω y + d, ω); given η, ω is inverse Gaussian.
That of component k of a mixture of normal ones, with the precision c_k, is (ω y, ω): ω is c_k where
the observation is allocated to it, and zero elsewhere. That of a vector y with the covariance Σ is
(Σ⁻¹ y, Σ⁻¹), a sum of terms of two rows each, that is of registers times numbers as well.

Sums over observations are polynomials of registers, with coefficients that are kept.
With c the precision of an observation, a a coefficient of its design and o its offset, G = AᵀΛA is
a sum of c a a′, g = Aᵀh of c (z − o) a, and constants are of c z o and c o². Each of the factors
is a number or in a register, so that all of these are polynomials of degree three at most, whose
coefficients are sums over the observations that have the same registers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from pymc_augconj.engines.gibbs.chain import Chain
from pymc_augconj.engines.gibbs.observed import Held, SiteData
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.point import Point
from pymc_augconj.python_mode.tape import NoTapeError, Registers, TapeBuilder
from pymc_augconj.typing import Array, Index

from .row_tapes import RowTape, read_row_tape

# Entries of a row's design, of which all pairs are summed.
_MOST_IN_A_ROW = 64


class Slot(NamedTuple):
    """An entry of the design in every row: its latent, its number and the register of a factor."""

    latent: Index
    number: Array
    factor: Index


def read_slots(
    model: LatentGaussianModel, tape: TapeBuilder, entries: Mapping[Any, Index],
    roots: Sequence[Index | None], *, any_number: bool = False,
) -> tuple[list[Slot], list[Slot]]:  # fmt: skip
    """Return the design of all rows, given the roots of blocks that are whitened, and before these.

    Roots of numbers are in both.

    It is refused if rows have many entries, unless there may be ``any_number`` of these.
    """
    slots, before, start, count = [], [], 0, 0
    if not model.blocks:
        none = np.empty(0, dtype=np.intp)
        return [Slot(none, np.empty(0), none)], []
    for block, read, root in zip(model.blocks, model.maps, roots, strict=True):
        for factor, A in tape.evaluate(read, entries):
            own = _slots(A, start, model.n_rows, *tape.split(factor))
            count += len(own)
            through = own if root is None else _through(own, root, start, tape)
            slots += through
            before += through if block.is_intrinsic else own
        start += block.total_size
    if count > _MOST_IN_A_ROW and not any_number:
        raise NoTapeError("many latents in a row")
    return slots, before


def _slots(A: LinearMap, start: int, n_rows: int, known: Array, factor: Index) -> list[Slot]:
    """Return the entries of a fixed map times numbers and registers, see :class:`.BlockMap`."""
    if isinstance(A, RowSelection):
        by = np.broadcast_to(factor, (n_rows, 1))[:, 0]
        number = np.broadcast_to(known, (n_rows, 1))[:, 0]
        return [Slot(start + A.index, number if A.coef is None else number * A.coef, by)]
    matrix, shape = known * A.dense(), (n_rows, A.size)
    by = np.broadcast_to(factor, shape)
    return [Slot(np.full(n_rows, start + j), matrix[:, j], by[:, j]) for j in range(A.size)]


def _through(slots: Sequence[Slot], root: Index, start: int, tape: TapeBuilder) -> list[Slot]:
    """Return entries of A L: for each entry of A one for each v that its latent depends on."""
    found = []
    for latent, number, factor in slots:
        kind = (latent - start) % len(root)
        known, by = tape.split(factor)
        none = tape.constants(1.0)
        for j in np.flatnonzero(root[kind].any(axis=0)):
            of_root, column = tape.split(root[kind, j])
            both = tape.apply("Mul", by, column) if (by != none).any() else column
            found.append(Slot(latent - kind + j, number * known * of_root, both))
    return found


#: Kinds of observations that have an ω: logistic, of normal noise with a gamma distributed
#: precision, of noise with the log density c − a |e| − d e, and mixtures of normal ones.
LOGISTIC, GAMMA_MIXTURE, TILTED_LAPLACE, MIXTURE = range(4)


class Drawn(NamedTuple):
    """The observations of a variable that have an ω; of a mixture those of one component first.

    Attributes
    ----------
    number : ndarray, shape (R,)
        a of logistic ones; y of others.
    kind : ndarray of int, shape (R,)
    first, second : ndarray of int, shape (R,)
        Registers of b; of a and r; of a and d; or of c, and the number of components.
    log_peak : ndarray of int, shape (R,)
        Registers of what the log density has besides, that of all but logistic ones at η = y.
        That of a component has the logarithm of its weight.
    """

    number: Array
    kind: Index
    first: Index
    second: Index
    log_peak: Index


class Rows(NamedTuple):
    """Terms h η_first − ½ λ η_first η_second of the logarithms of all sites.

    Attributes
    ----------
    first, second : ndarray of int, shape (T,)
        Rows. A term of two rows is there in both orders.
    h, lam : ndarray, shape (T,)
        h and λ as numbers, times a register, and times ω where that is drawn.
    factor : ndarray of int, shape (T,)
        The register by which both are multiplied.
    of, h_of : ndarray of int, shape (T,)
        The numbers of the ω of Λ and h; −1 where these are known. λ of held sites come after every
        ω, then what couples their predictors, and the h of all but these last.
    base : list of (ndarray of int, ndarray)
        Registers and numbers, the products of which add up to log p(y | η) − (h η − ½ λ η²) of
        exact sites.
    bounds : list of (ndarray of int, ndarray)
        The same for a bound of the terms of which these are sums.
    drawn : Drawn
        Of all observed variables.
    sites : ndarray of int
        Where those of each of them begin, and their end.
    held : list of RowTape
        The densities of held sites.
    """

    first: Index
    second: Index
    h: Array
    lam: Array
    factor: Index
    of: Index
    h_of: Index
    base: list[tuple[Any, ...]]
    bounds: list[tuple[Any, ...]]
    drawn: Drawn
    sites: Index
    held: list[RowTape]

    @property
    def not_exact(self) -> Index:
        """Rows with an ω or a held site, in the order of their numbers."""
        own = np.flatnonzero((self.of >= 0) & (self.first == self.second))
        return self.first[own[np.argsort(self.of[own])]]


def read_rows(chain: Chain, point: Point, tape: TapeBuilder, entries: Mapping[Any, Index]) -> Rows:
    """Return the sites of all rows."""
    none, no_index = tape.constants(1.0), np.empty(0, dtype=np.intp)
    terms: list[tuple[Any, ...]] = []
    drawn, sites = [Drawn(np.empty(0), no_index, no_index, no_index, no_index)], [0]
    base: list[tuple[Any, ...]] = []
    bounds: list[tuple[Any, ...]] = []
    held: list[RowTape] = []
    # Numbers of h and of held sites follow those of every ω.
    of_held, pairs = [no_index], [np.empty((0, 2), dtype=np.intp)]
    for data in chain.data:
        params, rows = read_params(data, tape, entries), data.site.row_numbers
        if data.exact:
            terms += _exact(data, point, tape, params, base, bounds)
        elif isinstance(data.how, Held):
            of_held.append(rows.ravel())
            pairs += [np.stack(two, axis=1) for two in combinations(rows, 2)]
            held.append(read_row_tape(data, params, data.site.params(point), tape))
        else:
            own, predictors, h = _drawn(data, tape, params)
            of, row = sites[-1] + np.arange(own.number.size), rows[predictors].ravel()
            terms.append((row, row, 1.0 if h is None else h, 1.0, none, of, h is None))
            drawn.append(own)
            sites.append(int(sites[-1] + of.size))
    row, (left, right) = np.concatenate(of_held), np.concatenate(pairs).T
    n = sites[-1] + row.size
    terms.append((row, row, 1.0, 1.0, none, sites[-1] + np.arange(row.size), True))
    for two in ((left, right), (right, left)):
        terms.append((*two, 0.0, 1.0, none, n + np.arange(left.size), False))
    columns: Any = zip(*(np.broadcast_arrays(*term) for term in terms), strict=True)
    first, second, h, lam, factor, of, has_h = map(np.concatenate, columns)
    h_of = np.where(has_h, n + left.size + of, -1)
    of_all = Drawn(*(np.concatenate(part) for part in zip(*drawn, strict=True)))
    return Rows(
        first, second, h, lam, factor, of, h_of, base, bounds, of_all, np.array(sites), held
    )


def _exact(
    data: SiteData, point: Point, tape: TapeBuilder, params: Mapping[str, Any],
    base: list[tuple[Any, ...]], bounds: list[tuple[Any, ...]],
) -> list[tuple[Any, ...]]:  # fmt: skip
    """Return the terms of an exact site; add what the log density has besides, and its bound."""
    likelihood, rows = data.site.likelihood, data.site.row_numbers
    vectors, rest = likelihood.as_vectors(params), np.zeros(1)
    if vectors is None:
        at = data.site.params(point)
        normal, there = (likelihood.as_normal(data.y, own) for own in (params, at))
        if normal is None or there is None:
            raise NoTapeError(f"observations of {data.site.name}")
        # A vector of one entry; what its log density at η = z has besides is constant.
        z, c = normal
        vectors = z[None], [[c]], 0.5 * np.log(c)
        rest[0] = np.sum(likelihood.log_density(data.y, z[None], at) - 0.5 * np.log(there[1]))
    terms = []
    y, lam, log_peak = vectors
    for p, q in np.ndindex(len(y), len(y)):
        known, by = tape.split(np.broadcast_to(_index(tape, lam[p][q]), y[p].shape))
        terms.append((rows[p], rows[q], known * y[q], known, by, -1, False))
        base.append((by, -0.5 * known * y[p] * y[q]))
        if p == q and len(y) > 1:
            # 2 |Λ_pq y_p y_q| ≤ Λ_pp y_p² + Λ_qq y_q²; of one entry nothing cancels.
            bounds.append((by, 0.5 * len(y) * known * y[p] ** 2))
    known, by = tape.split(np.broadcast_to(_index(tape, log_peak), y[0].shape))
    base += [(by, known), (tape.constants(1.0), rest)]
    return terms


def _drawn(
    data: SiteData, tape: TapeBuilder, params: Mapping[str, Any]
) -> tuple[Drawn, list[int], Array | None]:
    """Return what the loop is to know of observations with an ω, their predictors, and a known h.

    A mixture has an ω for each component.
    """
    likelihood, y, h = data.site.likelihood, data.y, None
    number: Any
    first: Any
    second: Any
    log_peak: Any
    columns: Any
    components = likelihood.as_normal_components(y, params)
    mixture = likelihood.as_normal_mixture(y, params)
    laplace = likelihood.as_tilted_laplace(y, params)
    logistic = likelihood.as_logistic(y, params)
    if components is not None:
        predictors, *columns = zip(*components, strict=True)
        registers = [[_index(tape, x) for x in own] for own in columns[1:]]
        number, precision, log_peak = (
            np.concatenate([np.broadcast_to(x, y.shape) for x in own])
            for own in (columns[0], *registers)
        )
        count = np.full(number.size, len(components))
        drawn = Drawn(number, np.full(number.size, MIXTURE), precision, count, log_peak)
        return drawn, list(predictors), None
    if mixture is not None:
        kind, (first, second), number = GAMMA_MIXTURE, mixture, y
        log_peak = _log_peak(tape, *(_index(tape, x) for x in mixture))
    elif laplace is not None:
        kind, (first, second, log_peak), number = TILTED_LAPLACE, laplace, y
    elif logistic is not None:
        kind, (number, first), second = LOGISTIC, logistic, 0.0
        at_zero = likelihood.log_density(y, np.zeros((1, y.size)), params)
        log_peak = at_zero + math.log(2.0) * first
        if not isinstance(first, Registers):
            h = np.broadcast_to(number - 0.5 * first, y.shape)
    else:
        raise NoTapeError(f"observations of {data.site.name}")
    columns = [np.broadcast_to(_index(tape, x), y.shape) for x in (first, second, log_peak)]
    number = np.broadcast_to(np.asarray(number, dtype=float), y.shape)
    return Drawn(number, np.full(y.size, kind), *columns), [0], h


def _index(tape: TapeBuilder, value: Any) -> Index:
    return value.index if isinstance(value, Registers) else tape.constants(value)


def _log_peak(tape: TapeBuilder, shape: Index, rate: Index) -> Registers:
    """Return log p(y | y) of normal observations with a precision of their own."""
    a, r = Registers(tape, shape), Registers(tape, rate)
    half = 0.5 * a.applied("Log", 2.0 * math.pi * r)
    return 0.5 * math.log(math.pi) - a.applied("BetaLn", a, 0.5) - half


def read_params(data: SiteData, tape: TapeBuilder, entries: Mapping[Any, Index]) -> dict[str, Any]:
    """Return the parameters, numbers where they are constant."""
    params: dict[str, Any] = {}
    for name, index in tape.evaluate(data.site.params, entries).items():
        known, factor = tape.split(index)
        is_known = (factor == tape.constants(1.0)).all()
        params[name] = known if is_known else Registers(tape, index)
    return params


# More registers than a tape has.
_MANY = 1 << 20
# Terms that are summed at a time, for which there is memory.
_TOGETHER = 1 << 18


class Polynomial(NamedTuple):
    """Σ_k r[i_k] r[j_k] r[l_k] value_k, entry by entry, with value = fixed + Σ by · ω[of].

    Attributes
    ----------
    factors : ndarray of int, shape (K, 3)
        Registers i, j and l of each monomial.
    begin : ndarray of int, shape (K + 1,)
        Where the entries of each begin.
    place, fixed : ndarray, shape (E,)
        The entries of the monomials' coefficients that are not zero.
    weights, of, by : ndarray
        Where those of each entry begin, of shape (E + 1,); observations, and their factors.
    """

    factors: Index
    begin: Index
    place: Index
    fixed: Array
    weights: Index
    of: Index
    by: Array


class SumBuilder:
    """Adds up monomials."""

    def __init__(self) -> None:
        self._terms: list[tuple[Index, Index, Index, Array]] = []

    def add(
        self, factors: tuple[Index, ...], place: Index | int, value: Array, of: Index | int = -1
    ) -> None:
        """Add values times three registers to the entries ``place``; all of these broadcast.

        A value is also times the ω of an observation, where ``of`` is not negative.
        """
        every = [x.reshape(-1) for x in np.broadcast_arrays(*factors, place, of, value)]
        terms = np.flatnonzero(every[-1])
        for start in range(0, max(terms.size, 1), _TOGETHER):
            own = terms[start : start + _TOGETHER]
            *registers, places, numbers, values = (x[own] for x in every)
            first, second, third = np.sort(np.stack(registers), axis=0)
            code = (first * _MANY + second) * _MANY + third
            self._terms.append(_summed(code, places, numbers, values))

    def finish(self) -> Polynomial:
        """Return the sum of all."""
        if not self._terms:
            self.add((np.zeros(1, dtype=np.intp),) * 3, 0, np.zeros(1))
        code, place, of, value = _summed(*map(np.concatenate, zip(*self._terms, strict=True)))
        starts = np.flatnonzero(np.diff(code, prepend=-1) | np.diff(place, prepend=-1))
        entry = np.repeat(np.arange(starts.size), np.diff(starts, append=code.size))
        is_fixed = of < 0
        fixed = np.bincount(entry[is_fixed], value[is_fixed], starts.size)
        counts = np.bincount(entry[~is_fixed], minlength=starts.size)
        monomials, begin = np.unique(code[starts], return_index=True)
        pairs, last = np.divmod(monomials, _MANY)
        return Polynomial(
            np.stack([*np.divmod(pairs, _MANY), last], axis=1),
            np.append(begin, starts.size),
            place[starts],
            fixed.astype(float),  # integers where nothing is fixed
            np.concatenate([[0], np.cumsum(counts)]),
            of[~is_fixed],
            value[~is_fixed],
        )


def _summed(
    code: Index, place: Index, of: Index, value: Array
) -> tuple[Index, Index, Index, Array]:
    """Return every triple of code, place and observation once, sorted, with the sums of values."""
    monomials, number = np.unique(code, return_inverse=True)
    width, depth = int(place.max(initial=0)) + 1, int(of.max(initial=0)) + 2
    triples, inverse = np.unique((number * width + place) * depth + of + 1, return_inverse=True)
    # NumPy counts in integers where nothing is summed, for which the loop would be compiled anew.
    total = np.bincount(inverse, weights=value, minlength=triples.size).astype(float)
    triples, total = triples[total != 0.0], total[total != 0.0]
    pairs, of = np.divmod(triples, depth)
    return monomials[pairs // width], pairs % width, of - 1, total
