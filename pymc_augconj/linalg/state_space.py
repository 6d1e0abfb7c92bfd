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

References
----------
Hartikainen & Särkkä (2010), Kalman filtering and smoothing solutions to temporal Gaussian process
regression models. MLSP.
Durbin & Koopman (2012), Time Series Analysis by State Space Methods, chapter 4 (the smoother).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.typing import Array, Index

from .dense import EPS

if TYPE_CHECKING:
    from .state_space_kernels import Passes


# Rounding errors of a pivot, in units of EPS times the variance of the process: against 50 digits
# they were below one, for gaps from 1e-9 to 10 lengthscales.
_UNITS = 8.0


class MarkovInputs:
    """Inputs ``x`` of a sum of processes of ν + ½ = ``orders``, and the distinct gaps between them.

    ``order`` are the inputs in increasing order, None where they do not decrease or do not
    increase; ``step`` is the number of the gap before each input, −1 for the first.
    """

    def __init__(self, x: Array, orders: Sequence[int]) -> None:
        self.x, self.orders = x, np.array(orders, dtype=np.intp)
        difference = np.diff(x)
        is_sorted = (difference >= 0.0).all() or (difference <= 0.0).all()
        self.order: Index | None = None if is_sorted else np.argsort(x, kind="stable")
        gaps = np.abs(difference) if is_sorted else np.diff(x[self.order])
        self.gaps, step = np.unique(gaps, return_inverse=True)
        if 2 * self.gaps.size > x.size:
            # Read in the order of memory.
            self.gaps, step = gaps, np.arange(gaps.size)
        self.step = np.append(-1, step.ravel())
        self.h = np.concatenate([[1.0] + [0.0] * (d - 1) for d in orders])

    @property
    def size(self) -> int:
        """The number of inputs."""
        return self.x.size

    @property
    def dimension(self) -> int:
        """The dimension of the state."""
        return self.h.size

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


def stationary_cov(orders: Sequence[int], variances: Array) -> Array:
    """Return P."""
    parts = {
        1: np.ones((1, 1)),
        2: np.eye(2),
        3: np.array([[1.0, 0.0, -1.0 / 3.0], [0.0, 1.0 / 3.0, 0.0], [-1.0 / 3.0, 0.0, 1.0]]),
    }
    size, start = int(sum(orders)), 0
    P = np.zeros((size, size))
    for d, variance in zip(orders, variances, strict=True):
        P[start : start + d, start : start + d] = variance * parts[int(d)]
        start += d
    return P


def transitions_of(inputs: MarkovInputs, array: Array) -> tuple[Array, Array]:
    """Return A and the process noise of every gap; ``array`` is as of a :class:`MarkovFactor`."""
    from .state_space_kernels import transitions  # which imports Numba

    return transitions(inputs.orders, array[:-1:2].copy(), array[1::2].copy(), inputs.gaps)


def _passes(dimension: int) -> Passes:
    from .state_space_kernels import passes  # which imports Numba

    return passes(dimension)


def product_with_cov(inputs: MarkovInputs, array: Array, A: Array, x: Array) -> Array:
    """Return K x with its own noise, of each row of x where there are several.

    By the entries hᵀAᵢ … Aⱼ₊₁P h of K on both sides of its diagonal, without a factor.
    """
    P, kernels = stationary_cov(inputs.orders.tolist(), array[:-1:2]), _passes(inputs.dimension)
    gain = np.tile(P @ inputs.h, (inputs.size, 1))
    rows = np.atleast_2d(x).reshape(-1, inputs.size)
    lower = np.array(inputs.ordered(rows), dtype=float, order="C")
    # Each product adds x itself.
    total, upper = (array[:-1:2].sum() + array[-1] - 2.0) * lower, lower.copy()
    given = A, inputs.step, inputs.h, gain, np.ones(inputs.size)
    kernels.forward(*given, lower, True)
    kernels.backward(*given, upper, True)
    total += lower
    total += upper
    return inputs.back(total).reshape(x.shape)


