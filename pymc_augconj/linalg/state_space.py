"""Cholesky factors of K + D in linear time: K the covariance of a Markov process, D diagonal.

A Matérn process of ν = ½, 3/2, 5/2 over one input is the first entry of the state of a linear
stochastic differential equation of dimension 1, 2, 3. Over the ordered inputs t₁ ≤ t₂ ≤ …, with
gaps scaled by the rate √(2ν)/ℓ and derivatives of the state likewise,

    x₁ ~ N(0, P),        xᵢ ~ N(Aᵢ xᵢ₋₁, P − Aᵢ P Aᵢᵀ),        fᵢ = hᵀxᵢ,

and the Kalman filter with measurement noise D is the factorisation K + D = L diag(s) Lᵀ, L with a
unit diagonal: with the predicted covariance Vᵢ of the state, sᵢ = hᵀVᵢh + Dᵢ and the gain
kᵢ = Vᵢh/sᵢ,

    L⁻¹y = e:    eᵢ = yᵢ − hᵀmᵢ,    mᵢ₊₁ = Aᵢ₊₁ (mᵢ + kᵢ eᵢ).

The state's precisions have no digits for close inputs, and neither has P − A P Aᵀ, which comes from
integrals ∫ uᵏ exp(−2u) du for short gaps. Sums of processes have all their states; a constant is a
process of ν = ½ and rate zero; an infinite gap starts an independent process.

Products with waves and functions of the input are loadings, f = Σ φ_c z_c with independent Matérn
processes z_c of unit variance: cos ωr = cos ωt cos ωt′ + sin ωt sin ωt′, and PyMC's ``Periodic`` is

    exp(−sin²(ωr/2)/(2ℓ²)) = Σⱼ qⱼ cos jωr,    q₀ = e⁻ᵃI₀(a),  qⱼ = 2e⁻ᵃIⱼ(a),  a = 1/(4ℓ²),

up to the first j that leaves less than 1e-15 of the sum, one. It is the same A for all harmonics.

References
----------
Hartikainen & Särkkä (2010), Kalman filtering and smoothing solutions to temporal Gaussian process
regression models. MLSP.
Solin & Särkkä (2014), Explicit link between periodic covariance functions and state space models.
AISTATS.
Durbin & Koopman (2012), Time Series Analysis by State Space Methods, chapter 4 (the smoother).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.linalg import block_diag
from scipy.special import ive

from pymc_augconj.errors import NotPositiveDefiniteError, UncertainEvidenceError
from pymc_augconj.typing import Array, Index

from .dense import EPS

if TYPE_CHECKING:
    from .state_space_kernels import Passes


# Freed arrays of up to so many numbers, 32 MiB, stay the process's from now on: glibc goes by the
# largest one that was freed. Else passes over long series get theirs anew, at 2 µs a page.
np.empty(2**22 - 4096)
# Rounding errors of a pivot, in units of EPS times the variance of the process: against 50 digits
# they were below one, for gaps from 1e-9 to 10 lengthscales.
_UNITS = 8.0
# Share of the variance that harmonics leave out, their number for the cost, and the largest one,
# which is that of the shortest lengthscale of a period.
_LEFT_OUT, _TYPICAL_HARMONICS, _MOST_HARMONICS, SHORTEST = 1e-15, 10, 200, 0.021
# P of unit variance for each dimension of the state.
_STATIONARY = (
    np.eye(1),
    np.eye(2),
    np.array([[1.0, 0.0, -1.0 / 3.0], [0.0, 1.0 / 3.0, 0.0], [-1.0 / 3.0, 0.0, 1.0]]),
)
#: What multiplies a Matérn covariance.
COSINE, PERIODIC = 1, 2


class MarkovInputs:
    """Inputs ``x`` of a sum of processes of ν + ½ = ``orders``, and the distinct gaps between them.

    ``order`` are the inputs in increasing order, None where they do not decrease or do not
    increase; ``step`` is the number of the gap before each input, −1 for the first. ``loadings``
    are for each process 0, :data:`COSINE` or :data:`PERIODIC`, and the column beside the inputs in
    ``table``, (n, 1 + m), that multiplies it, −1 for none; none at all where f is the sum.
    """

    def __init__(
        self, table: Array, orders: Sequence[int], loadings: Sequence[tuple[int, int]] = ()
    ) -> None:
        self.table, self.loadings = table.reshape(len(table), -1), tuple(loadings)
        self.x, self.orders = self.table[:, 0].copy(), np.array(orders, dtype=np.intp)
        x = self.x
        difference = np.diff(x)
        is_sorted = (difference >= 0.0).all() or (difference <= 0.0).all()
        self.order: Index | None = None if is_sorted else np.argsort(x, kind="stable")
        gaps = np.abs(difference) if is_sorted else np.diff(x[self.order])
        self.gaps, step = np.unique(gaps, return_inverse=True)
        if 2 * self.gaps.size > x.size:
            # Read in the order of memory.
            self.gaps, step = gaps, np.arange(gaps.size)
        self.step = np.append(-1, step.ravel())

    @property
    def size(self) -> int:
        """The number of inputs."""
        return self.x.size

    @property
    def dimension(self) -> int:
        """The dimension of the state; a typical one where it depends on parameters."""
        copies = [(1, 2, 2 * _TYPICAL_HARMONICS + 1)[wave] for wave, _ in self.loadings]
        return int(np.dot(self.orders, copies or np.ones_like(self.orders)))

    @property
    def kernels(self) -> Passes:
        """The compiled loops; not kept, as they are not pickled."""
        from .state_space_kernels import passes  # which imports Numba

        return passes(0 if self.loadings else self.dimension)

    def parameters(self, array: Array) -> Array:
        """Return variances, rates and, with loadings, frequencies and a, as rows."""
        pairs = array[:-1].reshape(-1, self.orders.size, 2)
        found: Array = pairs.transpose(0, 2, 1).reshape(-1, self.orders.size)
        return found

    def ordered(self, x: Array) -> Array:
        """Return x with its last axis in the order of inputs."""
        return x if self.order is None else x[..., self.order]

    def back(self, x: Array) -> Array:
        """Return the inverse of :meth:`ordered`."""
        if self.order is None:
            return x
        found = np.empty_like(x)
        found[..., self.order] = x
        return found


class Motion(NamedTuple):
    """The state's transitions A and process noise of every gap, its prior covariance P, and φ.

    A, Q and P have each process once, and the loadings φ are as of :class:`.Passes`. ``variance``
    is that of f, in the order of inputs where it is not constant.
    """

    A: Array
    Q: Array
    P: Array
    loaded: tuple[Array, Index]
    variance: float | Array


def transitions_of(inputs: MarkovInputs, array: Array) -> Motion:
    """Return how the state moves; ``array`` is as of a :class:`MarkovFactor`."""
    from .state_space_kernels import transitions  # which imports Numba

    variances, rates = inputs.parameters(array)[:2]
    loads = list(np.sqrt(variances)[:, None, None])
    total: float | Array = float(variances.sum())
    if inputs.loadings:
        loads = _loadings(inputs, array)
        total = np.sum(np.vstack(loads) ** 2, axis=0)
    copies, m = np.array([len(load) for load in loads]), inputs.orders
    starts = [np.cumsum(size) - size for size in (copies * m, m, copies)]
    groups = np.column_stack([starts[0], m, starts[1], copies, starts[2]])
    A, Q = transitions(m, rates.copy(), inputs.gaps)
    P = block_diag(*(_STATIONARY[order - 1] for order in m))
    return Motion(A, Q, P, (np.ascontiguousarray(np.vstack(loads).T), groups), total)


def _loadings(inputs: MarkovInputs, array: Array) -> list[Array]:
    """Return the loadings of every process in the order of inputs, (L, n)."""
    t, found = inputs.ordered(inputs.x - inputs.x[0]), []
    variances, _, frequencies, a = inputs.parameters(array)
    for c, (wave, column) in enumerate(inputs.loadings):
        phi = np.full((1, t.size), variances[c] ** 0.5)
        if column >= 0:
            phi = phi * inputs.ordered(inputs.table[:, 1 + column])
        if wave:
            weights = np.array([0.0, 1.0]) if wave == COSINE else _harmonics(a[c])
            turns = np.tile(np.exp(1j * frequencies[c] * t), (weights.size, 1))
            turns[0] = 1.0
            turns = np.sqrt(weights)[:, None] * np.cumprod(turns, axis=0)
            phi = phi * np.vstack([turns.real[weights > 0.0], turns.imag[1:]])
        found.append(phi)
    return found


def _harmonics(a: float) -> Array:
    """Return the weights of cosines in ``Periodic``."""
    weights = 2.0 * ive(np.arange(_MOST_HARMONICS + 1), a)
    weights[0] *= 0.5
    rest = np.cumsum(weights[::-1])[::-1]
    if SHORTEST * a**0.5 > 0.5:
        found = f"expected Periodic with an ls of at least {SHORTEST}, found {0.5 / a**0.5:.2g}"
        # So that values refused here are told of.
        raise UncertainEvidenceError(found)
    return np.asarray(weights[rest > _LEFT_OUT])


def product_with_cov(inputs: MarkovInputs, array: Array, motion: Motion, x: Array) -> Array:
    """Return K x with its own noise, of each row of x where there are several.

    By the entries hᵀAᵢ … Aⱼ₊₁P h of K on both sides of its diagonal, without a factor.
    """
    kernels, (h, groups) = inputs.kernels, motion.loaded
    # Each product adds x times a scale: that of K, or else the sum would be of its rounding.
    scale = np.broadcast_to(np.where(motion.variance > 0.0, motion.variance, 1.0), inputs.size)
    # P h of every input.
    parts = [h[:, f : f + L, None] * motion.P[q : q + m, q] for _, m, q, L, f in groups]
    gain = np.hstack([part.transpose(0, 2, 1).reshape(len(h), -1) for part in parts])
    gain = np.tile(gain, (inputs.size // len(h), 1)) / scale[:, None]
    rows = np.atleast_2d(x).reshape(-1, inputs.size)
    lower = np.array(inputs.ordered(rows), dtype=float, order="C")
    total, upper = (motion.variance + array[-1] - 2.0 * scale) * lower, lower.copy()
    given = motion.A, inputs.step, motion.loaded, gain, np.ascontiguousarray(scale)
    kernels.forward(*given, lower, True)
    kernels.backward(*given, upper, True)
    total += lower
    total += upper
    return inputs.back(total).reshape(x.shape)


class MarkovFactor:
    """L and s of K + (own + extra) I, for variances and rates as of a ``"markov"`` block.

    ``array`` has the variance and rate of each process, with loadings then the frequency and a of
    each (zero where it has none), and last the noise variance of every value, own. ``extra``, (n,),
    are further noise variances; where negative, s has as many negative entries if there is a
    Gaussian with the precision K⁻¹ + 1/extra. ``known`` are the :func:`transitions_of` these.
    ``half`` is s⁻¹ L⁻¹ x for rows ``x``, if they are given, until ``solved`` is, (K + D)⁻¹ x.
    ``pivots`` and ``prior`` are s, and s without ``extra``, in the order of inputs; ``error`` is
    the estimated rounding error of log|K + D|.

    Raises NotPositiveDefiniteError, with ``name``, if a number is not finite, or a pivot has the
    wrong sign.
    """

    def __init__(
        self,
        inputs: MarkovInputs,
        array: Array,
        extra: Array | None = None,
        name: str = "a covariance",
        known: Motion | None = None,
        x: Array | None = None,
    ) -> None:
        self.inputs, own = inputs, float(array[-1])
        valid = np.isfinite(array).all() and (array >= 0.0).all()
        self.extra = np.zeros(inputs.size) if extra is None else inputs.ordered(extra)
        self.half = self._rows(np.empty((0, inputs.size)) if x is None else x)
        negative = np.count_nonzero(self.extra < 0.0)
        if valid:
            motion = known or transitions_of(inputs, array)
            self._A, self._loaded = motion.A, motion.loaded
            self.pivots, self.prior = np.empty((2, inputs.size))
            _, m, _, copies, _ = motion.loaded[1].T
            self._gain = np.empty((inputs.size, m @ copies))
            self.inputs.kernels.filter(
                *motion[:3], inputs.step, motion.loaded, own, self.extra, self.pivots, self.prior,
                self._gain, self.half,
            )  # fmt: skip
            valid = np.isfinite(self.pivots).all() and self.pivots.all()
        if not valid or np.count_nonzero(self.pivots < 0.0) != negative:
            raise NotPositiveDefiniteError(
                f"{name} has no Cholesky factor: expected finite variances and rates, and inputs "
                "that are not closer than the noise resolves"
            )
        # Where noise dominates, rounding of it has no influence on 1 + K/D.
        self._rounding = _UNITS * EPS * (motion.variance + own)
        relative = self._rounding / (np.abs(self.pivots) + self._rounding / _UNITS)
        self.error = float(np.sum(relative))

    def rounding_of(self, weights: Array) -> float:
        """Return the estimated rounding error of ½ xᵀ(K + D)⁻¹x, x the last row less the others.

        ``weights`` multiply the others. To be asked before :attr:`solved`.
        """
        half = self.half[-1] - weights @ self.half[:-1]
        return 0.5 * float((self._rounding * half) @ half)

    @cached_property
    def roots(self) -> Array:
        """√s."""
        return np.sqrt(self.pivots)

    @cached_property
    def _inverse_roots(self) -> Array:
        return 1.0 / self.roots

    def _rows(self, x: Array) -> Array:
        """Return the rows of x in the order of inputs, a copy."""
        rows = np.atleast_2d(x).reshape(-1, self.inputs.size)
        return np.array(self.inputs.ordered(rows), dtype=float, order="C")

    def _run(self, x: Array, kernel: Any, scale: Array, is_product: bool) -> Array:
        rows, inputs = self._rows(x), self.inputs
        kernel(self._A, inputs.step, self._loaded, self._gain, scale, rows, is_product)
        return inputs.back(rows).reshape(x.shape)

    def product(self, x: Array) -> Array:
        """Return L diag(√s) x, of each row of x where there are several."""
        return self._run(x, self.inputs.kernels.forward, self.roots, True)

    def transpose_product(self, x: Array) -> Array:
        """Return diag(√s) Lᵀ x."""
        return self._run(x, self.inputs.kernels.backward, self.roots, True)

    def half_solve(self, x: Array) -> Array:
        """Return diag(√s)⁻¹ L⁻¹ x."""
        return self._run(x, self.inputs.kernels.forward, self._inverse_roots, False)

    def transpose_solve(self, x: Array) -> Array:
        """Return L⁻ᵀ diag(√s)⁻¹ x."""
        return self._run(x, self.inputs.kernels.backward, self._inverse_roots, False)

    def solve(self, x: Array) -> Array:
        """Return (K + D)⁻¹ x, whatever the signs of s."""
        given = self._A, self.inputs.step, self._loaded, self._gain
        rows = self._rows(x)
        self.inputs.kernels.forward(*given, 1.0 / self.pivots, rows, False)
        return self._finished(rows).reshape(x.shape)

    def simulated(self, root: MarkovFactor, x: Array, away: Array) -> tuple[Array, Array, float]:
        """Return u = S x by another factor S and (K + D)⁻¹ w for w = u + ``away``, and max |w|."""
        x, away, given = self._rows(x), self._rows(away), (self._A, self.inputs.step, self._loaded)
        of_both = root._gain, root.roots, self._gain, self.pivots
        largest = self.inputs.kernels.simulate(*given, *of_both, x, away)
        return self.inputs.back(x), self._finished(away), largest

    def _finished(self, rows: Array) -> Array:
        given = self._A, self.inputs.step, self._loaded, self._gain
        self.inputs.kernels.backward(*given, np.ones(self.inputs.size), rows, False)
        return self.inputs.back(rows)

    @cached_property
    def solved(self) -> Array:
        return self._finished(self.half)

    def var(self) -> Array:
        """Return the variances of f, with its own noise, given f + N(0, extra)."""
        found = np.empty(self.inputs.size)
        self.inputs.kernels.variances(
            self._A, self.inputs.step, self._loaded, self._gain, self.pivots, self.prior,
            self.extra, found,
        )  # fmt: skip
        return self.inputs.back(found)
