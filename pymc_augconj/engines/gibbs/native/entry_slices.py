"""Slices of all entries of a vector at once, given the latents."""

from __future__ import annotations

import math

import numpy as np

from pymc_augconj.engines.gibbs.entry_slice import entry_slices
from pymc_augconj.python_mode.tape_kernel import run_tape
from pymc_augconj.typing import Array, Index, Mask

from . import held
from .compilation import inner, inner_with_arrays
from .entries import Entries
from .problem import Problem
from .work import COUNT, FAILED, Work


@inner
def _evaluate(given: tuple[Problem, Entries, Work, Array, int], x: Array, value: Array) -> None:
    """Write the log density of every entry of a vector, −∞ where it is no number.

    FAILED is written if one is not finite at first, or if the model's density is zero for a reason
    that no entry has; then all are ∞, so that slices end.
    """
    p, e, w, v, number = given
    r, first, file = w.registers, e.begin[number], e.densities.file
    for i in range(x.size):
        r[e.of_theta[first + i]] = x[i]
    run_tape(p.density, r)
    for i in range(x.size):
        value[i] = r[e.log_prior[first + i]]
    by = e.by_latent[number]
    for k in range(by.size):
        if by[k] >= 0:
            s = r[p.std[k]]
            value[by[k]] -= math.log(s) + 0.5 * (w.s[k] * v[k] / s) ** 2
    held.read_part(e.densities, r, file, held.OF_PARAMETERS)
    held.predict(e.predicted, w, e.coefs, v.reshape(1, v.size), e.eta)
    held.run_densities(e.densities, file, e.eta[0])
    by, tables = e.by_row[number], e.densities.tables
    for i in range(tables.shape[0]):
        begin, at = tables[i, 0], tables[i, 9]
        for k in range(begin, tables[i, 1]):
            if by[k] >= 0:
                value[by[k]] += file[at + k - begin]
    fails, is_first = not math.isfinite(r[p.log_prior]), w.found[COUNT] == 0.0
    for i in range(x.size):
        if not value[i] > -math.inf:
            value[i], fails = -math.inf, False
    for i in range(x.size):
        fails |= is_first and not math.isfinite(value[i])
    w.found[COUNT] += 1.0
    w.found[FAILED] = max(w.found[FAILED], 1.0 * fails)
    for i in range(x.size if w.found[FAILED] > 0.0 else 0):
        value[i] = math.inf


@inner_with_arrays
def _where(condition: Mask, x: Array, y: Array) -> Array:
    # NumPy's broadcasts: compiling it takes a third of the update's time.
    chosen = np.empty(x.size)
    for i in range(x.size):
        chosen[i] = x[i] if condition[i] else y[i]
    return chosen


_update = inner_with_arrays(entry_slices(_evaluate, _where))


@inner_with_arrays
def update_entries(
    rng: np.random.Generator, p: Problem, e: Entries, w: Work, v: Array, widths: Array,
    n_tunes: Index, tune: bool,
) -> int:  # fmt: skip
    """Update all vectors given the latents u; return the evaluations, −1 where one has no value.

    The whitened latents ``v`` and their predictors follow.
    """
    r, count = w.registers, 0
    w.found[FAILED] = 0.0
    for number in range(n_tunes.size):
        own, n = slice(e.begin[number], e.begin[number + 1]), n_tunes[number]
        w.found[COUNT] = 0.0
        _, found = _update((p, e, w, v, number), rng, r[e.of_theta[own]], widths[own])
        if tune:
            for i in range(found.size):
                at = e.begin[number] + i
                widths[at] = (n * widths[at] + found[i]) / (n + 1)
            n_tunes[number] += 1
        count += int(w.found[COUNT])
    for i in range(v.size):
        if r[p.std[i]] != w.s[i]:
            v[i] *= w.s[i] / r[p.std[i]]
            w.s[i] = r[p.std[i]]
    held.read_part(p.held, r, w.file, held.OF_PARAMETERS)
    is_finite = held.predict(p.design, w, w.coefs, v.reshape(1, v.size), w.eta)
    return count if is_finite and not w.found[FAILED] > 0.0 else -1
