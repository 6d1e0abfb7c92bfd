"""Layout of the stacked sites of several observed variables with P predictors an observation.

The site of an observation is exp(hᵀη − ½ ηᵀΛη), η ∈ R^P. The predictors of all observed variables
are stacked into n rows: variable by variable, within it predictor by predictor. ``h`` has n
entries. ``lam`` has the n diagonal entries of Λ, followed by the entries above the diagonal where Λ
is a full P × P block, one for each *pair* of coupled rows. Covariances of predictors are stacked
alike.

Conditioning takes a diagonal Λ: with the eigenvectors of each block as a :class:`Rotation` Q of its
rows, QᵀΛQ is diagonal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk
from scipy.linalg.lapack import dpotrf

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.linalg.dense import dense_error, diagonal_view, square_work_array
from pymc_augconj.typing import Array, Index

# Rounding of an eigenvalue, relative to the largest.
_ROUNDING = 1e-14


@dataclass(frozen=True)
class Rotation:
    """An orthogonal change of coordinates Q within sets of rows; other rows stay.

    ``parts`` are the rows, shape (P, N), and Q, shape (P, P, N), of each set. With ``kept`` Q has
    these columns only, of ``size``.
    """

    parts: Sequence[tuple[Index, Array]] = ()
    kept: Index | None = None
    size: int = 0

    def keep(self, columns: NDArray[np.bool_]) -> Rotation:
        """Return some columns of Q."""
        return replace(self, kept=np.flatnonzero(columns), size=columns.size)

    def forward(self, x: Array) -> Array:
        """Return Qᵀx along the last axis."""
        found = self._apply(x, [Q for _, Q in self.parts])
        return found if self.kept is None else found[..., self.kept]

    def back(self, x: Array) -> Array:
        """Return Q x along the last axis."""
        if self.kept is not None:
            whole = np.zeros((*x.shape[:-1], self.size))
            whole[..., self.kept] = x
            x = whole
        return self._apply(x, [Q.swapaxes(0, 1) for _, Q in self.parts])

    def congruence(self, matrix: Array) -> Array:
        """Return QᵀM Q for a symmetric M."""
        if not self.parts:
            return matrix
        rows, Q = self.parts[0]
        if rows.size != len(matrix) or not isinstance(self._spans[0], slice):
            return self.forward(self.forward(matrix).T)
        whole = self._by_blocks(matrix, Q)
        return whole if self.kept is None else whole[np.ix_(self.kept, self.kept)]

    def _by_blocks(self, matrix: Array, Q: Array) -> Array:
        """Return QᵀM Q of one set of rows in order; M has few blocks that are not zero.

        Blocks are computed one by one, so that they stay in the cache.
        """
        P, N = Q.shape[1:]
        blocks, result = matrix.reshape(P, N, P, N), np.zeros((P, N, P, N))
        pairs = [(p, r) for p in range(P) for r in range(P) if blocks[p, :, r].any()]
        wanted = np.full(P * N, self.kept is None)
        wanted[() if self.kept is None else self.kept] |= True
        columns = np.flatnonzero(wanted.reshape(P, N).any(axis=1))
        term = np.empty((N, N))
        for q in columns:
            for s in columns[columns <= q]:
                own = result[q, :, s]
                for p, r in pairs:
                    np.multiply(blocks[p, :, r], Q[p, q][:, None], out=term)
                    term *= Q[r, s]
                    own += term
                result[s, :, q] = own.T
        return result.reshape(P * N, P * N)

    def congruence_back(self, matrix: Array) -> Array:
        """Return Q M Qᵀ for a symmetric M."""
        return self.back(self.back(matrix).T) if self.parts else matrix

    @cached_property
    def _spans(self) -> list[slice | Index]:
        """The rows of each set, one after the other."""
        flat = [rows.ravel() for rows, _ in self.parts]
        together = [bool((np.diff(rows) == 1).all()) for rows in flat]
        pairs = zip(flat, together, strict=True)
        return [slice(rows[0], rows[-1] + 1) if one else rows for rows, one in pairs]

    def _apply(self, x: Array, vectors: Sequence[Array]) -> Array:
        if not self.parts:
            return x
        result = np.array(x, order="C")
        for span, Q in zip(self._spans, vectors, strict=True):
            own = result[..., span].reshape(*x.shape[:-1], len(Q), 1, Q.shape[-1])
            # An einsum, which has no axis to sum in the order of memory, takes five times as long.
            total = own[..., 0, :, :] * Q[0]
            for p in range(1, len(Q)):
                total += own[..., p, :, :] * Q[p]
            result[..., span] = total.reshape(*x.shape[:-1], len(Q) * Q.shape[-1])
        return result


class Coupling:
    """Pairs of rows that sites couple, and the algebra of a stacked Λ.

    ``rows`` are those of each variable whose Λ are P × P blocks, (P, N), of ``n_rows``; ``first``
    and ``second`` the rows of each pair, ordered by variable and pair of predictors.
    """

    def __init__(self, n_rows: int, rows: Sequence[Index] = ()) -> None:
        self.n_rows, self.rows = n_rows, tuple(rows)
        pairs = [(own[p], own[q]) for own in self.rows for p, q in _upper(own)]
        empty = np.empty(0, dtype=np.intp)
        self.first = np.concatenate([empty, *(first for first, _ in pairs)])
        self.second = np.concatenate([empty, *(second for _, second in pairs)])

    @property
    def size(self) -> int:
        """Length of ``lam``."""
        return self.n_rows + self.first.size

    def merged(self, inverse: Index | None, size: int) -> Coupling:
        """Return the coupling after row i has become row ``inverse[i]`` of ``size``."""
        return self if inverse is None else Coupling(size, [inverse[own] for own in self.rows])

    def blocks(self, lam: Array) -> Iterator[Array]:
        """Yield the Λ of each coupled variable, shape (P, P, N)."""
        start = self.n_rows
        for own in self.rows:
            stop = start + len(_upper(own)) * own.shape[1]
            yield _blocks(lam[own], lam[start:stop])
            start = stop

    def product(self, lam: Array, x: Array) -> Array:
        """Return Λ x, of each row of x where there are several."""
        result = lam[: self.n_rows] * x
        if self.first.size:
            np.add.at(result.T, self.first, (lam[self.n_rows :] * x[..., self.second]).T)
            np.add.at(result.T, self.second, (lam[self.n_rows :] * x[..., self.first]).T)
        return result

    def trace(self, lam: Array, cov: Array) -> float:
        """Return tr(ΛΣ)."""
        n = self.n_rows
        diagonal = float(lam[:n] @ cov[:n])
        return diagonal + 2.0 * float(lam[n:] @ cov[n:]) if self.first.size else diagonal

    def squared_norm(self, lam: Array, cov: Array) -> float:
        """Return tr(ΛVΛV), V the blocks of ``cov``: the size of a change Λ relative to q."""
        relative = lam[: self.n_rows] * cov[: self.n_rows]
        cross = 0.0
        for own, L, V in zip(self.rows, self.blocks(lam), self.blocks(cov), strict=True):
            relative[own] = 0.0
            product = np.einsum("pqn,qrn->prn", L, V)
            cross += np.einsum("prn,rpn->", product, product)
        return float(np.sum(relative**2) + cross)

    def diagonalize(self, lam: Array) -> tuple[Array, Rotation]:
        """Return the diagonal of QᵀΛQ, shape (n,), and Q."""
        if not self.rows:
            return lam, Rotation()
        diagonal, parts = np.array(lam[: self.n_rows]), []
        for own, block in zip(self.rows, self.blocks(lam), strict=True):
            values, vectors = _eigen(block)
            diagonal[own] = values.T
            parts.append((own, np.moveaxis(vectors, 0, -1)))
        return diagonal, Rotation(parts)

    def nonnegative(self, lam: Array) -> Array:
        """Return Λ with its negative eigenvalues set to zero."""
        values, rotation = self.diagonalize(lam)
        values = np.maximum(values, 0.0)
        diagonal, pairs = np.array(values), []
        for own, Q in rotation.parts:
            block = np.einsum("pqn,qn,rqn->prn", Q, values[own], Q)
            diagonal[own] = block[np.arange(len(own)), np.arange(len(own))]
            pairs += [block[p, q] for p, q in _upper(own)]
        return np.concatenate([diagonal, *pairs])


@dataclass(frozen=True)
class Span:
    """The rows of one observed variable, predictor by predictor, and the pairs of these."""

    shape: tuple[int, int]
    rows: slice
    pairs: slice
    full: bool


class SiteLayout:
    """The stacked rows of several observed variables of the ``shapes`` (P, N).

    ``full`` says whether the Λ of each are P × P blocks.
    """

    def __init__(self, shapes: Sequence[tuple[int, int]], full: Sequence[bool]) -> None:
        row = 0
        pair = n_rows = sum(P * N for P, N in shapes)
        spans, coupled = [], []
        for (P, N), blocks in zip(shapes, full, strict=True):
            n_pairs = N * P * (P - 1) // 2 if blocks else 0
            rows, pairs = slice(row, row + P * N), slice(pair, pair + n_pairs)
            spans.append(Span((P, N), rows, pairs, blocks))
            if n_pairs:
                coupled.append(np.arange(row, rows.stop).reshape(P, N))
            row, pair = rows.stop, pairs.stop
        self.spans, self.coupling = tuple(spans), Coupling(n_rows, coupled)

    def rows(self, stacked: Array) -> list[Array]:
        """Return views of the rows of each variable, (P, N)."""
        return [stacked[span.rows].reshape(span.shape) for span in self.spans]

    def precisions(self, lam: Array) -> list[Array]:
        """Return the Λ, or covariances, of each variable: (P, N), or (P, P, N) for blocks."""
        pairs = zip(self.spans, self.rows(lam), strict=True)
        return [_blocks(rows, lam[span.pairs]) if span.full else rows for span, rows in pairs]

    def moments(self, mean: Array, cov: Array) -> list[tuple[Array, Array]]:
        """Return mean and (co)variances of the predictors of each variable."""
        return list(zip(self.rows(mean), self.precisions(cov), strict=True))

    def stack_rows(self, parts: Sequence[Array]) -> Array:
        """Return the inverse of :meth:`rows`; each part broadcasts to (P, N)."""
        stacked = np.empty(self.coupling.n_rows)
        for rows, part in zip(self.rows(stacked), parts, strict=True):
            rows[...] = part
        return stacked

    def stack_precisions(self, parts: Sequence[Array]) -> Array:
        """Return the inverse of :meth:`precisions`."""
        stacked = np.empty(self.coupling.size)
        for span, rows, part in zip(self.spans, self.rows(stacked), parts, strict=True):
            if not span.full:
                rows[...] = part
                continue
            for p, row in enumerate(rows):
                row[...] = part[p, p]
            if len(rows) > 1:
                pairs = stacked[span.pairs].reshape(-1, rows.shape[1])
                pairs[...] = [part[p, q] for p, q in _upper(rows)]
        return stacked


def _eigen(blocks: Array) -> tuple[Array, Array]:
    """Return eigenvalues, (N, P), with rounding set to zero, and eigenvectors, (N, P, P)."""
    blocks = np.moveaxis(blocks, -1, 0)
    if not np.isfinite(blocks).all():
        raise NotPositiveDefiniteError("expected finite sites, got a NaN or an infinity")
    values, vectors = np.linalg.eigh(blocks)
    size = np.abs(values).max(axis=1, keepdims=True, initial=0.0)
    return np.where(np.abs(values) > _ROUNDING * size, values, 0.0), vectors


def _upper(rows: NDArray[Any]) -> list[tuple[int, int]]:
    return list(combinations(range(len(rows)), 2))


def _blocks(diagonal: Array, upper: Array) -> Array:
    """Return blocks, shape (P, P, N), from their diagonals, (P, N), and upper triangles."""
    P, N = diagonal.shape
    blocks = np.empty((P, P, N))
    blocks[np.arange(P), np.arange(P)] = diagonal
    for (p, q), entry in zip(_upper(diagonal), upper.reshape(-1, N), strict=True):
        blocks[p, q] = blocks[q, p] = entry
    return blocks


def weight_precision(Phi: Array, lam: Array, work: Array | None = None) -> Array:
    """Return M = I + ΦᵀΛΦ, lower triangle, in ``work``; Φ is (N, D), and λ of either sign.

    M is the precision of weights v ~ N(0, I) given sites on η = Φ v. There is no division by λ, so
    negative λ are allowed as long as M is positive definite (Rasmussen & Williams 2006, Gaussian
    Processes for Machine Learning, section 2.1).
    """
    M = square_work_array(Phi.shape[1], work)
    M.fill(0.0)
    diagonal_view(M)[...] = 1.0
    return add_gram(M, Phi, lam)


def add_gram(M: Array, rows: Array, lam: Array) -> Array:
    """Return M + rowsᵀ diag(λ) rows, lower triangle, in place; λ is of either sign."""
    negative = lam < 0.0
    if not negative.any():
        return _add_gram(M, 1.0, rows, lam)
    M = _add_gram(M, -1.0, rows[negative], -lam[negative])
    return _add_gram(M, 1.0, rows[~negative], lam[~negative])


def _add_gram(M: Array, sign: float, rows: Array, weights: Array) -> Array:
    """Return M + sign · rowsᵀ diag(weights) rows, lower triangle, in place; weights ≥ 0."""
    if weights.size == 0:
        return M
    rows = np.sqrt(weights)[:, None] * rows
    if rows.flags.f_contiguous:
        return dsyrk(sign, rows, beta=1.0, c=M, trans=1, lower=1, overwrite_c=1)
    return dsyrk(sign, rows.T, beta=1.0, c=M, lower=1, overwrite_c=1)


def cholesky(M: Array, lam: Array) -> tuple[Array, float, float, Array]:
    """Overwrite M with its lower factor; return it, log|M|, its estimated error and diag M.

    M is Fortran-ordered; its lower triangle is read, and the upper one of the factor is
    meaningless. ``lam`` is for the message of NotPositiveDefiniteError: if negative precisions
    outweigh the prior, so that no Gaussian posterior exists, or a number is not finite.
    """
    diagonal = diagonal_view(M).copy()
    chol_M, info = dpotrf(M, lower=1, clean=0, overwrite_a=1)
    log_det = 2.0 * float(np.log(diagonal_view(chol_M)).sum()) if info == 0 else 0.0
    if info != 0 or not np.isfinite(log_det):
        raise NotPositiveDefiniteError(
            f"the posterior precision I + ΦᵀΛΦ has no Cholesky factor (LAPACK info {info}, lam "
            f"from {lam.min():.2e} to {lam.max():.2e}): expected a finite design and precisions "
            "whose negative ones do not outweigh the prior; damp the update that made them"
        )
    return chol_M, log_det, dense_error(chol_M, diagonal), diagonal
