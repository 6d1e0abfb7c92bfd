"""Several predictors an observation through inducing points, with weights that are independent.

The predictors of an observation have weights of their own, w = (w_1, …, w_C), one vector for every
*component* (see :mod:`pymc_augconj.latents.components`): what is tied together by the prior, or by
an observed variable of one predictor. The variational Gaussian factorises over these, q(w) =
Π q(w_c), as its sites do over the predictors; so there are C matrices of M × M weights, in the
place of one of CM × CM. Copies of one process (``n_outputs=K``) share Φ, its residual variances and
all derivatives through them, which are computed once.

Natural parameters of all components are flat vectors, one component after the other, so that steps
of q are those of :mod:`.posterior`.

References
----------
Hensman, J., Matthews, A. & Ghahramani, Z. (2015). Scalable variational Gaussian process
classification. AISTATS.
Saul, Hensman, Vehtari & Lawrence (2016). Chained Gaussian processes. AISTATS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pymc_augconj.engines.base import FitProblem
from pymc_augconj.errors import AugmentationError
from pymc_augconj.latents.cache import KeptParts
from pymc_augconj.latents.components import Component, find_components, restricted_model
from pymc_augconj.linalg.linear_map import RowSelection
from pymc_augconj.model import LatentGaussianModel, Point, ProcessPrior
from pymc_augconj.typing import Array, Index

from .design import SeparateDesign, SparseDesign
from .model import SparseModel
from .posterior import SeparatePosterior

__all__ = ["SeparateModel", "sparse_model"]


@dataclass(frozen=True)
class Part:
    """A component as a sparse model of its own.

    Attributes
    ----------
    component : Component
    model : SparseModel
        Its rows are those of its members, (observed variable, predictor), one after the other.
    processes : tuple of int
        Which of the processes are its own.
    twin : int
        The first component with the same Φ: its own number, but for copies of one process.
    """

    component: Component
    model: SparseModel
    processes: tuple[int, ...]
    twin: int


class SeparateModel:
    """A recognised model in components; what engines ask of it is as of a :class:`.SparseModel`.

    ``rows`` of any method are observations: those of the first observed variable, then those of the
    next one.

    Parameters
    ----------
    lgm : LatentGaussianModel
    priors : sequence of ProcessPrior
        The processes that act through inducing points.
    points : sequence of mapping
        A value of θ, and others.

    Raises
    ------
    AugmentationError
        If a latent enters two predictors of one observed variable, or a process enters a predictor
        by more than one of its values.
    """

    def __init__(
        self, lgm: LatentGaussianModel, priors: Sequence[ProcessPrior], points: Sequence[Point]
    ) -> None:
        self.lgm, self.priors = lgm, tuple(priors)
        groups = [tuple((p,) for p in range(site.shape[0])) for site in lgm.sites]
        try:
            components = find_components(lgm, groups, [[A(p) for A in lgm.maps] for p in points])
        except AugmentationError:
            names = [site.label for site in lgm.sites if site.shape[0] > 1]
            raise AugmentationError(
                f"{', '.join(names)}: expected each latent variable to enter one predictor of an "
                "observation, since through inducing points the approximation factorises over "
                "them, found some that enter, or are tied to, several; fit without inducing points"
            ) from None
        self._spans = np.cumsum([0, *(site.size for site in lgm.sites)])
        self._kept = KeptParts()
        self.parts: list[Part] = []
        for component in components:
            self.parts.append(self._part(component, points[0]))

    def _part(self, component: Component, point: Point) -> Part:
        lgm = self.lgm
        rows = np.concatenate([lgm.sites[s].row_numbers[p] for s, p in component.members])
        names = [lgm.blocks[b].name for b in component.blocks]
        own = tuple(i for i, prior in enumerate(self.priors) if prior.name in names)
        restricted = restricted_model(lgm, component, rows)
        restricted = replace(restricted, predictor_pullback=_Pullback(lgm, component, rows))
        model = SparseModel(restricted, [self.priors[i] for i in own], point)
        part = Part(component, model, own, len(self.parts))
        for number, other in enumerate(self.parts):
            if _are_twins(part, other, point):
                return replace(part, twin=number)
        return part

    @property
    def n_rows(self) -> int:
        """Number of predictors."""
        return self.lgm.n_rows

    @property
    def n_observations(self) -> int:
        """Number of observations."""
        return int(self._spans[-1])

    def _inducing(self, part: Part, inducing: Sequence[Array]) -> list[Array]:
        return [inducing[i] for i in part.processes]

    def size(self, inducing: Sequence[Array]) -> int:
        """Return the number of weights of all components."""
        return sum(part.model.size(self._inducing(part, inducing)) for part in self.parts)

    def entries(self, inducing: Sequence[Array]) -> int:
        """Return the number of entries of all designs of all the data."""
        return sum(part.model.entries(self._inducing(part, inducing)) for part in self.parts)

    def prior_posterior(self, inducing: Sequence[Array]) -> SeparatePosterior:
        """Return q(w) = p(w)."""
        sizes = [part.model.size(self._inducing(part, inducing)) for part in self.parts]
        total = sum(size**2 for size in sizes)
        return SeparatePosterior(np.zeros(total), np.zeros(sum(sizes)), sizes)

    def open_threads(self, count: int) -> int:
        """See :meth:`.SparseModel.open_threads`."""
        return min(part.model.open_threads(count) for part in self.parts)

    def _offset(self, point: Point) -> Array:
        return self._kept.get("offset", self.lgm.offset, point, lambda x: np.array(x, dtype=float))

    def prepare(self, point: Point, inducing: Sequence[Array]) -> None:
        """See :meth:`.SparseModel.prepare`."""
        self._offset(point)
        for number, part in enumerate(self.parts):
            if part.twin == number:
                part.model.prepare(point, self._inducing(part, inducing))

    def design(
        self,
        point: Point,
        inducing: Sequence[Array],
        rows: Index | slice,
    ) -> SeparateDesign:
        """Return the predictors of some observations; see :meth:`.SparseModel.design`."""
        bases, chosen = self._layout(rows)
        whole = self._offset(point)
        offset = np.concatenate(
            [
                site.select(whole)[:, own].ravel()
                for site, own in zip(self.lgm.sites, chosen, strict=True)
            ]
        )
        designs: list[SparseDesign] = []
        places: list[Index] = []
        for number, part in enumerate(self.parts):
            local, where, first = [], [], 0
            for s, p in part.component.members:
                own, size = chosen[s], self.lgm.sites[s].size
                local.append(first + own)
                where.append(bases[s] + p * own.size + np.arange(own.size))
                first += size
            places.append(np.concatenate(where))
            if part.twin < number:
                twin = designs[part.twin]
                designs.append(replace(twin, offset=offset[places[-1]], rows=np.concatenate(local)))
                continue
            some: Index | slice = np.concatenate(local)
            if isinstance(rows, slice):
                some = slice(None)
            designs.append(part.model.design(point, self._inducing(part, inducing), some))
        return SeparateDesign(designs, places, offset)

    def _layout(self, rows: Index | slice) -> tuple[list[int], list[Index]]:
        """Return where the predictors of each site begin, and which of its observations there are.

        Observations are in ascending order.
        """
        if isinstance(rows, slice):
            chosen = [np.arange(site.size) for site in self.lgm.sites]
        else:
            ends = np.searchsorted(rows, self._spans)
            chosen = [
                rows[start:stop] - first
                for start, stop, first in zip(ends[:-1], ends[1:], self._spans[:-1], strict=True)
            ]
        lengths = [
            site.shape[0] * own.size for site, own in zip(self.lgm.sites, chosen, strict=True)
        ]
        return [0, *np.cumsum(lengths)[:-1].tolist()], chosen


class _Pullback:
    """The derivatives of a component's predictors, through the graph of all."""

    def __init__(self, lgm: LatentGaussianModel, component: Component, rows: Index) -> None:
        self._lgm, self._component, self._rows = lgm, component, rows

    def __call__(
        self, point: Point, latents: Mapping[str, Array], weights: Array
    ) -> dict[str, Array]:
        lgm = self._lgm
        full = np.zeros(lgm.n_rows)
        full[self._rows] = weights
        whole = {block.name: np.zeros(block.total_size) for block in lgm.blocks}
        pairs = zip(self._component.blocks, self._component.latents, strict=True)
        for index, own in pairs:
            name = lgm.blocks[index].name
            whole[name][own] = latents[name]
        return lgm.predictor_pullback(point, whole, full)


def _are_twins(part: Part, other: Part, point: Point) -> bool:
    """Return whether two components have one Φ: those of copies of a process, and nothing else."""
    models = part.model, other.model
    if part.processes != other.processes or len(part.processes) != 1:
        return False
    if any(model.others or model.map_of(0).names for model in models):
        return False
    first, second = (model.map_of(0)(point) for model in models)
    assert isinstance(first, RowSelection)  # which SparseModel has seen to
    assert isinstance(second, RowSelection)
    if first.coef is not None or second.coef is not None:
        return False
    return np.array_equal(first.index, second.index)


def sparse_model(problem: FitProblem) -> SparseModel | SeparateModel:
    """Return the model through inducing points, in components where there are several predictors.

    Raises
    ------
    AugmentationError
        See :class:`.SparseModel` and :class:`.SeparateModel`.
    """
    assert problem.sparse is not None
    lgm, priors = problem.model, problem.sparse.priors
    if lgm.is_of_one_predictor:
        return SparseModel(lgm, priors, problem.point)
    return SeparateModel(lgm, priors, [problem.point, *problem.probes])
