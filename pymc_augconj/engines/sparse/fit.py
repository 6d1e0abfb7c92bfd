"""The evidence lower bound through inducing points, on all the data at once or in chunks.

As :mod:`.bound`, with the same rules and the same loop; it is that of Titsias (2009) and Hensman et
al. (2015), at most the dense one. In memory the sites are those of the observations. Of data in
chunks only sums over rows are seen, and coordinate ascent is in the natural parameters of q(w),
precision I + B and precision times mean b: a sweep takes them, as sites of one observation of all
D weights, to the sums of the target sites of all rows

    B̂ = Σ φᵢ λ̂ᵢ φᵢᵀ,    b̂ = Σ φᵢ (ĥᵢ − λ̂ᵢ offsetᵢ).

The result is, as everywhere, sites and θ: q(w) ∝ N(w | 0, I) exp(bᵀw − ½ wᵀBw) with B = V diag(λ)
Vᵀ is the prior times D sites, on the predictors Vᵀw, with precisions λ and linear coefficients h =
V⁻¹b. A prediction is that of the dense model with Z for X.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import eigh

from pymc_augconj.engines.base import Evaluation, FitOutcome, FitProblem, Iteration, SiteRule
from pymc_augconj.engines.hyperparameters import Search
from pymc_augconj.engines.options import VGPOptions
from pymc_augconj.engines.variational.ascent import climb
from pymc_augconj.engines.variational.bound import Stage, stages_in_turn
from pymc_augconj.errors import AugmentationError
from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.latents.base import BlockPrior
from pymc_augconj.latents.joint import LatentPrior, block_prior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.linalg.linear_map import DenseMap
from pymc_augconj.point import Point
from pymc_augconj.typing import Array

from .chunks import ChunkedData, RowsInChunks
from .inducing import WeightsPosterior, inducing_block
from .model import SparseModel, SparseSites, mean_field_rule
from .rows import (
    EvaluatedRows,
    Reducer,
    State,
    Sums,
    all_slopes,
    evaluated,
    natural_sums,
    slope_sums,
    start_sums,
)


def outcome_of(
    model: SparseModel,
    point: Point,
    inducing: Sequence[Array],
    q: WeightsPosterior,
    evidence: float,
    objective: float,
    converged: bool,
    message: str,
    iterations: list[Iteration],
    gradient: dict[str, Array] | None = None,
    diagnostics: Mapping[str, float | str] | None = None,
) -> FitOutcome:
    """Return the fit as D sites on rotated weights."""
    lgm = model.lgm
    whole = _whole_blocks(model, point, inducing)
    lams, linear, maps = [], [], [np.zeros((q.mean.size, b.block.total_size)) for b in whole]
    last = 0
    for part, own in zip(model.parts, q.parts, strict=True):
        # In units in which the data add as much to wide weights as to others.
        unit = np.sqrt(1.0 + np.maximum(np.diagonal(own.precision), 0.0))
        lam, V = eigh(own.precision / np.multiply.outer(unit, unit))
        lams.append(lam)
        linear.append(V.T @ (own.linear / unit))
        V *= unit[:, None]
        rows, first = slice(last, last + lam.size), 0
        last = rows.stop
        its_blocks, its_latents = part.component.blocks, part.component.latents
        for block, Z in zip(part.blocks, part.inducing(inducing), strict=True):
            (copy,) = np.unique(its_latents[block] // lgm.blocks[its_blocks[block]].size)
            columns = slice(copy * len(Z), (copy + 1) * len(Z))
            maps[its_blocks[block]][rows, columns] = V[first : first + len(Z)].T
            first += len(Z)
        for i, _, _, where in part.other_parts(point, slice(0, 0), first):
            maps[its_blocks[i]][rows, its_latents[i]] = V[where].T
    # A latent without variance enters nothing.
    rotated = [b.unscale_transpose(rows) for b, rows in zip(whole, maps, strict=True)]
    unscaled = tuple(DenseMap(np.asfortranarray(A)) for A in rotated)
    lam = np.concatenate(lams)
    prior = LatentPrior(np.zeros(lam.size), whole, unscaled, unscaled)
    # q(w) is compared with N(0, I).
    flat = prior.log_flat
    moved = [(done, done.bound + flat, done.divergence - flat) for done in iterations]
    iterations = [replace(done, bound=b, divergence=d) for done, b, d in moved]
    return FitOutcome(
        dict(point), np.concatenate(linear), lam, evidence + flat, objective + flat, prior,
        RowGroups.apart(lam.size), "weight", converged, message, iterations,
        gradient or {}, dict(diagnostics or {}),
        inducing={prior.name: np.array(Z) for prior, Z in zip(model.priors, inducing, strict=True)},
    )  # fmt: skip


def _whole_blocks(
    model: SparseModel, point: Point, inducing: Sequence[Array]
) -> tuple[BlockPrior, ...]:
    """Return the priors of all blocks, processes at their inducing inputs."""
    by_name = {prior.name: (prior, Z) for prior, Z in zip(model.priors, inducing, strict=True)}
    return tuple(
        inducing_block(model.lgm, by_name[block.name][0], point, by_name[block.name][1])
        if block.name in by_name
        else block_prior(block, block.scale(point)).factorized()
        for block in model.lgm.blocks
    )


_EPS = 1000.0 * np.finfo(float).eps
# Entries of the whitened designs (2.4 GB) beyond which all the data at once are refused.
_LARGEST_DESIGN = 300_000_000


class _Family:
    """The bound for every θ, on data in memory: what the loop and the optimiser ask of it."""

    #: Sites of rows are not kept by a fit.
    first: tuple[Array, Array] | None = None

    def __init__(self, problem: FitProblem, rule: SiteRule) -> None:
        assert problem.sparse is not None
        self.rule = rule
        self.warms_up = problem.model.has_bounded_densities
        self.model = SparseModel.of(problem)
        self.inducing = list(problem.sparse.inducing)
        self.sites = SparseSites(problem.model, rule, problem.point)
        self.stages = [Stage()]
        if rule.monotone:
            self.stages = stages_in_turn(problem.model, Coupling(problem.model.n_rows))
        entries = sum(part.rows.size * part.size(self.inducing) for part in self.model.parts)
        if entries > _LARGEST_DESIGN:
            raise AugmentationError(
                f"{self.model.n_observations} observations through "
                f"{sum(self.model.sizes(self.inducing))} weights take {entries * 8 / 1e9:.1f} GB "
                f"at once, expected at most {_LARGEST_DESIGN * 8 / 1e9:.1f}; use method='svi' with "
                "a batch_size, or data=… in chunks"
            )

    def at(self, point: Point) -> _Bound:
        return _Bound(self, point)


class _Bound:
    """The bound at one θ, as a function of the sites of the observations."""

    def __init__(self, family: _Family, point: Point) -> None:
        self.family, self.point = family, point
        self.design = family.model.design(point, family.inducing)

    def at_prior(self) -> Evaluation:
        """Return the evaluation at q = p; at unit sites about the mean if p is improper."""
        lgm = self.family.model.lgm
        lam = np.full(lgm.n_rows, float(lgm.is_improper))
        return self.evaluate(lam * lgm.offset(self.point), lam)

    def evaluate(self, h: Array, lam: Array, keep: Evaluation | None = None) -> Evaluation:
        """Return the evaluation at the sites (h, λ) of the observations."""
        q = self.design.posterior(h, lam)
        rows = evaluated(self.family.sites, self.design, q)
        magnitude = float(np.sum(np.abs(rows.value))) + abs(q.divergence) + abs(q.log_det)
        return Evaluation(
            h, lam, rows.h, rows.lam, rows.mean, rows.var, float(np.sum(rows.value)), q.divergence,
            magnitude * _EPS, Coupling(h.size), rows,
        )  # fmt: skip

    def gradient(self, at: Evaluation) -> dict[str, Array]:
        """Return d bound/dθ at sites that equal their targets."""
        rows = at.posterior
        assert isinstance(rows, EvaluatedRows)  # see evaluate
        halves = [half.copy(order="F") for half in rows.halves]
        rows = replace(rows, halves=halves, h=at.h, lam=at.lam)
        state = State(self.point, self.family.inducing, rows.q)
        natural = rows.q.precision, rows.q.linear
        return all_slopes(self.family.model, state, lambda: slope_sums(rows), natural)


class _ChunkedFamily:
    """The bound for every θ, on data in chunks."""

    def __init__(self, problem: FitProblem, rule: SiteRule) -> None:
        sparse = problem.sparse
        assert sparse is not None
        assert isinstance(sparse.data, ChunkedData)
        self.rule, self.stages = rule, [Stage()]
        self.warms_up = problem.model.has_bounded_densities
        self.rows, self.inducing = RowsInChunks(sparse.data, rule), list(sparse.inducing)
        #: At the rows that the user's model holds.
        self.model = SparseModel.of(problem)
        #: Start of the first optimiser run, if not the prior.
        self.first: tuple[Array, Array] | None = None
        if sparse.first is not None:
            self.first = sparse.first.linear, _packed(sparse.first.precision)

    def at(self, point: Point) -> _ChunkedBound:
        return _ChunkedBound(self, point)


class _ChunkedBound:
    """The bound at one θ, as a function of b and the entries of B, diagonal first."""

    def __init__(self, family: _ChunkedFamily, point: Point) -> None:
        self.family, self.point = family, point
        (self.size,) = family.model.sizes(family.inducing)

    def total(self, reducer: Reducer, q: WeightsPosterior) -> Sums:
        """Return the sums of all chunks at q(w) and θ."""
        return self.family.rows.total(reducer, State(self.point, self.family.inducing, q))

    def at_prior(self) -> Evaluation:
        """Return the evaluation at q = p, likewise."""
        h = np.zeros(self.size)
        if self.family.model.lgm.is_improper:
            return self.evaluate(h, self.gram)
        return self.evaluate(h, np.zeros(self.size * (self.size + 1) // 2))

    def evaluate(self, h: Array, lam: Array, keep: Evaluation | None = None) -> Evaluation:
        size = self.size
        q = WeightsPosterior(_unpacked(lam, size).ravel(), h, [size])
        sums, (own,) = self.total(natural_sums, q), q.parts
        cov = own.solve_half(own.half(np.eye(size, order="F")))
        magnitude = sums.magnitude + abs(q.divergence) + abs(q.log_det)
        return _WeightsEvaluation(
            h, lam, sums.linear, _packed(*q.matrices(sums.gram)), q.mean, _packed(cov), sums.value,
            q.divergence, magnitude * _EPS, Coupling(size), _AtWeights(q, self),
        )  # fmt: skip

    @cached_property
    def gram(self) -> Array:
        """Φ Φᵀ over all rows, as entries."""
        prior = WeightsPosterior.prior([self.size])
        return _packed(*prior.matrices(self.total(start_sums, prior).gram))

    def gradient(self, at: Evaluation) -> dict[str, Array]:
        """Return d bound/dθ at fixed q(w)."""
        q = _weights_of(at)
        state = State(self.point, self.family.inducing, q)
        natural = _unpacked(at.target_lam, self.size).ravel(), at.target_h
        return all_slopes(self.family.model, state, lambda: self.total(slope_sums, q), natural)


@dataclass(frozen=True)
class _AtWeights:
    q: WeightsPosterior
    bound: _ChunkedBound


@dataclass(frozen=True)
class _WeightsEvaluation(Evaluation):
    """The bound at one q(w): ``mean`` and ``cov`` are those of the weights."""

    @cached_property
    def residual(self) -> float:
        """Distance of (b, B) from their targets: of the means in standard deviations, and of S."""
        (q,), size = _weights_of(self).parts, self.mean.size
        change = _unpacked(self.target_lam - self.lam, size)
        if not (np.isfinite(change).all() and np.isfinite(self.target_h).all()):
            return float("nan")
        pull = q.half(np.asfortranarray((self.target_h - self.h - change @ self.mean)[:, None]))
        relative = q.half(np.asfortranarray(q.half(change).T))
        return float(np.sqrt(np.sum(pull**2) + np.sum(relative**2)))

    @property
    def precision_units(self) -> Array:
        """Change of q by a unit of each entry of B, for changes to be weighed by."""
        std = np.sqrt(self.var)
        units = self.var + std * np.abs(self.mean)
        i, j = np.tril_indices(self.mean.size, -1)
        # An entry off the diagonal stands for two.
        return np.concatenate([units, np.sqrt(2.0 * units[i] * units[j])])

    def narrow(self, std: float) -> tuple[Array, Array]:
        """Return the sum of sites of this standard deviation about the prior mean, at all rows."""
        assert isinstance(self.posterior, _AtWeights)
        return np.zeros_like(self.h), self.posterior.bound.gram / std**2


def _weights_of(at: Evaluation) -> WeightsPosterior:
    assert isinstance(at.posterior, EvaluatedRows | _AtWeights)
    return at.posterior.q


def _packed(matrix: Array) -> Array:
    """Return the entries of a symmetric matrix, its diagonal first."""
    return np.concatenate([np.diagonal(matrix), matrix[np.tril_indices(len(matrix), -1)]])


def _unpacked(entries: Array, size: int) -> Array:
    """Return the symmetric matrix, Fortran-ordered."""
    matrix = np.zeros((size, size), order="F")
    matrix[np.tril_indices(size, -1)] = entries[size:]
    matrix += matrix.T.copy()
    np.fill_diagonal(matrix, entries[:size])
    return matrix


def fit_sparse(kind: type[SiteRule], problem: FitProblem) -> FitOutcome:
    """Fit by a rule through inducing points; raises what the covariances at the start raise."""
    rule = mean_field_rule(kind, problem.model)
    several = [site.label for site in problem.model.sites if site.shape[0] > 1]
    if several and VGPOptions.of(problem.options).structure == "full":
        raise AugmentationError(
            f"structure: expected 'factorised' for {several} through inducing points, got "
            "'full'; leave it out, or fit without inducing points"
        )
    problem.model.require_support()
    if rule.augmented:
        problem.model.require_augmentation()
        problem.model.require_bound()
    chunked = problem.sparse is not None and problem.sparse.data is not None
    family = (_ChunkedFamily if chunked else _Family)(problem, rule)
    found = Search(family, problem, climb, lambda at, end: at.gradient(end)).ascend()
    if rule.augmented:
        problem.model.require_augmentation(found.point)
    end = found.climb.evaluation
    return outcome_of(
        family.model, found.point, family.inducing, _weights_of(end), end.bound,
        found.objective, found.converged, found.message, found.iterations, found.gradient,
    )  # fmt: skip
