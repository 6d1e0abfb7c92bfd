"""The predictors of an observed variable at new inputs of Gaussian processes.

Each predictor is η_p = offset_p + Σ coef_pk f_k[i] + rest_p, a sum over the given processes or
their outputs. If offset, coefficients and rest (an intercept, an average of other latents) are the
same for all observations, it is offset_p + Σ coef_pk f*_k + rest_p at a new input. Otherwise the
model does not determine it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pymc.model import Model
from pytensor.graph.traversal import ancestors

from pymc_augconj.errors import AugmentationError
from pymc_augconj.likelihoods.base import are_vectors
from pymc_augconj.likelihoods.contract import MultiLikelihood
from pymc_augconj.likelihoods.powers_of_sigmoid import NegativeBinomial
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap, RowSelection
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.point import Argument, Point
from pymc_augconj.recognition.graph.interpreter import op_name
from pymc_augconj.recognition.recognizer import Recognition

# Rounding, relative to the largest of the numbers that a value was computed from.
_ROUNDING = 256.0 * np.finfo(float).eps


@dataclass(frozen=True)
class _Through:
    """One process in one predictor: a coefficient of each output; (output, entry) a row."""

    coef: np.ndarray
    entries: np.ndarray


@dataclass(frozen=True)
class NewPredictor:
    """One predictor at new inputs: a sum of processes, an offset and rows @ innovations.

    ``through`` has the coefficients of the processes, by name; ``offset`` is of shape () or (P,);
    ``rows`` has the row of every other block that enters it, by the block's position.
    """

    through: dict[str, _Through]
    offset: float | np.ndarray
    rows: dict[int, np.ndarray]


@dataclass(frozen=True)
class NewPredictors:
    """The predictors at new inputs.

    ``overrides`` are parameters of the likelihood given by the caller, of shape () or (P,), and
    ``new_offset`` the predictors' offset at the new inputs, (P,); ``start`` is PyMC's initial
    point.
    """

    lgm: LatentGaussianModel
    site: Site
    processes: tuple[str, ...]
    overrides: dict[str, np.ndarray]
    start: Point
    new_offset: np.ndarray | None = None
    #: Whether it is a negative binomial written by its mean, whose predictor is log μ − log α.
    is_log_mean: bool = False

    @property
    def likelihood(self) -> MultiLikelihood:
        return self.site.likelihood

    def other_entries(self) -> list[str]:
        """Return the variables of a posterior of the other latents that enter some predictor."""
        return [
            block.drawn_name
            for i, block in enumerate(self.lgm.blocks)
            if block.name not in self.processes and _enters(self.lgm, i, self.site, self.start)
        ]

    def params(self, point: Point) -> dict[str, np.ndarray]:
        """Return the likelihood's parameters, scalar arrays; (P,) if given for each new input."""
        found = {}
        for name, value in self.site.params(point).items():
            if name in self.overrides:
                found[name] = self.overrides[name]
                continue
            if not _is_constant(np.ravel(value)):
                raise AugmentationError(
                    f"the parameter {name!r} of {self.site.name!r} differs between observations; "
                    f"pass its value at the new inputs as params={{{name!r}: …}}"
                )
            found[name] = np.array(np.ravel(value)[0], dtype=float)
        return found

    def at(
        self, point: Point, means: Mapping[str, tuple[np.ndarray, Mapping[int, np.ndarray]]]
    ) -> list[NewPredictor]:
        """Return every predictor.

        ``means`` has the processes' prior means at their own inputs, m of f = m + u: a constant,
        and the matrices of innovations of other blocks, by position. Rows of these blocks omit
        effects through m.
        """
        found = []
        for p, numbers in enumerate(self.site.row_numbers):
            through = {name: self._through(name, p, point) for name in self.processes}
            rows: dict[int, np.ndarray] = {}
            for i, (block, read) in enumerate(zip(self.lgm.blocks, self.lgm.maps, strict=True)):
                if block.name in self.processes:
                    continue
                A = read(point).rows(numbers)
                moved = [(through[name], own[i]) for name, (_, own) in means.items() if i in own]
                if moved:
                    parts = [np.einsum("k,nkj->nj", t.coef, own[t.entries]) for t, own in moved]
                    by_mean, direct = np.sum(parts, axis=0), A.dense()
                    cancels = np.abs(direct - by_mean) <= _ROUNDING * np.abs(by_mean)
                    A = DenseMap(np.where(cancels, 0.0, direct - by_mean))
                row = _constant_row(A)
                if row is None:
                    raise self._refuse(p, self._differs(i))
                if row.any():
                    rows[i] = row
            offset: float | np.ndarray
            if self.new_offset is not None:
                offset = self.new_offset + self._of_prior_means(rows, point)
            else:
                offset = self._offset(p, point, through, {k: m for k, (m, _) in means.items()})
            if self.is_log_mean and (self.new_offset is not None or "alpha" in self.overrides):
                offset = offset - np.log(self.params(point)["alpha"])
                if self.new_offset is None:  # which has that of the observations
                    offset = offset + np.log(np.ravel(self.site.params(point)["alpha"])[0])
            found.append(NewPredictor(through, offset, rows))
        return found

    def _through(self, name: str, p: int, point: Point) -> _Through:
        index = [block.name for block in self.lgm.blocks].index(name)
        block, rows = self.lgm.blocks[index], np.arange(self.site.size)
        A = self.lgm.maps[index](point).rows(self.site.row_numbers[p])
        if isinstance(A, RowSelection):
            # Without the matrix, most of whose entries are zeros.
            output, entry = np.divmod(A.index, block.size)
            coef = np.zeros((self.site.size, block.copies))
            coef[rows, output] = 1.0 if A.coef is None else A.coef
            entries = np.zeros((self.site.size, block.copies), dtype=np.intp)
            entries[rows, output] = entry
        else:
            by_output = np.asarray(A.dense()).reshape(self.site.size, block.copies, block.size)
            if (np.count_nonzero(by_output, axis=2) > 1).any():
                raise self._refuse(p, f"{name!r} enters it through a matrix, not entry by entry")
            coef, entries = by_output.sum(axis=2), np.abs(by_output).argmax(axis=2)
        if not all(_is_constant(column) for column in coef.T):
            raise self._refuse(p, f"the coefficient of {name!r} differs between observations")
        return _Through(coef[0], entries)

    def _offset(
        self,
        p: int,
        point: Point,
        through: Mapping[str, _Through],
        mean_old: Mapping[str, np.ndarray],
    ) -> float:
        """Return the part of rest without innovations."""
        offset = np.asarray(self.lgm.offset(point))[self.site.row_numbers[p]]
        parts = [mean_old[name][t.entries] @ t.coef for name, t in through.items()]
        means = np.sum(parts, axis=0)
        if not _is_constant(offset - means, np.abs([offset, means]).max()):
            if self.site.shape[0] > 1:
                why = "a term besides the processes differs between observations"
                raise self._refuse(p, why)
            raise self._refuse(
                p,
                "a term besides the process differs between observations; pass its values at the "
                "new inputs as offset=… if it is data (such as the logarithm of an exposure)",
            )
        return float((offset - means)[0])

    def _of_prior_means(self, rows: Mapping[int, np.ndarray], point: Point) -> float:
        """Return the contribution of blocks whose innovations are zero.

        Values of zero, which contribute nothing, have minus their prior means as innovations.
        """
        blocks = self.lgm.blocks
        zeros = {Argument("value", b.name): np.zeros(b.total_size) for b in blocks}
        pairs = [(row, blocks[i].mean) for i, row in rows.items()]
        return sum(float(row @ mean({**point, **zeros})) for row, mean in pairs if mean is not None)

    def _differs(self, i: int) -> str:
        block = self.lgm.blocks[i]
        why = f"the contribution of {block.name!r} differs between observations"
        if self.site.shape[0] > 1:
            return f"{why} (if it is a process, pass it too: gp=[…])"
        if block.form.startswith("GP"):
            why += (
                "; to predict both processes at once, give their sum one prior, "
                "(gp1 + gp2).prior(…)"
            )
        return why

    def _refuse(self, p: int, why: str) -> AugmentationError:
        which = f"predictor {p + 1}" if self.site.shape[0] > 1 else "the predictor"
        return AugmentationError(
            f"the model does not determine {which} of {self.site.name!r} at new inputs: "
            f"{why}; predict kind='f' and add the other terms"
        )


