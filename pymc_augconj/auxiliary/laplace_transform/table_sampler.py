"""Many draws of ω from the tilts of one φ: one table serves every tilt.

All tilts share the one unknown function π_φ; the tilt by r is exp(−rω) π_φ(ω)/φ(r), with a known
normaliser. So h(v) = log π_φ(e^v) + v is interpolated in Chebyshev nodes on panels that are halved
until the interpolant is as good as the inversion. The density at each node is inverted at its
saddlepoint (`density`), so the error is relative for every tilt.

A draw finds its quantile from the integrals of exp(h(v) − r e^v)/φ(r) over small cells, which must
add up to one minus the atom, within 1e-7. If they do not, or the tilt is too narrow for the cells,
the draw is by inversion (`quantiles`), with the same uniform.

Several φ that differ by the scale of r share one table: if φ'(r) = φ(k r) then ω' is k ω. Learning
the scale of a likelihood (b, σ, ρ) therefore needs no new table at every step. Two φ are compared
on a grid, after both are scaled to log φ = −1; as both are analytic, agreement to rounding on the
real axis is agreement in the half-plane.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pymc_augconj.errors import NotSuperGaussianError, refuse
from pymc_augconj.typing import Array, Generator, Index

from . import kernels
from .complete_monotonicity import check_completely_monotone
from .distribution import LogPhi, TiltedDistribution, as_distribution, checked_tilt
from .inversion import MAX_LOG, logpdf_tilted, mean_curve, untilted_log_density
from .quantiles import quantile_tilted

TABLE_PAYS = 100  # draws from which the table costs less than inversions
LEAST_VARIATION = 0.25  # coefficient of variation of a tilt that the cells resolve
PANEL = 2.0  # widest panel, in log ω; panels lie on a lattice, so that tables can be extended
MAX_HALVINGS = 7
MAX_PANELS = 600  # if more panels than this remain to be halved, they are accepted
USELESS = 0.5  # a table that fails for this share of a call's draws is given up
CELL_TOLERANCE = 1e-10  # of the mass of a cell
MAX_CELL_HALVINGS = 8
MASS_TOLERANCE = 1e-7
EMPTY_END = 3e-11  # mass of cells at the right end that are left out
INTERPOLATION_TOLERANCE = 3e-10  # of the density of log ω, at the hardest tilts
IGNORED_MASS = 2e-9  # density of log ω below which a panel is accepted
TAIL = 1e-12  # mass that the table may leave out on either side
MARGIN = 10.0  # by which the range of r is widened when a table has to be extended
KEPT = 4  # shapes of φ
SCALE_GRID = np.geomspace(1e-5, 1e6, 23)  # in units of the scale
AGREEMENT = 1e-11  # of log φ
SCALE_STEPS = 60  # of Newton's iteration for the scale, in log r


class Cells(NamedTuple):
    """The cells of the table, from left to right, and their panels, in v = log ω.

    ``log_values`` and ``omegas`` are h and ω in the Gauss nodes of each cell, (cells, GAUSS),
    ``panel`` is the panel of each, and ``coefficients`` are those of Chebyshev, (panels, DEGREE +
    1).
    """

    lefts: Array
    widths: Array
    log_values: Array
    omegas: Array
    panel: Index
    coefficients: Array
    centres: Array
    halves: Array


class TiltedSampler:
    """Draws from the tilts of one φ, by a table that is built and extended when needed.

    Its first use costs two to five milliseconds. ``covered`` is the range of r of the table, (∞, 0)
    before there is one, and ``fallbacks`` the number of draws by inversion, because the tilt was
    narrow or the table failed.
    """

    def __init__(self, log_phi: LogPhi | TiltedDistribution) -> None:
        self.distribution: TiltedDistribution = as_distribution(log_phi)
        self.covered = (np.inf, 0.0)
        self.fallbacks = 0
        self._drawn = 0
        self._panels: dict[int, list[tuple[float, float, Array]]] = {}
        self._cells: Cells | None = None
        self._usable = True

    def random(self, rng: Generator, r: ArrayLike) -> Array:
        """Draw one ω from the tilt of each entry of ``r``, by one uniform each."""
        r = checked_tilt(r)
        return self.quantile(rng.random(r.shape), r)

    def quantile(self, u: ArrayLike, r: ArrayLike) -> Array:
        """Return the quantiles F⁻¹(u) of the tilts, those of `quantile_tilted` to rounding of F."""
        r, u = checked_tilt(r), np.asarray(u, dtype=float)
        refuse("u", u, (u >= 0.0) & (u <= 1.0), "a probability u")
        shape = np.broadcast_shapes(u.shape, r.shape)
        u, r = (np.array(np.broadcast_to(a, shape), dtype=float).ravel() for a in (u, r))
        self._drawn += r.size
        early = self._cells is None and self._drawn < TABLE_PAYS
        if early or not self._usable or self.distribution.is_point_mass:
            return quantile_tilted(u, self.distribution, r).reshape(shape)
        mean, std = self.distribution.rough_moments(r)
        tabled = ~(std < LEAST_VARIATION * mean)
        x = np.full(r.size, np.nan)
        if tabled.any():
            x[tabled] = self._by_table(u[tabled], r[tabled], mean[tabled])
            # No table describes this φ: do not try again.
            self._usable = bool(np.count_nonzero(np.isnan(x[tabled])) < USELESS * r.size)
        others = np.isnan(x)
        if others.any():
            self.fallbacks += int(np.count_nonzero(others))
            x[others] = quantile_tilted(u[others], self.distribution, r[others])
        return x.reshape(shape)

    def _by_table(self, u: Array, r: Array, mean: Array) -> Array:
        """Quantiles from the table, NaN where its check fails."""
        log_phi_r = self.distribution.real(r)
        refuse("r", r, np.isfinite(log_phi_r), "an r at which log φ is finite")
        cells = self._cover(r.min(), r.max())
        with np.errstate(divide="ignore", over="ignore"):
            atom = np.minimum(np.exp(self.distribution.log_atom - log_phi_r), 1.0)
            start = np.searchsorted(cells.lefts, np.log(mean)) - 1
        start = np.clip(start, 0, cells.lefts.size - 1)
        out = np.empty(u.size)
        kernels.fill_quantiles(u, r, log_phi_r, atom, start, MASS_TOLERANCE, *cells, out)
        return out + self.distribution.origin

    def _cover(self, least: float, greatest: float) -> Cells:
        """Make the table serve all r of [least, greatest], and return its cells."""
        low, high = self.covered
        if self._cells is not None and low <= least and greatest <= high:
            return self._cells
        if self._cells is not None:
            least = least / MARGIN if least < low else low
            greatest = greatest * MARGIN if greatest > high else high
            if not np.isfinite(self.distribution.real(np.array([greatest]))[0]):
                greatest /= MARGIN
        self.covered = (least, greatest)
        first = int(np.floor(self._left_end(greatest) / PANEL))
        last = int(np.floor(self._right_end(least) / PANEL))
        missing = [j for j in range(first, max(first, last) + 1) if j not in self._panels]
        self._add_panels(missing)
        self._cells = self._make_cells()
        return self._cells

    def _left_end(self, r: float) -> float:
        """Bound log x below which, atom apart, the tilt r has at most 1e-12, by Chernoff."""
        base = self.distribution.real(np.array([r]))[0]
        mean = self.distribution.mean(np.array([r]))[0]
        log_s = np.arange(-np.log(mean), np.log(self.distribution.farthest), 0.25)
        s = np.exp(log_s)
        with np.errstate(all="ignore"):
            ratio = np.exp(self.distribution.real(r + s) - base)
            x = (np.log(TAIL) - np.log(ratio - np.exp(self.distribution.log_atom - base))) / s
        x = x[np.isfinite(x) & (x > 0.0)]
        return np.log(x.max()) if x.size else -np.log(self.distribution.farthest)

    def _right_end(self, r: float) -> float:
        """Bound log x above which the tilt r has at most 1e-12, by Chernoff or by Markov.

        Markov's inequality for 1 − exp(−ω/x), of mean 1 − φ(r + 1/x)/φ(r), holds at r = 0, too.
        """
        base = self.distribution.real(np.array([r]))[0]
        mean = self.distribution.mean(np.array([r]))[0]
        log_s = np.arange(-min(MAX_LOG, 60.0 + abs(np.log(mean)) * 3), -np.log(mean), 0.5)
        lost = -np.expm1(self.distribution.real(r + np.exp(log_s)) - base)
        bounds = [-log_s[lost <= (1.0 - np.exp(-1.0)) * TAIL].max(initial=-MAX_LOG)]
        if r > 0.0:
            t = r * np.linspace(0.05, 1.0, 20)
            x = (self.distribution.real(r - t) - base - np.log(TAIL)) / t
            bounds.append(np.log(x[x > 0.0].min(initial=np.exp(MAX_LOG))))
        return min(bounds)

    def _add_panels(self, missing: list[int]) -> None:
        """Interpolate h on the panels ``missing``, halving panels without convergence."""
        degree = kernels.DEGREE
        angle = np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1)
        to_coefficients = 2.0 / (degree + 1) * np.cos(np.arange(degree + 1)[:, None] * angle)
        to_coefficients[0] *= 0.5
        pending = [(j, PANEL * j, PANEL) for j in missing]
        for j in missing:
            self._panels[j] = []
        for halving in range(MAX_HALVINGS + 1):
            if not pending:
                break
            left = np.array([panel[1] for panel in pending])[:, None]
            width = np.array([panel[2] for panel in pending])[:, None]
            v = left + 0.5 * width * (1.0 + np.cos(angle))
            found = untilted_log_density(self.distribution, np.exp(v.ravel()))
            h, mass, error = (values.reshape(v.shape) for values in found)
            coefficients = h @ to_coefficients.T
            mass = mass.max(axis=1)
            tail = np.abs(coefficients[:, -2:]).max(axis=1) * mass
            good = (tail < INTERPOLATION_TOLERANCE + error.max(axis=1)) | (mass < IGNORED_MASS)
            good |= ~np.isfinite(tail)  # the draws will tell
            good |= halving == MAX_HALVINGS or 2 * np.count_nonzero(~good) > MAX_PANELS
            remaining = []
            for (j, a, w), accepted, row in zip(pending, good, coefficients, strict=True):
                if accepted:
                    self._panels[j].append((a, w, row))
                else:
                    remaining += [(j, a, 0.5 * w), (j, a + 0.5 * w, 0.5 * w)]
            pending = remaining

    def _make_cells(self) -> Cells:
        """Cut the panels into cells on which the Gauss sums are exact to 1e-10 for every r."""
        panels = sorted(
            (panel for group in self._panels.values() for panel in group), key=lambda p: p[0]
        )
        left, width = (np.array([panel[i] for panel in panels]) for i in (0, 1))
        coefficients = np.array([panel[2] for panel in panels])
        centres, halves = left + 0.5 * width, 0.5 * width

        def gauss_values(lefts: Array, widths: Array, panel: Index) -> tuple[Array, Array]:
            v = lefts[:, None] + 0.5 * widths[:, None] * (1.0 + kernels.GAUSS_NODES)
            z = (v - centres[panel][:, None]) / halves[panel][:, None]
            basis = np.cos(np.arccos(z)[:, :, None] * np.arange(kernels.DEGREE + 1))
            return (basis @ coefficients[panel][:, :, None])[:, :, 0], np.exp(v)

        curve = mean_curve(self.distribution, left[0], left[-1] + width[-1])
        # Begin with cells of half a panel of full width.
        panel, finished = np.repeat(np.arange(len(panels)), 2), []
        left = np.stack([left, centres], axis=1).ravel()
        width = np.repeat(halves, 2)
        whole: Sequence[Array] = gauss_values(left, width, panel)
        for halving in range(MAX_CELL_HALVINGS + 1):
            half = 0.5 * width
            parts = [gauss_values(a, half, panel) for a in (left, left + half)]
            tilts = self._hardest_tilts(left + half, curve)
            log_phi = self.distribution.real(tilts)

            def mass(
                values: Sequence[Array],
                widths: Array,
                tilts: Array = tilts,
                log_phi: Array = log_phi,
            ) -> Array:
                h, omega = (a[:, None, :] for a in values)
                with np.errstate(all="ignore"):
                    density = np.exp(h - tilts[:, :, None] * omega - log_phi[:, :, None])
                return 0.5 * widths[:, None] * (density @ kernels.GAUSS_WEIGHTS)

            with np.errstate(invalid="ignore"):
                error = mass(whole, width) - mass(parts[0], half) - mass(parts[1], half)
            split = np.abs(error).max(axis=1) > CELL_TOLERANCE
            split &= halving < MAX_CELL_HALVINGS
            finished.append([a[~split] for a in (left, width, *whole, panel)])
            if not split.any():
                break
            left, panel = np.append(left[split], (left + half)[split]), np.tile(panel[split], 2)
            width = np.tile(half[split], 2)
            whole = [np.concatenate([part[i][split] for part in parts]) for i in (0, 1)]
        columns = [np.concatenate(column) for column in zip(*finished, strict=True)]
        order = np.argsort(columns[0])
        lefts, widths, values, omega, panel = (column[order] for column in columns)
        # Drop cells of pure rounding, right of the last mass of the least tilt.
        r = self.covered[0]
        with np.errstate(all="ignore"):
            density = np.exp(values - r * omega - self.distribution.real(np.array([r])))
            empty = 0.5 * widths * (density @ kernels.GAUSS_WEIGHTS) < EMPTY_END
        keep = max(empty.size - int(np.argmin(empty[::-1])), 1)
        lefts, widths, values, omega, panel = (
            np.ascontiguousarray(a[:keep]) for a in (lefts, widths, values, omega, panel)
        )
        return Cells(lefts, widths, values, omega, panel, coefficients, centres, halves)

    def _hardest_tilts(self, log_x: Array, curve: tuple[Array, Array]) -> Array:
        """Tilts of the covered range that vary most about x: its saddlepoint, 1/x, 4/x; (n, 3)."""
        log_r, log_mean = curve
        saddle = np.interp(-log_x, -log_mean, log_r)
        tilts = np.exp(np.stack([saddle, -log_x, np.log(4.0) - log_x], axis=1))
        return np.clip(tilts, *self.covered)


@dataclass(frozen=True)
class ScaledTilts:
    """The tilts of r ↦ φ(factor · r), by a sampler of φ."""

    sampler: TiltedSampler
    factor: float

    def random(self, rng: Generator, r: Array) -> Array:
        """Draw one ω from the tilt of each entry of ``r``."""
        return self.factor * self.sampler.random(rng, self.factor * r)

    def logpdf(self, omega: Array, r: Array) -> Array:
        """Return the log density of the tilts by ``r`` at ``omega``."""
        value = logpdf_tilted(omega / self.factor, self.sampler.distribution, self.factor * r)
        return value - np.log(self.factor)


@dataclass(frozen=True)
class _Shape:
    scale: float
    values: Array
    sampler: TiltedSampler


class ScaleFamilies:
    """Finds a sampler for a φ among the samplers of earlier φ, or makes one."""

    def __init__(self) -> None:
        self._shapes: deque[_Shape] = deque(maxlen=KEPT)
        self._last_scale = 1.0

    def find(self, log_phi: LogPhi) -> ScaledTilts:
        """Return the tilts of φ; raise NotSuperGaussianError if φ is not completely monotone."""
        scale = find_scale(log_phi, self._last_scale)
        if scale is None:
            return ScaledTilts(_checked_sampler(log_phi), 1.0)
        self._last_scale = scale
        with np.errstate(all="ignore"):
            values = np.asarray(log_phi((scale * SCALE_GRID).astype(np.complex128))).real
        for shape in self._shapes:
            if _agree(shape.values, values):
                return ScaledTilts(shape.sampler, shape.scale / scale)
        sampler = _checked_sampler(log_phi)
        self._shapes.append(_Shape(scale, values, sampler))
        return ScaledTilts(sampler, 1.0)


def _checked_sampler(log_phi: LogPhi) -> TiltedSampler:
    # Without this check, which takes a third of the time of a table, an invalid φ would give wrong
    # draws in silence.
    with np.errstate(all="ignore"):
        reason = check_completely_monotone(log_phi, density=False)
    if reason is not None:
        raise NotSuperGaussianError(reason)
    return TiltedSampler(TiltedDistribution(log_phi))


def find_scale(log_phi: LogPhi, start: float = 1.0) -> float | None:
    """Return the r at which log φ(r) = −1, to rounding; None without convergence."""
    x = np.log(start)
    with np.errstate(all="ignore"):
        for _ in range(SCALE_STEPS):
            r = np.exp(x)
            value = complex(np.asarray(log_phi(np.array([complex(r, 1e-20 * r)])))[0])
            # Newton's iteration for log(−log φ) as a function of log r.
            size, slope = -value.real, -value.imag * 1e20
            if not (size > 0.0 and slope > 0.0 and np.isfinite(size)):
                return None
            step = -np.log(size) * size / slope
            if not abs(step) < 200.0:
                return None
            x += step
            if abs(step) < 1e-15 * max(1.0, abs(x)) or abs(size - 1.0) < 4e-16:
                return float(np.exp(x))
        return float(np.exp(x)) if abs(step) < 1e-13 else None


def _agree(a: Array, b: Array) -> bool:
    known = np.isfinite(a) & np.isfinite(b)
    if known.sum() < SCALE_GRID.size // 2 or not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return False
    return bool(np.all(np.abs(a[known] - b[known]) <= AGREEMENT * (1.0 + np.abs(a[known]))))
