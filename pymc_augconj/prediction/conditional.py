"""A Gaussian process at new inputs, given draws of its values at the old ones.

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
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from scipy.linalg.lapack import dtrtrs

from pymc_augconj.linalg.dense import TriangularFactor, cholesky_with_jitter, diagonal_view
from pymc_augconj.linalg.unlocked import cholesky_in_place
from pymc_augconj.parallel.executor import available_cores
from pymc_augconj.typing import Array, Index

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
    evaluators: Sequence[Callable[[int], Parts]],
    *,
    jitter: float,
    joint: bool,
) -> tuple[Array, Array]:
    """Return a draw of f* for every draw of f, whose kernels differ between groups.

    ``groups`` are the indices of draws that share a kernel, f is (S, n) and ``noise`` (S, P),
    standard normal. Each of ``evaluators`` has its own thread and returns the parts for the kernel
    of a draw, see :func:`draw_conditional`. The results do not depend on the number of threads.
    Also returns the means at the old inputs, (S, n).
    """
    f_new, mean_old = np.empty_like(noise), np.empty_like(f)

    def work(thread: int) -> None:
        scratch: list[Array] = []
        for members in groups[thread :: len(evaluators)]:
            parts = evaluators[thread](members[0])
            mean_old[members] = parts["mean_old"]
            f_new[members] = draw_conditional(
                f[members], noise[members], parts, jitter=jitter, joint=joint, scratch=scratch
            )

    if len(evaluators) == 1:
        work(0)
    else:
        with ThreadPoolExecutor(len(evaluators)) as pool:
            for done in [pool.submit(work, thread) for thread in range(len(evaluators))]:
                done.result()
    return f_new, mean_old


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
