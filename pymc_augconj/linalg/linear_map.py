"""The linear map A from one block of latents u to the predictors, η = … + A u.

Two kinds cover every model: :class:`RowSelection`, where each predictor takes one latent value,
possibly scaled (a GP at its inputs, ``f[idx]``, ``alpha[group]``, an intercept), and
:class:`DenseMap` (a design matrix, basis functions, differences). A :class:`SelectionSum` is a
dense map with few entries a row (correlated effects); a :class:`CopiesMap` is one whose rows repeat
between independent outputs of a process. Neither need be formed. Methods are described once, at
:class:`RowSelection`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csc_array, csr_array

from pymc_augconj.typing import Array, Index


def times(x: Array, coef: Array | None) -> Array:
    """Return x times coefficients; None stands for ones."""
    return x if coef is None else x * coef


@dataclass(frozen=True)
class RowSelection:
    """(A u)ᵢ = coefᵢ · u[indexᵢ], u of length ``size``; ``coef`` None stands for ones."""

    index: Index
    coef: Array | None
    size: int

    @property
    def multiple_of(self) -> tuple[float, RowSelection]:
        """C and B with A = c B, where c may change and B stays."""
        return 1.0, self

    def times(self, c: float) -> RowSelection:
        """Return c A, which remembers that it is a multiple of A."""
        return _Multiple(c, self)

    def scaled(self, columns: Array) -> RowSelection:
        """Return A diag(columns)."""
        return RowSelection(self.index, times(columns[self.index], self.coef), self.size)

    def selects_as(self, other: RowSelection) -> bool:
        """Return whether both maps select the same latent value for each predictor."""
        return self.index is other.index or np.array_equal(self.index, other.index)

    @property
    def entries(self) -> Array:
        """The coefficients, ones where there are none."""
        return np.ones(self.index.size) if self.coef is None else self.coef

    @cached_property
    def is_identity(self) -> bool:
        """Whether A is the identity matrix."""
        return self.coef is None and self.is_diagonal

    @cached_property
    def is_diagonal(self) -> bool:
        """Whether the predictors take the latent values in their order, each once."""
        return self.index.size == self.size and bool(
            np.array_equal(self.index, np.arange(self.size))
        )

    def apply(self, u: Array) -> Array:
        """Return A u, shape (N,), or of each row of u, shape (count, N)."""
        if self.is_identity:
            return u.copy()
        if self.size == 1:
            return times(np.repeat(u, self.index.size, axis=-1), self.coef)
        if self.is_diagonal:
            return times(u, self.coef)
        # Twice as fast as checking an index that is within the latents by its making.
        return times(np.take(u, self.index, axis=-1, mode="clip"), self.coef)

    def magnitude(self, u: Array) -> Array:
        """Return |A| |u|, shape (N,)."""
        return np.abs(self.apply(u))

    def largest_entries(self) -> Array:
        """Return the largest |Aᵢⱼ| of each column, shape (size,)."""
        largest = np.zeros(self.size)
        np.maximum.at(largest, self.index, 1.0 if self.coef is None else np.abs(self.coef))
        return largest

    def apply_transpose(self, w: Array) -> Array:
        """Return Aᵀ w, shape (size,), or of each row of w, shape (count, size)."""
        if self.is_identity:
            return w.copy()
        weighted = times(w, self.coef)
        if self.is_diagonal:
            return weighted
        if w.ndim == 1:
            return np.bincount(self.index, weights=weighted, minlength=self.size)
        result = np.zeros((w.shape[0], self.size))
        np.add.at(result.T, self.index, weighted.T)
        return result

    def congruence(self, matrix: Array) -> Array:
        """Return Aᵀ M A, shape (size, size)."""
        if self.is_identity:
            return matrix
        weighted = matrix if self.coef is None else matrix * np.multiply.outer(self.coef, self.coef)
        flat = (self.index[:, None] * self.size + self.index).ravel()
        total = np.bincount(flat, weights=weighted.ravel(), minlength=self.size**2)
        return total.reshape(self.size, self.size)

    def rows(self, which: Index | slice) -> RowSelection:
        """Return the map onto the predictors ``which`` alone."""
        coef = None if self.coef is None else self.coef[which]
        return RowSelection(self.index[which], coef, self.size)

    def select(self, columns: Index) -> RowSelection:
        """Return the map from the latents ``columns`` alone."""
        position = np.zeros(self.size, dtype=np.intp)
        position[columns] = np.arange(columns.size)
        kept = np.isin(self.index, columns)
        if kept.all():
            return RowSelection(position[self.index], self.coef, columns.size)
        coef = np.where(kept, 1.0 if self.coef is None else self.coef, 0.0)
        return RowSelection(position[self.index], coef, columns.size)

    def dense(self) -> Array:
        """Return A as a Fortran-ordered matrix, shape (N, size)."""
        matrix = np.zeros((self.index.size, self.size), order="F")
        matrix[np.arange(self.index.size), self.index] = 1.0 if self.coef is None else self.coef
        return matrix

    def sparse(self) -> csr_array:
        """Return A as a sparse matrix."""
        starts = np.arange(self.index.size + 1)
        return csr_array((self.entries, self.index, starts), (self.index.size, self.size))


class _Multiple(RowSelection):
    """c B, with coefficients computed on demand."""

    def __init__(self, c: float, base: RowSelection) -> None:
        # The class it derives from is frozen.
        self.__dict__.update(index=base.index, size=base.size, _of=(c, base))

    _of: tuple[float, RowSelection]

    @property
    def multiple_of(self) -> tuple[float, RowSelection]:
        return self._of

    @property
    def is_diagonal(self) -> bool:
        return self._of[1].is_diagonal

    @cached_property
    def coef(self) -> Array:
        c, base = self._of
        return c * base.entries


@dataclass(frozen=True)
class DenseMap:
    """A = matrix · diag(columns), which may change while ``matrix`` stays; None stands for ones.

    ``matrix`` is Fortran-ordered, shape (N, size).
    """

    matrix: Array
    columns: Array | None = None

    @property
    def size(self) -> int:
        return self.matrix.shape[1]

    @property
    def is_identity(self) -> bool:
        return False

    def apply(self, u: Array) -> Array:
        return self.matrix @ times(u, self.columns) if u.ndim == 1 else u @ self.dense().T

    def magnitude(self, u: Array) -> Array:
        return np.abs(self.matrix) @ np.abs(times(u, self.columns))

    def largest_entries(self) -> Array:
        largest = np.maximum(self.matrix.max(axis=0), -self.matrix.min(axis=0))
        return largest if self.columns is None else largest * np.abs(self.columns)

    def apply_transpose(self, w: Array) -> Array:
        return times(self.matrix.T @ w, self.columns) if w.ndim == 1 else w @ self.dense()

    def congruence(self, matrix: Array) -> Array:
        dense = self.dense()
        return dense.T @ matrix @ dense

    def rows(self, which: Index | slice) -> DenseMap:
        return DenseMap(np.asfortranarray(self.matrix[which]), self.columns)

    def select(self, columns: Index) -> DenseMap:
        factors = None if self.columns is None else self.columns[columns]
        return DenseMap(np.asfortranarray(self.matrix[:, columns]), factors)

    def dense(self) -> Array:
        return times(self.matrix, self.columns)


class SelectionSum(DenseMap):
    """A = Σ_k coefs[k] · parts[k], a :class:`DenseMap` whose matrix is formed when asked for.

    ``coefs`` may change while ``parts`` stay.
    """

    columns = None

    def __init__(self, coefs: Array, parts: Sequence[RowSelection]) -> None:
        # The class it derives from is frozen.
        self.__dict__.update(coefs=coefs, parts=parts)

    coefs: Array
    parts: Sequence[RowSelection]

    @cached_property
    def matrix(self) -> Array:
        """A, Fortran-ordered."""
        n_rows = self.parts[0].index.size
        matrix = np.zeros((n_rows, self.size), order="F")
        rows = np.arange(n_rows)
        for c, part in zip(self.coefs, self.parts, strict=True):
            matrix[rows, part.index] += c * part.entries
        return matrix

    @property
    def size(self) -> int:
        return self.parts[0].size

    def largest_entries(self) -> Array:
        n_rows = self.parts[0].index.size
        values = [c * B.entries for c, B in zip(self.coefs, self.parts, strict=True)]
        columns = np.concatenate([B.index for B in self.parts])
        rows = np.tile(np.arange(n_rows), len(self.parts))
        # Parts may have entries in common, which are added up.
        total = csc_array((np.concatenate(values), (rows, columns)), shape=(n_rows, self.size))
        return np.asarray(abs(total).max(axis=0).toarray()).ravel()

    def apply(self, u: Array) -> Array:
        terms = zip(self.coefs, self.parts, strict=True)
        return sum((c * part.apply(u) for c, part in terms), np.zeros(()))

    def apply_transpose(self, w: Array) -> Array:
        terms = zip(self.coefs, self.parts, strict=True)
        return sum((c * part.apply_transpose(w) for c, part in terms), np.zeros(()))

    def magnitude(self, u: Array) -> Array:
        terms = zip(np.abs(self.coefs), self.parts, strict=True)
        return sum((c * part.magnitude(u) for c, part in terms), np.zeros(()))

    def rows(self, which: Index | slice) -> SelectionSum:
        return SelectionSum(self.coefs, [part.rows(which) for part in self.parts])


class CopiesMap(DenseMap):
    """(A u)ᵣ = coefᵣ · base[positionᵣ] · u of copy copyᵣ, for u of several copies of M latents.

    A :class:`DenseMap` whose matrix is formed when asked for. ``base``, shape (n, M), has the rows
    that copies share; ``coef`` None stands for ones; u has the ``copies`` one after another.
    """

    columns = None

    def __init__(
        self, base: Array, position: Index, copy: Index, coef: Array | None, copies: int
    ) -> None:
        # The class it derives from is frozen.
        self.__dict__.update(base=base, position=position, copy=copy, coef=coef, copies=copies)

    base: Array
    position: Index
    copy: Index
    coef: Array | None
    copies: int

    @cached_property
    def matrix(self) -> Array:
        """A, Fortran-ordered."""
        n_rows, M = self.copy.size, self.base.shape[1]
        matrix = np.zeros((n_rows, self.size), order="F")
        for k in range(self.copies):
            own = np.flatnonzero(self.copy == k)
            taken = self.base[self.position[own]]
            coef = None if self.coef is None else self.coef[own, None]
            matrix[own, k * M : (k + 1) * M] = times(taken, coef)
        return matrix

    @property
    def size(self) -> int:
        return self.copies * self.base.shape[1]

    def apply(self, u: Array) -> Array:
        products = u.reshape(*u.shape[:-1], self.copies, -1) @ self.base.T
        return times(products[..., self.copy, self.position], self.coef)

    def magnitude(self, u: Array) -> Array:
        coef = None if self.coef is None else np.abs(self.coef)
        absolute = CopiesMap(np.abs(self.base), self.position, self.copy, coef, self.copies)
        return absolute.apply(np.abs(u))

    def apply_transpose(self, w: Array) -> Array:
        if w.ndim == 1:
            return self.apply_transpose(w[None])[0]
        length = self.copies * len(self.base)
        flat = self.copy * len(self.base) + self.position
        sums = np.array([np.bincount(flat, row, length) for row in times(w, self.coef)])
        products = sums.reshape(len(w), self.copies, -1) @ self.base
        return products.reshape(len(w), -1)

    def rows(self, which: Index | slice) -> CopiesMap:
        coef = None if self.coef is None else self.coef[which]
        return CopiesMap(self.base, self.position[which], self.copy[which], coef, self.copies)


LinearMap = RowSelection | DenseMap
