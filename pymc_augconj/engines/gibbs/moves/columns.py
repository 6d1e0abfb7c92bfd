"""Scales λ of single latents: with all latents integrated out, and given the scaled latents.

Entry j multiplies the whitened latent vⱼ, that is column j of Φ. Where its square grows by the
factor 1 + δ, with q = φⱼᵀ C⁻¹ φⱼ, b = φⱼᵀ C⁻¹ Λ⁻¹h and C = ΦΦᵀ + Λ⁻¹, the log evidence grows by

    −½ log(1 + δ q) + ½ δ b² / (1 + δ q),

and C changes by one rank. Entries are drawn in turn, each from some points of its log scale, the
present one among them: these are normal about a point that is normal about the present one, so
that each of them had the same chance to be where the others come from (Tjelmeland 2004, Using all
Metropolis–Hastings proposals to estimate mean values). Some columns at a time take O(R²) each, or
O(D²) where latents are fewer than rows.
"""

from __future__ import annotations

import numpy as np

from pymc_augconj.engines.gibbs.chain import Chain
from pymc_augconj.engines.gibbs.parts import Part
from pymc_augconj.engines.gibbs.state import State
from pymc_augconj.errors import AugmentationError
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.model import ColumnScales, Hyperparameter
from pymc_augconj.plan import BY_ENTRY
from pymc_augconj.point import Point
from pymc_augconj.typing import Array, Index

# Points of each entry, and the range of their standard deviations on the unconstrained scale.
_POINTS, _SPREAD = 8, (0.5, 4.0)
# Columns at a time.
_BLOCK = 64
# A difference, in nats, between two ways of computing a change of a log evidence.
_WRONG = 1e-4


def scales_of(columns: ColumnScales, point: Point) -> Array:
    """Return the scales of the latents, whose signs cancel; NaN where a deviation is negative."""
    std, factors = columns(point)
    return np.where(std >= 0.0, std * factors, np.nan)


def update_given_coefficients(
    rng: np.random.Generator, chain: Chain, state: State, member: Hyperparameter
) -> None:
    """Update the entries of a vector, given the latents times their scales."""
    columns, point = member.columns, state.point
    assert columns is not None  # see plan
    prior = chain.priors.at(point)
    innovations = chain.innovations(point, prior)
    _, factors = columns(point)
    coefficients = factors * innovations[columns.block][columns.latents]
    # A scale of zero, or one that is not known, cannot be divided by.
    if not (np.abs(scales_of(columns, point)) > 0.0).all():
        return

    def densities(candidate: Point) -> Array:
        scale = np.abs(scales_of(columns, candidate))
        standardised = coefficients / scale
        return columns.densities(candidate) - np.log(scale) - 0.5 * standardised**2

    state.update_entries(rng, f"{BY_ENTRY}{member.name}", member, densities)
    _, moved = columns(state.point)
    innovations[columns.block] = innovations[columns.block].copy()
    innovations[columns.block][columns.latents] = coefficients / moved
    new = chain.priors.at(state.point).blocks
    whitened = [b.unscale(u) for b, u in zip(new, innovations, strict=True)]
    state.point = chain.point_of(state.point, innovations, whitened)


def update_columns(
    rng: np.random.Generator, chain: Chain, state: State, part: Part, member: Hyperparameter
) -> None:
    """Update the entries of a vector in turn, given ω, the part's latents integrated out."""
    columns, point = member.columns, state.point
    name, size = member.value_name, member.size
    assert columns is not None  # see plan
    spread = np.exp(rng.uniform(*np.log(_SPREAD), size=size))
    start = np.ravel(point[name])
    centre = start + spread * rng.standard_normal(size)
    others = centre + spread * rng.standard_normal((_POINTS - 1, size))
    points = np.vstack([start, others])
    log_prior, growth = np.empty_like(points), np.empty_like(points)
    scale = scales_of(columns, point)
    with np.errstate(all="ignore"):
        for k, x in enumerate(points):
            candidate = {**point, name: x.reshape(member.shape)}
            log_prior[k] = columns.densities(candidate)
            growth[k] = (scales_of(columns, candidate) / scale) ** 2 - 1.0
        # Rounding would move the present point.
        growth[0] = 0.0
    state.info.evaluations += _POINTS
    noise: Array = np.asarray(rng.gumbel(size=points.shape))
    prior = part.priors.at(point).factorized()
    sites = part.sites.at(prior.offset)
    before = sum(b.block.total_size for b in prior.blocks[: part.blocks.index(columns.block)])
    chosen, change = choose(
        prior, sites.h, sites.lam, before + columns.latents, log_prior, growth, noise
    )
    state.point = {**point, name: points[chosen, np.arange(size)].reshape(member.shape)}
    if chain.verifies:
        _check(chain, part, member, point, state.point, change)