def read_predictors(
    recognition: Recognition,
    model: Model,
    processes: Sequence[str],
    observed: str | None,
    overrides: Mapping[str, np.ndarray],
    new_offset: np.ndarray | None = None,
    *,
    several: bool,
) -> NewPredictors:
    """Return the predictors of the observed variable of ``model`` that depends on ``processes``.

    ``several`` says whether it has several predictors, or one. Raises AugmentationError if there is
    no such variable, or several and ``observed`` names none of them.
    """
    lgm = recognition.model
    names = [block.name for block in lgm.blocks]
    unknown = [name for name in processes if name not in names]
    if unknown:
        raise AugmentationError(
            f"gp: expected one of the Gaussian latents {names} of this model, got {unknown[0]!r}; "
            "use the gp of the fitted model"
        )
    if several:
        site = _site_of_several(lgm, processes, observed)
    else:
        site = _site_of_one(lgm, processes[0], observed, recognition.start)
    known = site.params(recognition.start)
    if are_vectors(known):
        raise AugmentationError(
            f"{site.label} ({site.likelihood.name}): expected observations that are numbers, found "
            "vectors; predict each process (kind='f'), or draw y by pm.sample_posterior_predictive"
        )
    wrong = [name for name in overrides if name not in known]
    if wrong:
        raise AugmentationError(
            f"params: expected parameters of {site.likelihood.name} among {[*known]}, got {wrong}"
        )
    by_mean = _is_by_mean(model, site.name)
    if by_mean and new_offset is not None and site.likelihood.name != NegativeBinomial.name:
        raise AugmentationError(
            f"offset: expected none for a density around a negative binomial, as {site.label} "
            f"({site.likelihood.name}) has it, whose predictor is no log mean; predict kind='f' "
            "and add the other terms"
        )
    if new_offset is not None:
        _refuse_hyperparameters(lgm, site, recognition.start, by_mean=by_mean)
    return NewPredictors(
        lgm, site, tuple(processes), dict(overrides), recognition.start, new_offset, by_mean
    )


