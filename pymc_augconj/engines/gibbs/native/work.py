"""Arrays that the native loop overwrites."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pymc_augconj.typing import Array

from .problem import N_CONSTANTS, Problem

#: The first row of a record that has parabolas of the mean in θ.
OF_CURVES = 6

#: As numbers of NumPy: a function is compiled once more for every literal that it is called with.
NO, YES = np.array([False, True])

#: Entries of Work.found: the log density and its terms. BASE is what does not depend on the factor,
#: START log r where a move along a level begins. COUNT and FAILED are of :mod:`.slices`.
VALUE, EVIDENCE, FIT, REST, BASE, START, COUNT, FAILED = range(8)


class Work(NamedTuple):
    """Arrays that are overwritten.

    An evaluation overwrites registers, sums, and the factor of M with L⁻¹ S g; a draw of ω the
    coefficients ``value`` of the sums; a draw of the latents the predictors of rows without an
    exact site. ``record`` is that of :class:`.Held`, ``omega`` is ω, then λ of held sites and
    what couples their predictors, then h of all but that; ``lam`` and ``h`` are views of those of
    held sites. ``file`` has the registers of
    their log densities, and ``nu`` and ``ratios`` the vectors ν_k and r(f(θ, ν_k)) of
    :mod:`..tilted`. ``v`` are the latents given which θ is updated, ``scratch`` four vectors of
    the size of θ, and ``coefs`` and ``u`` the entries of the design and the latents that predictors
    are made of. ``level`` are the latents where a move along a level begins, and its direction;
    ``kept`` is ω meanwhile. ``terms`` are log densities of components. ``row`` are the values of
    all blocks; ``moved`` are s and these, moved by it along a ridge. ``root`` is L and G L.
    """

    eta: Array
    record: Array
    omega: Array
    lam: Array
    h: Array
    value: Array
    registers: Array
    file: Array
    sums: Array
    s: Array
    half: Array
    values: Array
    border: Array
    corner: Array
    v: Array
    scratch: Array
    nu: Array
    ratios: Array
    found: Array
    coefs: Array
    u: Array
    level: Array
    kept: Array
    terms: Array
    row: Array
    moved: Array
    root: Array


def make_work(problem: Problem) -> Work:
    """Return new arrays."""
    size, n = problem.std.size, problem.std.size - problem.corner
    n_drawn, n_rows = problem.drawn.number.size, problem.design.offsets.size
    own = problem.theta, problem.likelihood, problem.prior_only
    first, last, count = problem.held.tables[:, [0, 1, 10]].T
    n_pairs = int(np.sum((last - first) * (count - 1) // 2))
    omega = np.zeros(2 * n_rows + n_pairs)
    n_curves = problem.theta.size if problem.moves_sites else 0
    largest = int(problem.roots.first[:, 1].max(initial=0))
    n_flat = problem.rows.size + n * problem.border + problem.corner**2
    return Work(
        np.empty((1, n_rows)),
        np.empty((OF_CURVES + 4 * n_curves, n_rows - n_drawn + n_pairs)),
        omega,
        omega[n_drawn : n_rows + n_pairs],
        omega[n_rows + n_pairs + n_drawn :],
        problem.sums.fixed.copy(),
        problem.start.copy(),
        problem.held.file.copy(),
        np.empty(n_flat + size + N_CONSTANTS),
        np.empty(size),
        np.empty(size),
        np.empty(problem.rows.size),
        np.empty((n, problem.border)),
        np.empty((problem.corner, problem.corner)),
        np.empty(size),
        np.empty((4, max(*(x.size for x in own), 1))),
        np.empty((1, size)),
        np.empty(1),
        np.empty(8),
        np.empty(problem.design.columns.shape),
        np.empty(size),
        np.empty((2, size)),
        np.empty(omega.size),
        np.empty(n_drawn),
        np.empty(problem.shared.size),
        np.empty(1 + problem.shared.size),
        np.empty((2, largest, largest)),
    )
