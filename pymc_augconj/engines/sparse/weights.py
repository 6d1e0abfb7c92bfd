"""A recognised model in the weights of its inducing points, for samplers.

A process u ~ N(0, K(θ)) becomes v ~ N(0, I_M) with the design A = K_XZ R⁻ᵀ, R = chol(K_ZZ +
jitter·I), and a residual of each predictor, ηᵢ = mᵢ + aᵢᵀv + eᵢ, eᵢ ~ N(0, rᵢ), independent between
predictors. The optimal free-form posterior is (Hensman et al. 2015)

    q(v, θ) ∝ p(θ) N(v; 0, I) exp Σ E_{N(η; mᵢ + aᵢᵀv, rᵢ)} log p(yᵢ | η),

for a sampler one more density, with rᵢ(θ) among its parameters. Where the expectation has no closed
form it is *defined* as a sum over fixed nodes, see :func:`.normal_nodes`. A value of θ costs O(N
M²) and arrays of N × M, of which two are kept; K outputs share these, see :class:`.CopiesMap`.

References
----------
Hensman, Matthews, Filippone & Ghahramani (2015), MCMC for variationally sparse Gaussian processes.
NIPS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from pymc_augconj.block import LatentBlock
from pymc_augconj.engines.base import ProcessPrior
from pymc_augconj.engines.variational.bound import expectations
from pymc_augconj.errors import AugmentationError, NotPositiveDefiniteError
from pymc_augconj.likelihoods.base import Params
from pymc_augconj.likelihoods.contract import MultiDensity, lift
from pymc_augconj.linalg.linear_map import CopiesMap, DenseMap, LinearMap, RowSelection
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.point import Argument, FixedValue, Key, Point, PointMap
from pymc_augconj.quadrature.expectation import normal_nodes
from pymc_augconj.typing import Array

from .inducing import factor_at, selection_of

#: Least r, so that its square root has a derivative; it changes no density by 1e-11.
SMALLEST_VAR = 1e-12

# Values of a density at once: 4 MB.
_CHUNK = 500_000
# A sampler compares a candidate with the point that it started from.
_KEPT = 2


def residual_name(predictor: int) -> str:
    """Return the entry of ``params`` that holds r of a predictor, shape (N,); no name of PyMC's."""
    return f"residual variance of predictor {predictor}"


