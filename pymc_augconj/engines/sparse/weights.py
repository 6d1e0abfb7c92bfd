"""A recognised model in the weights of its inducing points, and the posterior of these.

A process at its inputs, u ~ N(0, K(θ)), becomes v ~ N(0, I_M) with the design A = K_XZ R⁻ᵀ,
R = chol(K_ZZ + jitter·I), and a residual variance r of each predictor, see :mod:`.component`; r is
a parameter of the likelihood, see :mod:`.expected`. All else of the model stays as it is, so that
the samplers do not know of inducing points.

A value of θ costs O(N M²) and arrays of N × M, of which the last two are kept; a process of K
outputs has these once, see :class:`.CopiesMap`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import Any, NoReturn

import numpy as np
from scipy.linalg.blas import dtrsv

from pymc_augconj.block import LatentBlock
from pymc_augconj.engines.base import ProcessPrior
from pymc_augconj.errors import AugmentationError, NotPositiveDefiniteError
from pymc_augconj.likelihoods.contract import lift
from pymc_augconj.linalg.dense import (
    TriangularFactor,
    diagonal_view,
    lower_column_norms,
    lower_transpose_product,
)
from pymc_augconj.linalg.linear_map import CopiesMap, DenseMap, LinearMap, RowSelection
from pymc_augconj.linalg.unlocked import cholesky_in_place
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.point import Argument, FixedValue, Key, Point, PointMap
from pymc_augconj.typing import Array

from .expected import SMALLEST_VAR, ExpectedDensity, residual_name
from .inducing import factor_at, selection_of

__all__ = ["ComponentPosterior", "WeightsPosterior", "WithResidual", "joined", "weights_model"]


class ComponentPosterior:
    """The Gaussian with precision I + B and precision times mean b.

    Parameters
    ----------
    precision : ndarray, shape (D, D)
        B, symmetric: precision added by the data; zero under the prior.
    linear : ndarray, shape (D,)
        b.

    Attributes
    ----------
    mean : ndarray, shape (D,)

    Raises
    ------
    NotPositiveDefiniteError
        If I + B is not positive definite.
    """

    def __init__(self, precision: Array, linear: Array) -> None:
        self.precision, self.linear = precision, linear
        chol = np.array(precision, order="F")
        diagonal_view(chol)[...] += 1.0
        info = cholesky_in_place(chol)
        if info != 0 or not np.isfinite(np.diagonal(chol)).all():
            raise NotPositiveDefiniteError(
                "the precision of the weights has no Cholesky factor: negative site precisions "
                "outweigh the prior; damp the update that made them"
            )
        self.factor = TriangularFactor(chol)
        self.mean = dtrsv(chol, dtrsv(chol, linear, lower=1), lower=1, trans=1)

    def half(self, Phi: Array) -> Array:
        """Return chol(I + B)⁻¹ Φ, whose columns' squares are variances of φᵀw."""
        return self.factor.solve(Phi)

    def solve_half(self, half: Array, *, overwrite: bool = False) -> Array:
        """Return S Φ, given :meth:`half` of Φ. May overwrite ``half``."""
        return self.factor.solve_transposed(half, overwrite=overwrite)


class WeightsPosterior:
    """Π_c N(w_c; μ_c, S_c) over components, whose natural parameters are flat vectors.

    Parameters
    ----------
    precision : ndarray
        The entries of every B_c of :class:`ComponentPosterior`, one matrix after the other.
    linear : ndarray
        The b_c.
    sizes : sequence of int
        Number of weights of each component.
    """

    def __init__(self, precision: Array, linear: Array, sizes: Sequence[int]) -> None:
        self.precision, self.linear, self.sizes = precision, linear, tuple(sizes)
        pairs = zip(self.matrices(precision), self.split(linear), strict=True)
        self.parts = [ComponentPosterior(*pair) for pair in pairs]
        self.mean = joined([part.mean for part in self.parts])

    def __reduce__(self) -> tuple[Any, ...]:
        # The factors are computed again where they are needed, rather than sent there.
        return WeightsPosterior, (self.precision, self.linear, self.sizes)

    @classmethod
    def prior(cls, sizes: Sequence[int]) -> WeightsPosterior:
        """Return N(0, I)."""
        return cls(np.zeros(sum(size**2 for size in sizes)), np.zeros(sum(sizes)), sizes)

    def split(self, vector: Array) -> list[Array]:
        """Return the parts of a vector of all weights."""
        return [vector[own] for own in _slices(self.sizes)]

    def matrices(self, entries: Array) -> list[Array]:
        """Return the symmetric matrices of the components, Fortran-ordered."""
        squares = _slices(tuple(size**2 for size in self.sizes))
        pairs = zip(self.sizes, squares, strict=True)
        return [entries[own].reshape(size, size).T for size, own in pairs]

    def prepare(self) -> None:
        """Invert the factors, so that several threads can share them."""
        for part in self.parts:
            _ = part.factor.inverse

    @property
    def var(self) -> Array:
        """Variances of the weights."""
        return joined([lower_column_norms(part.factor.inverse) for part in self.parts])

    def scaled_norm(self, step: Array) -> float:
        """Return the length of a change of the mean, in standard deviations."""
        pairs = zip(self.parts, self.split(step), strict=True)
        scaled = [lower_transpose_product(part.factor.chol, own) for part, own in pairs]
        return float(np.linalg.norm(joined(scaled)))

    @cached_property
    def log_det(self) -> float:
        """log|I + B|."""
        return 2.0 * sum(float(np.log(np.diagonal(p.factor.chol)).sum()) for p in self.parts)

    @cached_property
    def divergence(self) -> float:
        """KL(q(w) ‖ N(0, I))."""
        mean = self.mean
        return 0.5 * (float(self.var.sum()) + float(mean @ mean) - mean.size + self.log_det)

    def towards(
        self, precision: Array, linear: Array, rate: float, scale: float = 1.0
    ) -> WeightsPosterior:
        """Return q with natural parameters moved to ``scale``·(B̂, b̂) by the fraction ``rate``."""
        moved = (1.0 - rate) * self.precision
        moved += (rate * scale) * precision
        linear = (1.0 - rate) * self.linear + (rate * scale) * linear
        return WeightsPosterior(moved, linear, self.sizes)


