"""One Gaussian variable of the user's model, for engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from pymc_augconj.typing import Array, Index

from .linalg.log_determinant import LogDeterminant
from .linalg.sparse import SymmetricPattern, find_pattern
from .linalg.state_space import MarkovInputs
from .linalg.vecchia import ZeroFillPattern
from .point import Point, PointMap


class EntryTransform(Protocol):
    """The transform between a variable's flat value and its entry in PyMC's point."""

    def entry(self, value: Array) -> Array:
        """Return the entry for a value."""

    def value(self, entry: Array) -> Array:
        """Return the value for an entry."""

    def log_jacobian(self, value: Array) -> float:
        """Return the log absolute derivative of the value by its entry, added up."""

    def on_tape(self, tape: Any, value: Index) -> tuple[Index, Index]:
        """Return the registers of the entry and the log derivative, given those of the value."""


class GaussianStructure:
    """Questions about the covariance of independent Gaussian outputs; see :class:`LatentBlock`."""

    size: int
    copies: int
    kind: str

    @property
    def total_size(self) -> int:
        """Number of latent values."""
        return self.size * self.copies

    @property
    def is_independent(self) -> bool:
        """Whether its values are independent, each with a standard deviation of its own."""
        return self.kind == "diagonal"

    @property
    def is_standard(self) -> bool:
        """Whether its values are standard normal at every θ."""
        return self.kind == "standard"

    @property
    def has_covariance(self) -> bool:
        """Whether ``scale`` is K."""
        return self.kind == "dense"

    @property
    def is_correlated(self) -> bool:
        """Whether ``scale`` is a matrix, K or its Cholesky factor."""
        return self.kind in ("dense", "factor")

    @property
    def is_intrinsic(self) -> bool:
        """Whether Q has a precision of the sum of all values, the last entry of ``scale``."""
        return self.kind == "intrinsic"

    @property
    def is_sparse(self) -> bool:
        """Whether ``scale`` has all entries of Q, as of a walk or a map with a proper prior."""
        return self.kind == "precision"

    @property
    def has_precision(self) -> bool:
        """Whether ``scale`` has entries of Q."""
        return self.kind in ("precision", "intrinsic", "pivots")


@dataclass(frozen=True)
class LatentBlock(GaussianStructure):
    """One Gaussian variable of the user's model, by its centred latent u ~ N(0, K(θ))."""

    #: Variable of the user's model (``"f"`` for both forms of ``gp.prior``), and its entry in
    #: PyMC's point (``"f_rotated_"`` where PyMC's free variable is whitened).
    name: str
    value_name: str
    #: For printed tables: ``"GP (whitened)"``, ``"multivariate normal"``, ``"normal"``.
    form: str
    #: Of the entry in the point.
    shape: tuple[int, ...]
    #: Length of one independent output of u, K is (size, size); and number of these, which share K
    #: (``gp.prior(n_outputs=2)``).
    size: int
    copies: int
    #: True where the point holds v with u = chol(K) v; otherwise it holds mean(θ, …) + u.
    whitened: bool
    #: Structure of its covariance, which determines the value of ``scale``: ``"dense"`` K, (size,
    #: size); ``"factor"`` its lower Cholesky factor; ``"diagonal"`` standard deviations,
    #: (copies·size,); ``"standard"`` ones, likewise; ``"precision"`` entries of Q = K⁻¹, (E,), and
    #: for W random walks the precisions of their first values, (E + W,); ``"markov"`` the array
    #: of a :class:`.MarkovFactor`; ``"kronecker"`` the factors of K, flat. See
    #: :mod:`pymc_augconj.latents.joint`.
    kind: str
    scale: PointMap[Array]
    #: ``(point, G) -> {name: derivative}`` of ⟨G, scale(θ)⟩.
    scale_pullback: Callable[[Point, Array], dict[str, Array]] | None = None
    #: Prior mean of the value, flat, given θ and the values of other blocks; None where it is zero.
    mean: PointMap[Array] | None = None
    #: For ``"precision"``: rows and columns of the entries of Q, in both triangles, (2, E).
    entries: Index | None = None
    #: For ``"pivots"``: the order of the values in which each is given earlier ones.
    order: Index | None = None
    #: For ``"markov"``: the inputs of the process.
    inputs: MarkovInputs | None = None
    #: For ``"kronecker"``: the lengths of the axes, the first of which varies slowest.
    grid: tuple[int, ...] = ()
    #: ``point -> (value, {name: derivative})`` of the log ratio between the user's density and the
    #: normal one, if it depends on θ; it is part of ``log_prior``.
    log_factor: Callable[[Point], tuple[float, dict[str, Array]]] | None = None
    #: For ``"precision"``: the normal log density at its mean by the user's own formula, for where
    #: log|Q| from the entries has no digits.
    log_peak: PointMap[Array] | None = None
    #: Whether the prior density is one everywhere: ``"diagonal"`` standard deviations are then so
    #: large that nothing of the normal density is left in any sum.
    is_flat: bool = False
    #: None where the entry is the value.
    transform: EntryTransform | None = None

    @property
    def is_unordered(self) -> bool:
        """Whether S is the Cholesky factor of K in another order than that of the latents."""
        return self.inputs is not None and self.inputs.order is not None

    @property
    def drawn_name(self) -> str:
        """The variable of a posterior that has its value, or v."""
        return self.value_name if self.transform is None else self.name

    def entry_of(self, value: Array) -> Array:
        """Return the entry for a flat value (the flat v of a whitened block)."""
        entry = value if self.transform is None else self.transform.entry(value)
        return entry.reshape(self.shape)

    def value_of(self, entry: Array) -> Array:
        """Return the flat value (or v) for an entry."""
        flat = np.ravel(entry)
        return flat if self.transform is None else self.transform.value(flat)

    @cached_property
    def sparsity(self) -> SymmetricPattern:
        """Sparsity pattern and elimination order of Q."""
        assert self.entries is not None  # used by the kind "precision" alone
        return find_pattern(self.size, *self.entries)

    @cached_property
    def root_pattern(self) -> ZeroFillPattern:
        """Pattern of Q's factor in the reverse of ``order``."""
        assert self.order is not None  # used by the kind "pivots" alone
        assert self.entries is not None
        return ZeroFillPattern(self.order, *self.entries)

    @cached_property
    def _entry_at(self) -> Index:
        """Index of the entry at each place of the flat Q; the number of entries where none."""
        assert self.entries is not None
        rows, cols = self.entries
        lower = np.flatnonzero(rows >= cols)
        index = np.full(self.sparsity.n_flat, rows.size)
        index[self.sparsity.positions(rows[lower], cols[lower])] = lower
        return index

    @cached_property
    def log_determinant(self) -> LogDeterminant:
        """log|Q| of the kind "precision", without a factorisation where that is possible."""
        assert self.entries is not None
        return LogDeterminant(self.scale, self.scale.names, self.entries, self._log_det_of)

    def _log_det_of(self, array: Array) -> tuple[float, float]:
        factor = self.sparsity.factorize(self.flat_precision(array))
        return factor.log_det, factor.error

    def flat_precision(self, array: Array) -> Array:
        """Return Q, flat, given the value of ``scale``."""
        return np.append(array, 0.0)[self._entry_at]
