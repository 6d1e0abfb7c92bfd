"""The kernel of :mod:`.fixed`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from pymc_augconj.typing import Array

from .held import log_held, residual, slice_ellipse
from .row_tapes import RowTapes


class Given(NamedTuple):
    """Densities, held sites and the Gaussian distribution given these, constant over steps.

    Attributes
    ----------
    tapes : RowTapes
    h, lam : ndarray, shape (n,)
    mean, centre : ndarray
        m and c.
    root, of_predictors, design : ndarray
        Bᵀ and Rᵀ, a row for every z; and a row for every latent of what it adds to the predictors.
    is_normal : ndarray, shape (D,)
        Zero for flat latents, one for the others.
    base : float
        The log density less r, Σ h η − ½ λ η² and −½ |v|².
    """

    tapes: RowTapes
    h: Array
    lam: Array
    mean: Array
    centre: Array
    root: Array
    of_predictors: Array
    design: Array
    is_normal: Array
    base: float


@njit(cache=True, error_model="numpy", nogil=True)
def run_steps(
    rng: np.random.Generator,
    g: Given,
    v: Array,
    proposals: int,
    slices: int,
    outputs: Array,
    stats: Array,
) -> None:
    """Make steps, overwriting the whitened latents v.

    So many fresh vectors are ``proposals``, and span ellipses (``slices``). Written are the
    whitened latents of each step, ``outputs`` of shape (count, D); and log densities, elliptical
    slices, evaluations that these took and r, ``stats`` of shape (4, count).
    """
    size, n, count = v.size, g.centre.size, proposals + slices
    z, shares, eta = np.empty((count, size)), np.empty((1, count)), np.empty(n)
    away = np.empty((1, size))
    for step in range(outputs.shape[0]):
        for k in range(count):
            for i in range(size):
                z[k, i] = rng.standard_normal()
        there = np.dot(z, g.of_predictors)
        for i in range(size):
            away[0, i] = v[i] - g.mean[i]
        here = np.dot(away, g.design)[0]
        for i in range(n):
            eta[i] = g.centre[i] + here[i]
        value = residual(g.tapes, g.tapes.file, g.h, g.lam, eta)
        kept, trials = 1.0, 0
        for k in range(count):
            cos, sin = 1.0, 0.0
            if k < proposals:
                for i in range(n):
                    eta[i] = g.centre[i] + there[k, i]
                found = residual(g.tapes, g.tapes.file, g.h, g.lam, eta)
                # NaN and infinity are refused, as on an ellipse.
                if found < math.inf and rng.random() < math.exp(min(found - value, 0.0)):
                    cos, sin, value = 0.0, 1.0, found
            else:
                cos, sin, value, made = slice_ellipse(
                    rng, g.tapes, g.tapes.file, g.h, g.lam, g.centre, here, there[k], value
                )
                trials += made
            kept *= cos
            for j in range(k):
                shares[0, j] *= cos
            shares[0, k] = sin
            for i in range(n):
                here[i] = cos * here[i] + sin * there[k, i]
        fresh = np.dot(np.dot(shares, z), g.root)
        total = g.base
        for i in range(size):
            v[i] = g.mean[i] + kept * away[0, i] + fresh[0, i]
            outputs[step, i] = v[i]
            total -= 0.5 * g.is_normal[i] * v[i] * v[i]
        for i in range(n):
            eta[i] = g.centre[i] + here[i]
        total += log_held(g.tapes, g.h, g.lam, eta)
        stats[0, step], stats[3, step] = total + value, value
        stats[1, step], stats[2, step] = slices, trials
