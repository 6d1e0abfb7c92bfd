"""The predictor of an observed variable at new inputs of a Gaussian process.

The old predictors are η_i = coef · f[i] + rest_i. If coef and rest are the same for all
observations (an intercept, an average of other latents), a new predictor is η* = coef · f* + rest.
Otherwise the model does not determine them at a new input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from pymc.model import Model

from pymc_augconj.errors import AugmentationError
from pymc_augconj.likelihoods.base import DensityLikelihood
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap, RowSelection
from pymc_augconj.model import LatentGaussianModel, Point, Site
from pymc_augconj.recognition.recognizer import read_model

__all__ = ["NewPredictor", "common_parameters", "constant_row", "is_constant", "read_predictor"]

# Rounding, relative to the largest of the numbers that a value was computed from.
_ROUNDING = 256.0 * np.finfo(float).eps


@dataclass(frozen=True)
class NewPredictor:
    """The predictor at new inputs.

    Attributes
    ----------
    lgm : LatentGaussianModel
    site : Site
    index : int
        Position of the process among the latent blocks.
    overrides : dict
        Parameters of the likelihood given by the caller, of shape () or (P,).
    start : mapping
        PyMC's initial point.
    new_offset : ndarray, shape (P,), optional
        The predictor's offset at the new inputs, given by the caller.
    """

    lgm: LatentGaussianModel
    site: Site
    index: int
    overrides: dict[str, np.ndarray]
    start: Point
    new_offset: np.ndarray | None = None

    @property
    def likelihood(self) -> DensityLikelihood:
        """The site's likelihood, which has one predictor."""
        assert isinstance(self.site.likelihood, DensityLikelihood)
        return self.site.likelihood

    def _selection(self, point: Point) -> RowSelection:
        """Return the map of the process to the site's rows."""
        A = self.lgm.maps[self.index](point).rows(self._rows)
        if isinstance(A, DenseMap):
            A = _as_selection(A)
        if not isinstance(A, RowSelection):
            raise self._refuse(f"{self.name!r} enters it through a matrix, not entry by entry")
        return A

    def read_process(self, point: Point) -> tuple[float, int]:
        """Return coef, and the entry of f in the first row."""
        A = self._selection(point)
        coef = np.ones(A.index.size) if A.coef is None else A.coef
        if not is_constant(coef):
            raise self._refuse(f"the coefficient of {self.name!r} differs between observations")
        return float(coef[0]), int(A.index[0])

    def others(
        self, point: Point, through: Mapping[int, np.ndarray] | None = None
    ) -> dict[int, np.ndarray]:
        """Return the row, common to all observations, of every other block's map.

        Effects through the process's own mean are excluded; ``through`` has them by block, as
        matrices for the old values.
        """
        found = {}
        coef, _ = self.read_process(point)
        index = self._selection(point).index
        for i, read in enumerate(self.lgm.maps):
            if i == self.index:
                continue
            A = read(point).rows(self._rows)
            if through is not None and i in through:
                direct, own = A.dense(), coef * through[i][index]
                cancels = np.abs(direct - own) <= _ROUNDING * np.abs(own)
                A = DenseMap(np.where(cancels, 0.0, direct - own))
            row = constant_row(A)
            if row is None:
                block = self.lgm.blocks[i]
                why = f"what {block.name!r} adds to it differs between observations"
                if block.form.startswith("GP"):
                    why += (
                        "; to predict both processes at once, give their sum one prior, "
                        "(gp1 + gp2).prior(…)"
                    )
                raise self._refuse(why)
            found[i] = row
        return found

    def other_entries(self) -> list[str]:
        """Return the entries of the point of those other latents whose rows are not zero."""
        others = self.others(self.start)
        return [self.lgm.blocks[i].value_name for i, row in others.items() if row.any()]

    def offset(self, point: Point, mean_old: np.ndarray) -> float | np.ndarray:
        """Return the part of rest without latents; ``mean_old`` is m of f = m + u.

        One number, or the caller's offset for each new input.
        """
        if self.new_offset is not None:
            return self.new_offset
        A = self._selection(point)
        coef = 1.0 if A.coef is None else A.coef
        offset, mean = np.asarray(self.lgm.offset(point))[self._rows], coef * mean_old[A.index]
        values = offset - mean
        if not is_constant(values, np.abs([offset, mean]).max()):
            raise self._refuse(
                "a term besides the process differs between observations; pass its values at the "
                "new inputs as offset=… if it is data (such as the logarithm of an exposure)"
            )
        return float(values[0])

    def params(self, point: Point) -> dict[str, np.ndarray]:
        """Return the likelihood's parameters, each a scalar array.

        For those in :attr:`varying` it is the value at the first new input.
        """
        return common_parameters(self.site, point, self.overrides)

    @property
    def varying(self) -> dict[str, np.ndarray]:
        """The parameters that were given for each new input, of shape (P,)."""
        return {name: value for name, value in self.overrides.items() if value.ndim}

    @property
    def name(self) -> str:
        """The process."""
        return self.lgm.blocks[self.index].name

    @property
    def _rows(self) -> np.ndarray:
        rows = self.site.rows
        return np.arange(rows.start, rows.stop)

    def _refuse(self, why: str) -> AugmentationError:
        return AugmentationError(
            f"the model does not determine the predictor of {self.site.name!r} at new inputs: "
            f"{why}; predict kind='f' and add the other terms"
        )