def choose(
    prior: LatentPrior, h: Array, lam: Array, own: Index, log_prior: Array, growth: Array,
    noise: Array,
) -> tuple[Index, float]:  # fmt: skip
    """Return the point of every entry, and the change of log prior and log evidence.

    ``own`` are the columns of Φ, ``growth`` δ at every point, shape (points, entries), and
    ``noise`` standard Gumbel numbers.
    """
    # Imported here, as only such models need Numba.
    from .column_kernel import choose_in_turn

    pairs = list(zip(prior.blocks, prior.maps, strict=True))
    # A flat latent has the precision zero.
    Phi = np.hstack([A.dense() if b.block.is_flat else b.whitened_design(A) for b, A in pairs])
    is_flat = np.repeat([b.block.is_flat for b, _ in pairs], [A.size for _, A in pairs])
    chosen, total = np.zeros(own.size, dtype=np.intp), 0.0
    if Phi.shape[1] <= Phi.shape[0]:
        precision = (Phi.T * lam) @ Phi + np.diag(np.where(is_flat, 0.0, 1.0))
        inverse = np.linalg.inv(precision)
        Q = np.eye(own.size) - inverse[np.ix_(own, own)]
        b = (inverse @ (Phi.T @ h))[own]
        return chosen, float(choose_in_turn(Q, b, log_prior, growth, noise, chosen))
    S, m = _response(Phi[:, ~is_flat], Phi[:, is_flat], h, lam)
    for first in range(0, own.size, _BLOCK):
        which = slice(first, min(first + _BLOCK, own.size))
        phi = Phi[:, own[which]]
        W = S @ phi
        Q, b = phi.T @ W, phi.T @ m
        at = np.ascontiguousarray([log_prior[:, which], growth[:, which], noise[:, which]])
        total += float(choose_in_turn(Q.copy(), b.copy(), at[0], at[1], at[2], chosen[which]))
        delta = growth[chosen[which], np.arange(which.start, which.stop)]
        # (C + φ δ φᵀ)⁻¹ of all columns that moved.
        middle = np.linalg.solve(np.eye(delta.size) + delta[:, None] * Q, np.diag(delta))
        S -= W @ middle @ W.T
        m -= W @ (middle @ b)
    return chosen, total


def _response(Phi: Array, H: Array, h: Array, lam: Array) -> tuple[Array, Array]:
    """Return C⁻¹ and C⁻¹Λ⁻¹h, with flat coefficients of H integrated out."""
    root = np.sqrt(lam)
    K = Phi @ Phi.T
    B = root[:, None] * K * root
    B[np.diag_indices_from(B)] += 1.0
    S = root[:, None] * np.linalg.inv(B) * root
    if not H.shape[1]:
        return S, h - S @ (K @ h)
    SH = S @ H
    gain = np.linalg.solve(H.T @ SH, SH.T)
    S = S - SH @ gain
    return S, h - gain.T @ (H.T @ h) - S @ (K @ h)


def _check(
    chain: Chain, part: Part, member: Hyperparameter, old: Point, new: Point, change: float
) -> None:
    """Compare the change of a log evidence with that of the solver, where this has digits."""
    expected = error = 0.0
    for sign, point in ((-1.0, old), (1.0, new)):
        posterior = part.given_sites(point).posterior
        expected += sign * (float(chain.model.log_prior(point)) + posterior.log_normalizer)
        error += posterior.error
    if np.isfinite(expected) and not abs(change - expected) <= _WRONG + error:
        raise AugmentationError(
            f"variable {member.name!r}: expected a change of the log evidence of {expected:.8g}, "
            f"as another factorisation gives it, found {change:.8g}; no draw of this chain can be "
            "trusted; sample this model with pm.sample's NUTS, and please report it"
        )