def joined(arrays: list[Array]) -> Array:
    """Return the arrays one after the other; a single one is not copied."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


@lru_cache(maxsize=8)
def _slices(lengths: tuple[int, ...]) -> list[slice]:
    return [slice(*ends) for ends in pairwise(accumulate(lengths, initial=0))]


# A sampler compares a candidate with the point that it started from.
_KEPT = 2


def weights_model(
    lgm: LatentGaussianModel,
    priors: Sequence[ProcessPrior],
    inducing: Sequence[Array],
    names: Sequence[str],
    point: Point,
) -> LatentGaussianModel:
    """Return the model with some processes replaced by their weights.

    ``inducing`` are the inducing inputs of these, ``names`` the entries of the point that hold
    their weights, and ``point`` is any value of θ.

    Raises
    ------
    AugmentationError
        If a process enters a predictor by more than one of its values, or several predictors of
        one observation; if a variable that nothing observed depends on is drawn forward.
    """
    if lgm.forward:
        raise AugmentationError(
            f"variables {[f.name for f in lgm.forward]}: expected no variable that nothing "
            "observed depends on, such as missing observations, for sampling through inducing "
            "points; drop the missing observations and predict them with pac.predict"
        )
    replaced = [prior.name for prior in priors]
    for block in lgm.blocks:
        needs = () if block.mean is None else block.mean.names
        moving = [name for name in replaced if Argument("value", name) in needs]
        if moving:
            raise AugmentationError(
                f"variable {block.name!r}: expected a prior mean that does not depend on the "
                f"processes {moving} for sampling through inducing points; sample without "
                "inducing=…"
            )
    blocks, maps, designs = list(lgm.blocks), list(lgm.maps), []
    for prior, Z, name in zip(priors, inducing, names, strict=True):
        i = [block.name for block in lgm.blocks].index(prior.name)
        own = _ProcessDesign(prior, blocks[i].copies, maps[i], Z, point)
        blocks[i], maps[i] = _weights(blocks[i], name, len(Z)), _Design(own)
        designs.append(own)
    for site in lgm.sites:
        shared = [own.prior.name for own in designs if own.enters_twice(site)]
        if shared:
            raise AugmentationError(
                f"{site.label}: expected each process to enter one predictor of an observation for "
                f"sampling through inducing points, found {shared} in several; sample without "
                "inducing=…"
            )
    sites = tuple(
        replace(
            site,
            likelihood=lift(ExpectedDensity(site.likelihood)),
            params=WithResidual(site, tuple(designs)),
            refusal=None,
        )
        for site in lgm.sites
    )
    # The terms of PyMC's density of entries are those of the whole process.
    hyper = tuple(replace(h, entries=None) for h in lgm.hyperparameters)
    found = replace(lgm, blocks=tuple(blocks), maps=tuple(maps), sites=sites, hyperparameters=hyper)
    return replace(found, predictor=_Predictor(found), predictor_pullback=_no_pullback)


def _weights(block: LatentBlock, value_name: str, size: int) -> LatentBlock:
    shape = (size,) if block.copies == 1 else (block.copies, size)
    return LatentBlock(
        name=value_name, value_name=value_name, form="weights of a GP's inducing points",
        shape=shape, size=block.copies * size, copies=1, whitened=True, kind="standard",
        scale=FixedValue(np.ones(block.copies * size)),
    )  # fmt: skip


class _ProcessDesign:
    """Design and residual variances of one process, at the θ asked for last."""

    def __init__(
        self, prior: ProcessPrior, copies: int, read: PointMap[LinearMap], Z: Array, point: Point
    ) -> None:
        self.prior, self._copies, self._read, self._Z = prior, copies, read, Z
        self.names = tuple(dict.fromkeys([*prior.names, *read.names]))
        A = selection_of(prior, read(point), copies)
        self._copy, position = np.divmod(A.index, len(prior.inputs))
        self._enters = np.ones(A.index.size, dtype=bool) if A.coef is None else A.coef != 0.0
        # Inputs that observations share are looked at once.
        which, inverse = np.unique(position, return_inverse=True)
        in_order = np.array_equal(inverse, np.arange(which.size))
        self._index, self._inverse = which, None if in_order else inverse
        self._known: list[tuple[bytes, tuple[LinearMap, Array]]] = []

    def enters_twice(self, site: Site) -> bool:
        """Return whether one output enters several predictors of an observation."""
        # Predictors without it are told apart by numbers of their own.
        copy = np.where(self._enters, self._copy, -1 - np.arange(self._copy.size))
        in_order = np.sort(copy[site.row_numbers], axis=0)
        return bool((in_order[1:] == in_order[:-1]).any())

    def outputs_in(self, site: Site) -> int:
        """Return how many outputs an observed variable depends on."""
        return np.unique(self._copy[site.rows][self._enters[site.rows]]).size

    def at(self, point: Point) -> tuple[LinearMap, Array]:
        """Return A and r, shape (rows,)."""
        key = b"".join(np.asarray(point[name]).tobytes() for name in self.names)
        for known, found in self._known:
            if known == key:
                return found
        # Released first: a new one takes as much memory.
        self._known = self._known[: _KEPT - 1]
        found = self._make(point)
        self._known.insert(0, (key, found))
        return found

    def _make(self, point: Point) -> tuple[LinearMap, Array]:
        prior, Z = self.prior, self._Z
        factor = factor_at(prior, point, Z, relative_jitters=(0.0,))
        X = np.asarray(prior.inputs[self._index], dtype=float)
        xz, diagonal = prior.cross(point, X, Z)
        half = factor.solve(xz.T, overwrite=True).T
        residual = diagonal - np.vecdot(half, half)
        if not np.isfinite(residual).all():
            raise NotPositiveDefiniteError(
                f"the covariance of {prior.name!r}: expected finite numbers between its inputs and "
                "its inducing inputs"
            )
        # Where an inducing input is an input nothing is left, up to rounding.
        np.maximum(residual, SMALLEST_VAR, out=residual)
        A = self._read(point)
        coef = A.coef if isinstance(A, RowSelection) else None
        if self._inverse is not None:
            residual = residual[self._inverse]
        residual = residual if coef is None else residual * coef**2
        if self._copies > 1:
            position = np.arange(len(half)) if self._inverse is None else self._inverse
            return CopiesMap(half, position, self._copy, coef, self._copies), residual
        if self._inverse is not None:
            half = half[self._inverse]
        return DenseMap(half if coef is None else half * coef[:, None]), residual

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_known": []}


@dataclass(frozen=True)
class _Design:
    """A of one process, as a function of the point."""

    process: _ProcessDesign

    @property
    def names(self) -> tuple[Key, ...]:
        return self.process.names

    def __call__(self, point: Point) -> LinearMap:
        return self.process.at(point)[0]


@dataclass(frozen=True)
class WithResidual:
    """The parameters of a likelihood, and the residual variance of its predictors."""

    site: Site
    processes: tuple[_ProcessDesign, ...]

    @property
    def names(self) -> tuple[Key, ...]:
        every = [*self.site.params.names, *(name for own in self.processes for name in own.names)]
        return tuple(dict.fromkeys(every))

    @property
    def outputs(self) -> int:
        """Number of outputs of processes that the observed variable depends on."""
        return sum(own.outputs_in(self.site) for own in self.processes)

    def __call__(self, point: Point) -> dict[str, Array]:
        parts = [self.site.select(own.at(point)[1]) for own in self.processes]
        total = parts[0] if len(parts) == 1 else np.sum(parts, axis=0)
        # A predictor without a process has no residual.
        total = np.maximum(total, SMALLEST_VAR)
        return {
            **self.site.params(point),
            **{residual_name(p): own for p, own in enumerate(total)},
        }


@dataclass(frozen=True)
class _Predictor:
    """η as a function of the point and of all innovations."""

    model: LatentGaussianModel

    def __call__(self, point: Point, innovations: Mapping[str, Array]) -> Array:
        eta = np.array(self.model.offset(point), dtype=float)
        for block, read in zip(self.model.blocks, self.model.maps, strict=True):
            eta += read(point).apply(innovations[block.name])
        return eta


def _no_pullback(*args: Any) -> NoReturn:
    raise NotImplementedError("a model in weights of inducing points has no derivatives by θ")