class ExpectedDensity(MultiDensity):
    """The expectation of a density over the residuals of its predictors."""

    def __init__(self, terms: MultiDensity) -> None:
        self.terms = terms
        self.n_predictors, self.levels = terms.n_predictors, terms.levels
        own = terms.traits
        self.traits = replace(
            type(self).traits, factorises=own.factorises, propagates=own.propagates
        )
        self.name, self.link, self.discrete = terms.name, terms.link, terms.discrete
        self.is_normalized, self.has_observations = terms.is_normalized, terms.has_observations

    def _residual_var(self, params: Params) -> Array:
        """Return the variances of residuals, shape (P, N)."""
        return np.stack([params[residual_name(p)] for p in range(self.n_predictors)])

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        """Return E log p(y | η + e), for η of shape (P, …, N)."""
        shape = np.broadcast_shapes(eta.shape[1:], y.shape)
        eta = np.broadcast_to(eta, (len(eta), *shape))
        if len(shape) == 1:
            return self.expected(y, eta, params)
        # Closed forms are for vectors.
        y = np.broadcast_to(y, shape).ravel()
        arrays = {k: np.broadcast_to(v, shape).ravel() for k, v in params.items() if np.ndim(v)}
        params = {**params, **arrays}
        return self.expected(y, eta.reshape(len(eta), -1), params).reshape(shape)

    def expected(self, y: Array, mean: Array, params: Params) -> Array:
        """Return the expectation at predictors of shape (P, N)."""
        found = self.closed(y, mean, params)
        return self.summed(y, mean, params, *normal_nodes(len(mean))) if found is None else found

    def closed(self, y: Array, mean: Array, params: Params) -> Array | None:
        """Return the expectation where it has a closed form; None where it is a sum."""
        found = self.terms.expected_with_gradient(y, mean, self._residual_var(params), params)
        return None if found is None else found[0]

    def summed(self, y: Array, mean: Array, params: Params, nodes: Array, weights: Array) -> Array:
        """Return the expectation as a sum over nodes; shapes as :meth:`expected`."""
        std = np.sqrt(self._residual_var(params))[:, None]
        total = np.zeros(y.shape)
        step = max(_CHUNK // mean.size, 1)
        for part in (slice(i, i + step) for i in range(0, weights.size, step)):
            eta = mean[:, None] + nodes[:, part, None] * std
            total += weights[part] @ self.terms.log_density(y, eta, params)
        return total

    def log_density_and_gradient(self, y: Array, eta: Array, params: Params) -> tuple[Array, Array]:
        """Return E log p(y | η + e) and an approximation of its gradient, for η of shape (P, N)."""
        var = self._residual_var(params)
        found = self.terms.expected_with_gradient(y, eta, var, params)
        if found is not None:
            return found
        # What is sampled is the sum, from which the integral differs a little.
        slopes = expectations(self.terms, y, eta, var, params, rough=True)[1]
        return self.expected(y, eta, params), slopes

    def propagated_sites(
        self,
        y: Array,
        mean: Array,
        cov: Array,
        residual_var: Array,
        sites: tuple[Array, Array],
        params: Params,
    ) -> tuple[Array, Array]:
        residual_var = residual_var + self._residual_var(params)
        return self.terms.propagated_sites(y, mean, cov, residual_var, sites, params)

    def error(self, y: Array, eta: Array, params: Params) -> float:
        """Return by how much twice the nodes move Σ E log p(y | η + e); 0 for a closed form."""
        if self.closed(y, eta, params) is not None and not self.terms.traits.expected_by_rule:
            return 0.0
        few = self.expected(y, eta, params)
        many = self.summed(y, eta, params, *normal_nodes(len(eta), 2))
        return float(abs(many.sum() - few.sum()))

    def expected_log_density(
        self, y: Array, mean: Array, cov: Array, params: Params
    ) -> tuple[Array, Array, Array]:
        """Return the expectation with cov + r in place of r, as held sites need it."""
        one = np.eye(self.n_predictors)
        cov = cov + np.einsum("pq,pn->pqn", one, self._residual_var(params))
        found = self.terms.expected_roughly(y, mean, cov, params)
        if found is not None:
            return found
        return expectations(self.terms, y, mean, cov, params, rough=True)


def weights_model(
    lgm: LatentGaussianModel,
    priors: Sequence[ProcessPrior],
    inducing: Sequence[Array],
    names: Sequence[str],
    point: Point,
) -> LatentGaussianModel:
    """Return the model with processes replaced by their weights, which entries ``names`` hold."""
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
    lifted = [replace(s, likelihood=lift(ExpectedDensity(s.likelihood))) for s in lgm.sites]
    params = [WithResidual(s, tuple(designs)) for s in lgm.sites]
    pairs = zip(lifted, params, strict=True)
    sites = tuple(replace(site, params=own, refusal=None) for site, own in pairs)
    # The terms of PyMC's density of entries are those of the whole process.
    hyper = tuple(replace(h, entries=None) for h in lgm.hyperparameters)
    found = replace(lgm, blocks=tuple(blocks), maps=tuple(maps), sites=sites, hyperparameters=hyper)
    return replace(found, predictor=_no_graph, predictor_pullback=_no_graph)


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
        return {**self.site.params(point), **{residual_name(p): own for p, own in enumerate(total)}}


def _no_graph(*args: Any) -> NoReturn:
    raise NotImplementedError("a model in weights of inducing points has no graph of predictors")
