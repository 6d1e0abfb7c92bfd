"""Whether flat coefficients have a proper posterior.

Flat coefficients b enter the predictors by a design X, η = Xb plus terms with a proper prior. Their
posterior is improper if every observation's likelihood stays away from zero along some b ≠ 0. If
p(yᵢ | η) vanishes for η → ±∞ this requires xᵢᵀb = 0; if it vanishes only for η → −∞ (a Bernoulli
variable that is one) it requires xᵢᵀb ≥ 0. Such a b exists if columns of X are linearly dependent,
or if the observations are separated (Albert & Anderson 1984, Biometrika 71), which a linear program
detects. For observations of several predictors the check is only for linearly dependent columns, of
the derivatives of log densities by b (Speckman, Lee & Sun 2009, Statistica Sinica 19).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linprog

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import RecognitionError
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.point import Point
from pymc_augconj.typing import Array, Mask

# Predictors at which a density that does not vanish has its limit, and beyond all scales of data;
# a power of the predictor falls by more than this logarithm between the two.
_FAR, _FARTHEST, _FALL = 1e10, 1e150, 1.0
# Largest design that is looked at, and the number of rows of the first linear program.
_LARGEST_DESIGN, _FIRST_ROWS = 50_000_000, 500
# Singular values of a design of unit columns that are zero: rounding, and that of differences of
# this step.
_ROUNDING, _OF_DIFFERENCES, _STEP = 1e-13, 1e-8, 1e-5
# Components of a direction that count.
_PART = 1e-6


def check_proper(model: LatentGaussianModel, points: Sequence[Point]) -> None:
    """Raise a RecognitionError if flat coefficients are improper at all ``points``."""
    flat = [i for i, block in enumerate(model.blocks) if block.is_flat]
    if not flat or model.n_rows * sum(model.blocks[i].size for i in flat) > _LARGEST_DESIGN:
        return
    # The factor of a coefficient may be zero at one of the points.
    for point in points:
        found = _improper(model, flat, point)
        if found is None:
            return
        direction, why = found
    names = _names([model.blocks[i] for i in flat], direction)
    several = len(names) > 1
    raise RecognitionError(
        f"{'variables' if several else 'variable'} {' and '.join(names)} (Flat): expected data "
        f"that make {'their' if several else 'its'} posterior proper, found {why}; give "
        f"{'one of them' if several else 'it'} a prior, pm.Normal of a sigma far above what you "
        "expect, or leave it out"
    )


def _improper(
    model: LatentGaussianModel, flat: Sequence[int], point: Point
) -> tuple[Array, str] | None:
    """Return a direction without a proper posterior, and the reason; None if there is none."""
    X = np.hstack([model.maps[i](point).dense() for i in flat])
    rows, up, down, tolerance = [], [], [], _ROUNDING
    for site in model.sites:
        own = X[site.rows]
        if site.shape[0] > 1:
            with np.errstate(all="ignore"):
                own, tolerance = _informative(site, own, point), _OF_DIFFERENCES
            vanishes = np.ones((2, len(own)), dtype=bool)
        else:
            vanishes = _vanishes(site, point)
            own, vanishes = own[vanishes.any(axis=0)], vanishes[:, vanishes.any(axis=0)]
        rows.append(own)
        down.append(vanishes[0])
        up.append(vanishes[1])
    X = np.vstack(rows)
    length = np.sqrt(np.einsum("ij,ij->j", X, X))
    if not length.all():
        return (length == 0.0).astype(float), "no observation that depends on it"
    X = X / length
    _, values, directions = np.linalg.svd(np.linalg.qr(X, mode="r"))
    if len(X) < X.shape[1] or values[-1] <= tolerance * np.sqrt(len(X)) * values[0]:
        return directions[-1], "predictors that stay the same in some direction"
    direction = _separating(X, np.concatenate(down), np.concatenate(up))
    if direction is None:
        return None
    return direction, "a direction in which no observation becomes less likely (they are separated)"


def _vanishes(site: Site, point: Point) -> Mask:
    """Return whether each observation's density vanishes for η → −∞ and η → ∞, shape (2, N)."""
    y, params = site.y(point), site.params(point)
    found = []
    for sign in (-1.0, 1.0):
        with np.errstate(all="ignore"):
            near, far = (
                np.broadcast_to(
                    site.likelihood.log_density(y, np.full((1, site.size), sign * at), params),
                    y.shape,
                )
                for at in (_FAR, _FARTHEST)
            )
            found.append(~(far > near - _FALL))
    return np.array(found)


def _informative(site: Site, X: Array, point: Point) -> Array:
    """Return the derivatives of log densities by b, at random predictors, one a row."""
    P, N = site.shape
    y, params = site.y(point), site.params(point)
    rng, rows, X = np.random.default_rng(0), [], X.reshape(P, N, -1)
    # As many as a density of P predictors may have directions, and one more.
    for _ in range(P + 1):
        eta, slopes = rng.standard_normal((P, N)), np.empty((P, N))
        for p, step in enumerate(_STEP * np.eye(P)[:, :, None]):
            up, down = (site.likelihood.log_density(y, eta + s * step, params) for s in (1.0, -1.0))
            slopes[p] = (up - down) / (2.0 * _STEP)
        rows.append(np.einsum("pn,pnk->nk", slopes, X))
    found = np.vstack(rows)
    return found[np.isfinite(found).all(axis=1)]


def _separating(X: Array, down: Mask, up: Mask) -> Array | None:
    """Return b ≠ 0 with xᵢᵀb ≤ 0 where a density vanishes upwards and ≥ 0 where downwards."""
    one_sided = down != up
    if not one_sided.any():
        return None
    X = np.where(down, 1.0, -1.0)[:, None] * X
    order = np.random.default_rng(0).permutation(len(X))
    count = _FIRST_ROWS + 10 * X.shape[1]
    while True:
        # Fewer observations are separated if all are.
        own = order[:count]
        # A cone: some Xb > 0 can be as large as the bounds allow.
        upper = one_sided[own].astype(float)
        end = linprog(
            -X[own].sum(axis=0),
            A_ub=np.vstack([X[own], -X[own]]),
            b_ub=np.concatenate([upper, np.zeros(own.size)]),
            bounds=(None, None),
        )
        overlap = end.status != 0 or -end.fun < 0.5
        if own.size == len(X):
            return None if overlap else np.asarray(end.x)
        if overlap and np.linalg.matrix_rank(X[own]) == X.shape[1]:
            return None
        count *= 8


def _names(blocks: Sequence[LatentBlock], direction: Array) -> list[str]:
    """Return the blocks that a direction moves, with the entry if it is one of several."""
    names, start = [], 0
    for block in blocks:
        own = np.abs(direction[start : start + block.size]) > _PART * np.abs(direction).max()
        start += block.size
        if own.any():
            alone = own.sum() == 1 and block.size > 1
            names.append(repr(block.name) + (f" at position {own.argmax()}" if alone else ""))
    return names