def read_predictor(
    model: Model,
    gp: Any,
    observed: str | None,
    overrides: Mapping[str, Any] | None,
    new_offset: np.ndarray | None = None,
) -> NewPredictor:
    """Recognise ``model`` and find the observed variable that depends on ``gp``.

    Raises
    ------
    AugmentationError
        If there is none, or several and ``observed`` names none of them.
    """
    recognition = read_model(model)
    lgm, name = recognition.model, gp.f.name
    names = [block.name for block in lgm.blocks]
    if name not in names:
        raise AugmentationError(
            f"gp: expected one of the Gaussian latents {names} of this model, got {name!r}; use "
            "the gp of the fitted model"
        )
    index = names.index(name)
    at = lgm.maps[index](recognition.start)
    sites = [
        site
        for site in lgm.sites
        if isinstance(site.likelihood, DensityLikelihood) and _touches(at, site.rows)
    ]
    if observed is not None:
        sites = [site for site in sites if site.name == observed]
    else:
        # Potentials have no observations.
        sites = [site for site in sites if site.likelihood.has_observations] or sites
    several = [
        site.name
        for site in lgm.sites
        if site.likelihood.n_predictors > 1
        and observed in (None, site.name)
        and _touches(at, site.rows)
    ]
    if not sites and several:
        raise AugmentationError(
            f"gp: expected all the processes in the predictors of {several[0]!r}, which has "
            f"several, got {name!r} alone; write gp=[…] with each of them"
        )
    if len(sites) != 1:
        raise AugmentationError(
            f"observed: expected one observed variable that depends on {name!r} through a single "
            f"predictor, found {[site.name for site in sites]}"
        )
    given = {key: np.asarray(value, dtype=float) for key, value in (overrides or {}).items()}
    unknown = [key for key in given if key not in sites[0].params(recognition.start)]
    if unknown:
        raise AugmentationError(
            f"params: expected parameters of {sites[0].likelihood.name} among "
            f"{list(sites[0].params(recognition.start))}, got {unknown}"
        )
    return NewPredictor(lgm, sites[0], index, given, recognition.start, new_offset)


def common_parameters(
    site: Site, point: Point, overrides: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return a likelihood's parameters at new inputs, each a scalar array.

    Of one that ``overrides`` has for each new input it is the value at the first.
    """
    found = {}
    for name, value in site.params(point).items():
        value = overrides.get(name, np.asarray(value, dtype=float))
        if name in overrides and value.ndim:
            value = value[:1]  # replaced by those of each input
        if not is_constant(np.ravel(value)):
            raise AugmentationError(
                f"the parameter {name!r} of {site.name!r} differs between observations; "
                f"pass its value at the new inputs as params={{{name!r}: …}}"
            )
        found[name] = np.array(np.ravel(value)[0], dtype=float)
    return found


def _touches(A: LinearMap, rows: slice) -> bool:
    if isinstance(A, DenseMap):
        return bool(np.any(A.dense()[rows]))
    return A.coef is None or bool(np.any(A.coef[rows]))


def _as_selection(A: DenseMap) -> LinearMap:
    """Return rows with one entry each as such: another site's rows may have made a map dense."""
    dense = A.dense()
    index = np.argmax(dense != 0.0, axis=1)
    coef = dense[np.arange(len(dense)), index]
    one_each = np.all(np.count_nonzero(dense, axis=1) == 1)
    return RowSelection(index, None if np.all(coef == 1.0) else coef, A.size) if one_each else A


def constant_row(A: LinearMap) -> np.ndarray | None:
    """Return the row that all rows of A equal, or None."""
    if isinstance(A, DenseMap):
        dense = A.dense()
        constant = all(is_constant(column) for column in dense.T)
        return np.array(dense[0]) if constant else None
    coef = np.ones(A.index.size) if A.coef is None else A.coef
    if not (is_constant(coef) and (np.ptp(A.index) == 0 or not coef.any())):
        return None
    row = np.zeros(A.size)
    row[A.index[0]] = coef[0]
    return row


def is_constant(values: np.ndarray, magnitude: float | None = None) -> bool:
    """Return whether values are equal up to rounding, relative to ``magnitude``."""
    # Bounds may be infinite, for which a tolerance has no meaning.
    if not np.isfinite(values).all():
        return bool(np.all(values == values.flat[0]))
    magnitude = np.abs(values).max() if magnitude is None else magnitude
    return bool(np.ptp(values) <= _ROUNDING * magnitude)