class MarkovFactor:
    """L and s of K + (own + extra) I, for variances and rates as of a ``"markov"`` block.

    ``array``, (2 C + 1,), has the variance and rate of each process, then the noise variance of
    every value, own. ``extra``, (n,), are further noise variances; where negative, s has as many
    negative entries if there is a Gaussian with the precision K⁻¹ + 1/extra. ``known`` are the
    :func:`.transitions` of these processes and gaps. ``pivots`` and ``prior`` are s, and s without
    ``extra``, in the order of inputs; ``error`` is the estimated rounding error of log|K + D|.

    Raises NotPositiveDefiniteError, with ``name``, if a number is not finite, or a pivot has the
    wrong sign.
    """

    def __init__(
        self,
        inputs: MarkovInputs,
        array: Array,
        extra: Array | None = None,
        name: str = "a covariance",
        known: tuple[Array, Array] | None = None,
    ) -> None:
        self.inputs, own = inputs, float(array[-1])
        valid = np.isfinite(array).all() and (array >= 0.0).all()
        self.extra = np.zeros(inputs.size) if extra is None else inputs.ordered(extra)
        negative = np.count_nonzero(self.extra < 0.0)
        if valid:
            self._A, Q = transitions_of(inputs, array) if known is None else known
            P = stationary_cov(inputs.orders.tolist(), array[:-1:2])
            self.pivots, self.prior = np.empty((2, inputs.size))
            self._gain = np.empty((inputs.size, inputs.dimension))
            self._kernels.filter(
                self._A, Q, P, inputs.step, inputs.h, own, self.extra, self.pivots, self.prior,
                self._gain,
            )  # fmt: skip
            valid = np.isfinite(self.pivots).all() and self.pivots.all()
        if not valid or np.count_nonzero(self.pivots < 0.0) != negative:
            raise NotPositiveDefiniteError(
                f"{name} has no Cholesky factor: expected finite variances and rates, and inputs "
                "that are not closer than the noise resolves"
            )
        # Where noise dominates, rounding of it has no influence on 1 + K/D.
        scale = float(array[:-1:2].sum()) + own
        self.error = _UNITS * EPS * float(np.sum(scale / (np.abs(self.pivots) + scale * EPS)))

    @property
    def _kernels(self) -> Passes:
        # Not kept, as compiled functions are not pickled.
        return _passes(self.inputs.dimension)

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
        kernel(self._A, inputs.step, inputs.h, self._gain, scale, rows, is_product)
        return inputs.back(rows).reshape(x.shape)

    def product(self, x: Array) -> Array:
        """Return L diag(√s) x, of each row of x where there are several."""
        return self._run(x, self._kernels.forward, self.roots, True)

    def transpose_product(self, x: Array) -> Array:
        """Return diag(√s) Lᵀ x."""
        return self._run(x, self._kernels.backward, self.roots, True)

    def half_solve(self, x: Array) -> Array:
        """Return diag(√s)⁻¹ L⁻¹ x."""
        return self._run(x, self._kernels.forward, self._inverse_roots, False)

    def transpose_solve(self, x: Array) -> Array:
        """Return L⁻ᵀ diag(√s)⁻¹ x."""
        return self._run(x, self._kernels.backward, self._inverse_roots, False)

    def solve(self, x: Array) -> Array:
        """Return (K + D)⁻¹ x, whatever the signs of s."""
        rows, inputs = self._rows(x), self.inputs
        given = self._A, inputs.step, inputs.h, self._gain
        self._kernels.forward(*given, 1.0 / self.pivots, rows, False)
        self._kernels.backward(*given, np.ones(inputs.size), rows, False)
        return inputs.back(rows).reshape(x.shape)

    def var(self) -> Array:
        """Return the variances of f, with its own noise, given f + N(0, extra)."""
        found = np.empty(self.inputs.size)
        self._kernels.variances(
            self._A, self.inputs.step, self.inputs.h, self._gain, self.pivots, self.prior,
            self.extra, found,
        )  # fmt: skip
        return self.inputs.back(found)