def _refuse_hyperparameters(
    lgm: LatentGaussianModel, site: Site, start: Point, *, by_mean: bool
) -> None:
    """Refuse an offset in place of a term that depends on a hyperparameter.

    Terms of prior means, and log α of a negative binomial, are known apart from it.
    """
    known = {name for b in lgm.blocks if b.mean is not None for name in b.mean.names}
    known.update(site.params.names if by_mean else ())
    before = np.asarray(lgm.offset(start))[site.row_numbers]
    for h in lgm.hyperparameters:
        if h.value_name in lgm.offset.names and h.value_name not in known:
            other = {**start, h.value_name: start[h.value_name] + 0.25}
            if np.any(np.asarray(lgm.offset(other))[site.row_numbers] != before):
                raise AugmentationError(
                    f"offset: expected a predictor of latents and data alone, found a term of "
                    f"{h.name!r} in that of {site.label}, which the offset would replace; predict "
                    "kind='f' and add the other terms"
                )


def _is_by_mean(model: Model, name: str) -> bool:
    """Return whether a variable is a negative binomial of a mean, p = σ(log α − log μ)."""
    for v in ancestors([model[name]] if name in model.named_vars else []):
        if op_name(v) == "NegBinomialRV":
            p = v.owner.op.dist_params(v.owner)[1]
            odds = p.owner.inputs[0] if op_name(p) == "Sigmoid" else p
            return op_name(odds) == "Sub" and op_name(odds.owner.inputs[1]) == "Log"
    return False


def _site_of_one(lgm: LatentGaussianModel, name: str, observed: str | None, start: Point) -> Site:
    index = [block.name for block in lgm.blocks].index(name)
    known = [site for site in lgm.sites if observed in (None, site.name)]
    touched = [site for site in known if _enters(lgm, index, site, start)]
    sites = [site for site in touched if site.shape[0] == 1]
    if observed is None:
        # Potentials have no observations.
        sites = [site for site in sites if site.has_observations] or sites
    if not sites and touched:
        raise AugmentationError(
            f"gp: expected all the processes in the predictors of {touched[0].name!r}, which has "
            f"several, got {name!r} alone; write gp=[…] with each of them"
        )
    if len(sites) != 1:
        raise AugmentationError(
            f"observed: expected one observed variable that depends on {name!r} through a single "
            f"predictor, found {[site.name for site in sites]}"
        )
    return sites[0]


def _site_of_several(lgm: LatentGaussianModel, names: Sequence[str], observed: str | None) -> Site:
    known = [site for site in lgm.sites if observed in (None, site.name)]
    sites = [site for site in known if site.shape[0] > 1]
    if len(sites) != 1:
        found = [site.name for site in sites]
        raise AugmentationError(
            f"observed: expected a process of one output, or one observed variable with several "
            f"predictors, for kind='y' with gp={list(names)}, found {found}; "
            "name it (observed=…), or predict kind='f' and combine processes as the model does"
        )
    return sites[0]


def _enters(lgm: LatentGaussianModel, i: int, site: Site, start: Point) -> bool:
    """Return whether block ``i`` enters a predictor of a site."""
    moved = dict(start)
    for hyper in lgm.hyperparameters:
        # A coefficient may be zero at the start, as the mean of Normal(0, 1) is.
        value = np.asarray(start[hyper.value_name])
        moved[hyper.value_name] = value + 1.0 if value.dtype.kind == "f" else value
    rows = site.row_numbers.ravel()
    return any(lgm.maps[i](at).rows(rows).largest_entries().any() for at in (start, moved))


def _constant_row(A: LinearMap) -> np.ndarray | None:
    """Return the row that all rows of A equal, or None."""
    if isinstance(A, DenseMap):
        dense = A.dense()
        constant = all(_is_constant(column) for column in dense.T)
        return np.array(dense[0]) if constant else None
    coef = np.ones(A.index.size) if A.coef is None else A.coef
    if not (_is_constant(coef) and (np.ptp(A.index) == 0 or not coef.any())):
        return None
    row = np.zeros(A.size)
    row[A.index[0]] = coef[0]
    return row


def _is_constant(values: np.ndarray, magnitude: float | None = None) -> bool:
    """Return whether values are equal up to rounding, relative to ``magnitude``."""
    # Bounds may be infinite, for which a tolerance has no meaning.
    if not np.isfinite(values).all():
        return bool(np.all(values == values.flat[0]))
    magnitude = np.abs(values).max() if magnitude is None else magnitude
    return bool(np.ptp(values) <= _ROUNDING * magnitude)
