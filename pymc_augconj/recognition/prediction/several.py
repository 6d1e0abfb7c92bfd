"""Several predictors of an observed variable at new inputs, from posterior draws.

Each predictor is η_p = offset_p + Σ coef_pk f_k[i] + rest_p, a sum over the processes that are
given, or their outputs, with coefficients and a rest that are the same for all observations: at a
new input it is offset_p + Σ coef_pk f*_k + rest_p.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pymc.model import Model

from pymc_augconj.errors import AugmentationError
from pymc_augconj.likelihoods.several import MultiDensity
from pymc_augconj.linalg.linear_map import RowSelection
from pymc_augconj.model import LatentBlock, LatentGaussianModel, Point, Site

from .draws import equal_draws, innovation_of_draw, point_of_draw
from .new_inputs import common_parameters, constant_row, is_constant

__all__ = ["NewProcess", "SeveralNewPredictors", "read_several_predictors"]


@dataclass(frozen=True)
class NewProcess:
    """Draws of a process at new inputs.

    Attributes
    ----------
    name : str
    f_new : ndarray, shape (S, K, P)
        Of its K outputs at the P new inputs.
    mean_old : ndarray, shape (S, n)
        Its prior mean at the old inputs.
    """

    name: str
    f_new: np.ndarray
    mean_old: np.ndarray


@dataclass(frozen=True)
class _Through:
    """How one process enters one predictor: a coefficient of each output; (output, entry) a row."""

    coef: np.ndarray
    entries: np.ndarray


@dataclass(frozen=True)
class SeveralNewPredictors:
    """Several predictors at new inputs.

    Attributes
    ----------
    lgm : LatentGaussianModel
    site : Site
    processes : tuple of str
    overrides : dict
        Parameters of the likelihood given by the caller, of shape () or (P,).
    start : mapping
        PyMC's initial point.
    """

    lgm: LatentGaussianModel
    site: Site
    processes: tuple[str, ...]
    overrides: dict[str, np.ndarray]
    start: Point

    @property
    def likelihood(self) -> MultiDensity:
        """The site's likelihood."""
        assert isinstance(self.site.likelihood, MultiDensity)
        return self.site.likelihood

    @property
    def varying(self) -> dict[str, np.ndarray]:
        """The parameters that were given for each new input, of shape (P,)."""
        return {name: value for name, value in self.overrides.items() if value.ndim}

    @property
    def others(self) -> list[int]:
        """The blocks that are none of the processes and enter some predictor."""
        return [
            i
            for i, (block, read) in enumerate(zip(self.lgm.blocks, self.lgm.maps, strict=True))
            if block.name not in self.processes
            and read(self.start).rows(self.site.row_numbers.ravel()).largest_entries().any()
        ]

    def _refuse(self, p: int, why: str) -> AugmentationError:
        return AugmentationError(
            f"the model does not determine predictor {p + 1} of {self.site.name!r} at new inputs: "
            f"{why}; predict kind='f' and add the other terms"
        )

    def _through(self, name: str, p: int, point: Point) -> _Through:
        index = [block.name for block in self.lgm.blocks].index(name)
        block = self.lgm.blocks[index]
        A = self.lgm.maps[index](point).rows(self.site.row_numbers[p])
        if isinstance(A, RowSelection):
            return self._through_selection(block, A, name, p)
        by_output = np.asarray(A.dense()).reshape(self.site.size, block.copies, block.size)
        sums = by_output.sum(axis=2)
        if (np.count_nonzero(by_output, axis=2) > 1).any():
            raise self._refuse(p, f"{name!r} enters it through a matrix, not entry by entry")
        if not all(is_constant(column) for column in sums.T):
            raise self._refuse(p, f"the coefficient of {name!r} differs between observations")
        return _Through(sums[0], np.abs(by_output).argmax(axis=2))

    def _through_selection(
        self, block: LatentBlock, A: RowSelection, name: str, p: int
    ) -> _Through:
        """Return the same without the matrix, most of whose entries are zeros."""
        output, entry = np.divmod(A.index, block.size)
        coef = np.zeros((self.site.size, block.copies))
        rows = np.arange(self.site.size)
        coef[rows, output] = 1.0 if A.coef is None else A.coef
        if not all(is_constant(column) for column in coef.T):
            raise self._refuse(p, f"the coefficient of {name!r} differs between observations")
        entries = np.zeros((self.site.size, block.copies), dtype=np.intp)
        entries[rows, output] = entry
        return _Through(coef[0], entries)

    def at(
        self, point: Point, mean_old: Mapping[str, np.ndarray]
    ) -> tuple[list[dict[str, _Through]], list[float], list[dict[int, np.ndarray]]]:
        """Return of each predictor the coefficients, the offset, and the rows of other blocks."""
        through, offsets, rows = [], [], []
        whole = np.asarray(self.lgm.offset(point))
        for p, own in enumerate(self.site.row_numbers):
            found = {name: self._through(name, p, point) for name in self.processes}
            offset = whole[own]
            parts = [
                t.coef * mean_old[name][t.entries] for name, t in found.items()
            ]  # of each output
            means = np.sum([part.sum(axis=1) for part in parts], axis=0)
            magnitude = np.abs(np.stack([offset, means])).max()
            if not is_constant(offset - means, magnitude):
                raise self._refuse(p, "a term besides the processes differs between observations")
            others = {}
            for i in self.others:
                row = constant_row(self.lgm.maps[i](point).rows(own))
                if row is None:
                    name = self.lgm.blocks[i].name
                    raise self._refuse(
                        p, f"what {name!r} adds to it differs between observations (if it is a "
                        "process, pass it too: gp=[…])"
                    )  # fmt: skip
                others[i] = row
            through.append(found)
            offsets.append(float((offset - means)[0]))
            rows.append(others)
        return through, offsets, rows

    def of_draws(
        self, model: Model, draws: Mapping[str, np.ndarray], processes: Sequence[NewProcess]
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the predictors for every draw, and the likelihood's parameters.

        Parameters
        ----------
        model : pymc.Model
        draws : mapping
            Draws of the hyperparameters and of the other latents, on the first axis.
        processes : sequence of NewProcess

        Returns
        -------
        eta : ndarray, shape (P, S, new inputs)
        params : dict
            Each of shape (S, 1).
        """
        hyper = [h.name for h in self.lgm.hyperparameters]
        size, _, width = processes[0].f_new.shape
        eta = np.zeros((self.likelihood.n_predictors, size, width))
        params: dict[str, np.ndarray] = {}
        groups = equal_draws(draws, hyper) if hyper else [np.arange(size)]
        to_point = point_of_draw(model, self.lgm, self.start, draws)
        for members in groups:
            first = members[0]
            point = to_point(first)
            means = {process.name: process.mean_old[first] for process in processes}
            through, offsets, rows = self.at(point, means)
            for p, (found, offset, others) in enumerate(zip(through, offsets, rows, strict=True)):
                eta[p, members] += offset
                for process in processes:
                    t = found[process.name]
                    eta[p, members] += np.einsum("k,skn->sn", t.coef, process.f_new[members])
                    # The mean may depend on latents, and differ where hyperparameters do not.
                    moved = process.mean_old[first] - process.mean_old[members]
                    eta[p, members] += (moved[:, t.entries[0]] @ t.coef)[:, None]
                for i, row in others.items():
                    for s in members:
                        block = self.lgm.blocks[i]
                        eta[p, s] += row @ innovation_of_draw(block, self.lgm, point, draws, int(s))
            own = common_parameters(self.site, point, self.overrides)
            for name, value in own.items():
                params.setdefault(name, np.empty((size, 1)))[members] = value
        return eta, params


def read_several_predictors(
    lgm: LatentGaussianModel,
    start: Point,
    site: Site,
    processes: Sequence[str],
    overrides: Mapping[str, np.ndarray],
) -> SeveralNewPredictors:
    """Return the predictors of an observed variable at new inputs of processes.

    Raises
    ------
    AugmentationError
        If one of these is no latent of the model.
    """
    names = [block.name for block in lgm.blocks]
    unknown = [name for name in processes if name not in names]
    if unknown:
        raise AugmentationError(
            f"gp: expected some of the Gaussian latents {names} of this model, got {unknown}; use "
            "the processes of the fitted model"
        )
    return SeveralNewPredictors(lgm, site, tuple(processes), dict(overrides), start)
