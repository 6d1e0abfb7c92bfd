"""Mean and variance of y given η without formulas, and draws of processes at new inputs.

For counts the moments are sums over y = 0, 1, 2, …. For real y they are integrals over t, with y =
sinh t, eᵗ or σ(t) for y on the line, above zero or between zero and one, under the density p(y |
η)(1 + y²) up to a constant, which has the tails of the second moment: with w its normaliser,

    E[g(y)] = w E_w[g(y)/(1 + y²)].

If y is censored, the bounds have positive probability, and the integrals are over the interval
between them. The quadrature is the one of the tilted moments, with a wide cavity that is divided
out. The identity E[1] = 1 checks the result.

Draws of a process at new inputs are from

    f* | f ~ N( m* + K*ₓ K⁻¹ (f − m),  K** − K*ₓ K⁻¹ Kₓ* ),

as in ``gp.conditional``. One factorisation suffices, of the joint covariance of old and new inputs
with the deviations f − m as further rows,

    ⎡ K    ·    · ⎤        ⎡ L          ·   · ⎤
    ⎢ K*ₓ  K**  · ⎥   ⟶   ⎢ K*ₓ L⁻ᵀ    L*  · ⎥
    ⎣ fᵀ   0    ∞ ⎦        ⎣ (L⁻¹ f)ᵀ   ·   · ⎦

so that the mean is m* + (K*ₓ L⁻ᵀ) L⁻¹ (f − m), and the covariance is L* L*ᵀ.

All draws share a fixed kernel. A learned kernel takes a factorisation for each draw. Threads divide
the draws, as factorisations and NumPy's operations release the interpreter's lock.

References
----------
Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, section 2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg.lapack import dtrtrs
from scipy.special import expit, logit

from pymc_augconj.likelihoods.base import Params
from pymc_augconj.likelihoods.contract import MultiDensity
from pymc_augconj.linalg.dense import (
    TriangularFactor,
    cholesky_in_place,
    cholesky_with_jitter,
    diagonal_view,
)
from pymc_augconj.parallel.executor import Executor, Threads, available_cores
from pymc_augconj.quadrature.tilted import tilted_moments
from pymc_augconj.typing import Array, Index

_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)
# Tolerance on the probability of all y, and on a second moment at the largest count.
_TOLERANCE = 1e-7
_FIRST_COUNTS, _LARGEST_COUNT = 64, 2**17
# Points at which the support of a density is examined.
_BELOW, _ABOVE = np.array([-1e3, -1.0, -1e-3]), np.array([1.001, 2.0, 1e3])
# Largest number of values whose density is evaluated at once.
_LARGEST_BLOCK = 20_000_000

# Largest number of densities that are given up together if one of them cannot be integrated.
_SMALLEST_PART = 4
# Density of t at the end of its range, above which the range is too short.
_OUT_OF_RANGE = 1e-12

#: ``(y, which)``: log p of the chosen densities, y of shape (…, M), which of shape (M,).
LogDensity = Callable[[Array, Index], Array]


def response_moments(likelihood: MultiDensity, eta: Array, params: Params) -> tuple[Array, Array]:
    """Return E[y | η] and Var[y | η] for η of shape (P, …), by formulas or by integration.

    NaN where they do not exist or cannot be integrated: an infinite variance, a density that does
    not integrate to one, counts below zero or above 131 072. Parameters broadcast against a
    predictor.
    """
    closed = likelihood.moments(eta, params)
    if closed is not None:
        return closed
    order, shape = np.argsort(eta[0], axis=None), eta.shape[1:]
    flat = eta.reshape(len(eta), -1)[:, order]
    vectors = {
        name: np.reshape(v, ()) if np.size(v) == 1 else np.broadcast_to(v, shape).ravel()[order]
        for name, v in params.items()
    }

    def log_density(y: Array, which: Index) -> Array:
        chosen = {name: v if v.ndim == 0 else v[which] for name, v in vectors.items()}
        wide = [np.broadcast_to(predictor[which], y.shape) for predictor in flat]
        return likelihood.log_density(y, np.stack(wide), chosen)

    marks = flat[0] if likelihood.link == "identity" else None
    rank = np.argsort(order)
    bounds = likelihood.bounds(vectors)
    if bounds is None or likelihood.discrete:
        mean, var = (
            _by_sums(log_density, order.size)
            if likelihood.discrete
            else _by_integrals(log_density, order.size, marks)
        )
    else:
        lower, upper = (np.broadcast_to(bound, order.shape) for bound in bounds)
        mean, var = _censored_moments(log_density, lower, upper, marks)
    return mean[rank].reshape(shape), var[rank].reshape(shape)


def _censored_moments(
    log_density: LogDensity, lower: Array, upper: Array, marks: Array | None
) -> tuple[Array, Array]:
    """Return means and variances of a censored y, whose bounds have positive probability."""
    mean, var = np.empty(lower.size), np.empty(lower.size)
    pairs, which = np.unique(np.stack([lower, upper]), axis=1, return_inverse=True)
    for k, (lo, hi) in enumerate(pairs.T):
        part = np.flatnonzero(which.ravel() == k)
        first, last = _support(log_density, part, lo, hi)
        origin, step = (first, last - first) if np.isfinite(last - first) else (first, 1.0)
        if np.isinf(first):
            origin, step = (last, -1.0) if np.isfinite(last) else (0.0, 1.0)

        def between(
            z: Array,
            sites: Index,
            part: Index = part,
            lo: float = lo,
            hi: float = hi,
            origin: float = origin,
            step: float = step,
        ) -> Array:
            y = origin + step * z
            values = log_density(y, part[sites]) + np.log(abs(step))
            return np.where((y > lo) & (y < hi), values, -np.inf)

        ends = [end for end in (first, last) if np.isfinite(end)]
        at = np.array(ends)[:, None] + np.zeros(part.size)
        masses = np.where(np.isin(at, (lo, hi)), np.exp(log_density(at, part)), 0.0)
        here = None if marks is None else (marks[part] - origin) / step
        scale = (_LINE, _POSITIVE, _UNIT)[len(ends)]
        found = _by_integrals(between, part.size, here, scale, masses)
        mean[part], var[part] = origin + step * found[0], step**2 * found[1]
    return mean, var


def _support(
    log_density: LogDensity, part: Index, lower: float, upper: float
) -> tuple[float, float]:
    """Return the bounds, and for a bound that is infinite the end of the support."""

    def some(y: Array, which: Index) -> Array:
        return log_density(y, part[which])

    first, last = _scale_of(some, part.size).ends
    first = first if np.isinf(lower) and first < upper else lower
    last = last if np.isinf(upper) and last > lower else upper
    return first, last


def _by_sums(log_density: LogDensity, size: int) -> tuple[Array, Array]:
    sums, which = np.zeros((3, size)), np.arange(size)
    start, count = 0, _FIRST_COUNTS
    while start < _LARGEST_COUNT and size * count < _LARGEST_BLOCK:
        y = np.arange(start, start + count, dtype=float)[:, None] + np.zeros(size)
        mass = np.exp(log_density(y, which))
        added = np.stack([mass.sum(axis=0), (y * mass).sum(axis=0), (y**2 * mass).sum(axis=0)])
        sums += added
        missing = np.abs(1.0 - sums[0]) > _TOLERANCE
        if start > 0 and not (missing | (added[2] > _TOLERANCE * sums[2])).any():
            break
        start, count = start + count, 2 * count
    total, first, second = sums
    found = np.abs(1.0 - total) <= _TOLERANCE
    return np.where(found, first, np.nan), np.where(found, second - first**2, np.nan)


@dataclass(frozen=True)
class _Scale:
    """y as a function of t on the whole line, with log dy/dt, and t of y.

    Where t leaves its range, y is an end of the support to the last digit: NaN if there is none.
    """

    y: Callable[[Array], Array]
    log_slope: Callable[[Array], Array]
    t: Callable[[Array], Array]
    range: tuple[float, float] = (-700.0, 700.0)
    ends: tuple[float, float] = (np.nan, np.nan)


_LINE = _Scale(np.sinh, lambda t: np.logaddexp(t, -t) - np.log(2.0), np.arcsinh)
_POSITIVE = _Scale(np.exp, lambda t: t, lambda y: np.log(np.maximum(y, 1e-300)), ends=(0.0, np.nan))
_UNIT = _Scale(
    expit,
    lambda t: -np.logaddexp(0.0, t) - np.logaddexp(0.0, -t),
    lambda y: logit(np.clip(y, 1e-12, 1.0 - 1e-12)),
    range=(-700.0, 36.0),
    ends=(0.0, 1.0),
)


@dataclass(frozen=True)
class _Weighted:
    """log p(y(t)) (1 + y²) dy/dt over a standard normal, as a SiteDensity of t."""

    log_density: LogDensity
    size: int
    marks: Array | None
    scale: _Scale

    @property
    def landmarks(self) -> Array:
        centre = np.zeros((1, self.size))
        if self.marks is None:
            return centre
        return np.concatenate([centre, self.scale.t(self.marks)[None]])

    def __call__(self, t: Array, sites: Index) -> Array:
        y = self.scale.y(t)
        weighted = self.log_density(y, sites) + np.log1p(y * y) + self.scale.log_slope(t)
        first, last = self.scale.range
        weighted = np.where((t >= first) & (t <= last), weighted, -np.inf)
        return weighted + 0.5 * t**2 + _HALF_LOG_2PI

    def end(self) -> Array:
        """Return the end of the support at which some of the probability is out of range."""
        found = np.full(self.size, np.nan)
        several = np.zeros(self.size)
        for t, y in zip(self.scale.range, self.scale.ends, strict=True):
            at = np.full((1, self.size), t)
            log_mass = self.log_density(self.scale.y(at), np.arange(self.size))
            out = (log_mass + self.scale.log_slope(at))[0] > np.log(_OUT_OF_RANGE)
            found, several = np.where(out, y, found), several + out
        return np.where(several == 1, found, np.nan)


def _by_integrals(
    log_density: LogDensity,
    size: int,
    marks: Array | None,
    scale: _Scale | None = None,
    masses: Array | None = None,
) -> tuple[Array, Array]:
    """Return means and variances; ``masses`` are the probabilities of the ends of the scale."""
    scale = _scale_of(log_density, size) if scale is None else scale
    masses = np.zeros((0, size)) if masses is None else masses
    try:
        return _integrate(_Weighted(log_density, size, marks, scale), masses)
    except FloatingPointError:
        if size <= _SMALLEST_PART:
            return np.full(size, np.nan), np.full(size, np.nan)
    # Split, so that a density without an integral does not affect the others: η is sorted, and such
    # densities are at its extremes.
    halves = []
    for part in np.array_split(np.arange(size), 2):

        def some(y: Array, which: Index, part: Index = part) -> Array:
            return log_density(y, part[which])

        here = None if marks is None else marks[part]
        halves.append(_by_integrals(some, part.size, here, scale, masses[:, part]))
    return np.concatenate([h[0] for h in halves]), np.concatenate([h[1] for h in halves])


def _integrate(weighted: _Weighted, masses: Array) -> tuple[Array, Array]:
    tilted = tilted_moments(weighted, np.zeros(weighted.size), np.ones(weighted.size))
    normaliser, panels = np.exp(tilted.log_Z), tilted.panels
    assert panels is not None  # only a closed form has none

    def expect(func: Callable[[Array, Index], Array]) -> Array:
        def relative(t: Array, sites: Index) -> Array:
            y = weighted.scale.y(t)
            return func(y, sites) / (1.0 + y * y)

        with np.errstate(all="ignore"):
            return normaliser * panels.expect(relative)

    missing = 1.0 - masses.sum(axis=0) - expect(lambda y, sites: np.ones_like(y))
    ends = np.array(weighted.scale.ends)[: len(masses), None]
    end = weighted.end()
    found = (np.abs(missing) <= _TOLERANCE) | ((missing > 0.0) & np.isfinite(end))
    missing, end = np.where(np.isfinite(end), missing, 0.0), np.where(np.isfinite(end), end, 0.0)
    mean = expect(lambda y, sites: y) + missing * end + (masses * ends).sum(axis=0)
    var = expect(lambda y, sites: (y - mean[sites]) ** 2) + missing * (end - mean) ** 2
    var += (masses * (ends - mean) ** 2).sum(axis=0)
    return np.where(found, mean, np.nan), np.where(found, var, np.nan)


def _scale_of(log_density: LogDensity, size: int) -> _Scale:
    which = np.arange(size)

    def somewhere(values: Array) -> bool:
        return bool((log_density(values[:, None] + np.zeros(size), which) > -np.inf).any())

    if somewhere(_BELOW):
        return _LINE
    return _POSITIVE if somewhere(_ABOVE) else _UNIT


Parts = Mapping[str, Array]

# Rounding, relative to the variance at the new inputs.
_ROUNDING = 1e-10
# A diagonal entry with a finite root from which any subtraction is lost in rounding.
_INFINITE = 1e200
# Draws per kernel, relative to the inputs, above which solving is faster than more rows.
_FEW = 0.2
# Bytes for all threads, matrices per thread, and number of kernels that justify a thread.
_THREAD_MEMORY, _MATRICES_OF_A_THREAD, _KERNELS_OF_A_THREAD = 2**30, 6, 32


def count_threads(kernels: int, entries: int) -> int:
    """Return the number of threads for ``kernels`` factorisations, given their entries."""
    affordable = _THREAD_MEMORY // (_MATRICES_OF_A_THREAD * 8 * entries)
    return max(1, min(available_cores(), affordable, kernels // _KERNELS_OF_A_THREAD))


def draw_groups(
    groups: Sequence[Index],
    f: Array,
    noise: Array,
    evaluate: Callable[[int], Parts],
    *,
    threads: int,
    jitter: float,
    joint: bool,
) -> Array:
    """Return a draw of f* for every draw of f, whose kernels differ between groups.

    ``groups`` are the indices of draws that share a kernel, f is (S, n) and ``noise`` (S, P),
    standard normal. ``evaluate`` returns the parts for the kernel of a draw, see
    :func:`draw_conditional`. The results do not depend on the number of ``threads``.
    """
    f_new = np.empty_like(noise)

    def work(thread: int) -> None:
        scratch: list[Array] = []
        for members in groups[thread::threads]:
            parts = evaluate(members[0])
            f_new[members] = draw_conditional(
                f[members], noise[members], parts, jitter=jitter, joint=joint, scratch=scratch
            )

    with Threads(threads) if threads > 1 else Executor() as run:
        run.gather(run.map(work, range(threads)))
    return f_new


def draw_conditional(
    f: Array,
    noise: Array,
    parts: Parts,
    *,
    jitter: float,
    joint: bool,
    scratch: list[Array] | None = None,
) -> Array:
    """Return a draw of f*, (S, P), for every draw of f, (S, n), all of one kernel.

    ``noise`` is standard normal, (S, P). ``parts`` has ``"mean_old"`` (n,), ``"mean_new"`` (P,),
    ``"old"`` (n, n), ``"cross"`` (P, n), and ``"new"`` (P, P) if ``joint``, else ``"new_diagonal"``
    (P,), where each entry is drawn from its marginal. ``jitter`` is added to the diagonal of the
    old inputs' covariance, as ``gp.prior`` does. ``scratch`` keeps the work array for the next
    call.
    """
    n = f.shape[1]
    deviation = f - parts["mean_old"]
    if not joint:
        return _draw_marginals(deviation, noise, parts, jitter)
    few = len(f) <= _FEW * n
    chol = _factorize(parts, deviation if few else deviation[:0], jitter, scratch)
    stop = n + len(parts["mean_new"])
    half = chol[n:stop, :n]
    if few:
        mean = parts["mean_new"] + chol[stop:, :n] @ half.T
    else:
        # C-ordered rows are Fortran-ordered columns: the transpose of L, and of K*ₓ L⁻ᵀ.
        weights, _ = dtrtrs(np.asfortranarray(chol[:n, :n].T), half.T, lower=0)
        mean = parts["mean_new"] + deviation @ weights
    return mean + noise @ np.tril(chol[n:stop, n:stop]).T


def _draw_marginals(deviation: Array, noise: Array, parts: Parts, jitter: float) -> Array:
    """Return a draw of every entry of f* from its marginal, without a P × P matrix."""
    old = np.array(parts["old"], order="F")
    diagonal_view(old)[...] += jitter
    chol, _ = cholesky_with_jitter(old, name="the covariance at the old inputs")
    factor = TriangularFactor(chol)
    half, weights = factor.solve(parts["cross"].T), factor.solve(deviation.T)
    mean = parts["mean_new"] + weights.T @ half
    var = parts["new_diagonal"] - np.einsum("ij,ij->j", half, half)
    return mean + np.sqrt(np.maximum(var, 0.0)) * noise


def _factorize(parts: Parts, rows: Array, jitter: float, scratch: list[Array] | None) -> Array:
    """Return the factor of the matrix above; its upper triangle is arbitrary."""
    n_old, n_new = len(parts["mean_old"]), len(parts["mean_new"])
    stop, size = n_old + n_new, n_old + n_new + len(rows)
    K = scratch[0] if scratch else np.empty((0, 0))
    if len(K) != size:
        K = np.empty((size, size))
        if scratch is not None:
            scratch[:] = [K]
    _fill(K, parts, rows, jitter)
    if cholesky_in_place(K.T, upper=True) == 0 and np.isfinite(np.einsum("ii->i", K)).all():
        return K
    # Singular to working precision, or not finite: more jitter, or an error, which compares both
    # triangles.
    _fill(K, parts, rows, jitter)
    K[:n_old, n_old:stop] = parts["cross"].T
    both = K[:stop, :stop]
    _, more = cholesky_with_jitter(both, name="the covariance at the old and new inputs")
    np.einsum("ii->i", K)[:stop] += more
    cholesky_in_place(K.T, upper=True)
    return K


def _fill(K: Array, parts: Parts, rows: Array, jitter: float) -> None:
    n_old, n_new = len(parts["mean_old"]), len(parts["mean_new"])
    stop = n_old + n_new
    diagonal = np.einsum("ii->i", K)
    K[:n_old, :n_old] = parts["old"]
    K[n_old:stop, :n_old] = parts["cross"]
    K[n_old:, n_old:] = 0.0
    K[n_old:stop, n_old:stop] = parts["new"]
    # New inputs that repeat old ones have zero variance up to rounding.
    diagonal[n_old:stop] += _ROUNDING * np.mean(np.diagonal(parts["new"]))
    diagonal[:n_old] += jitter
    K[stop:, :n_old] = rows
    diagonal[stop:] = _INFINITE
