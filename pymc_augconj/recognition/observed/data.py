"""Checks of data and inputs, when a model is recognised and when its data change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pymc.distributions.censored import CensoredRV
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable

from pymc_augconj.errors import DataError
from pymc_augconj.likelihoods.base import Density
from pymc_augconj.point import Point
from pymc_augconj.recognition.graph.affine import value_leaves
from pymc_augconj.recognition.graph.functions import NamedValues, PointFunction, SharedData
from pymc_augconj.recognition.latents.innovations import GaussianVariable

from .observed_graph import ObservedGraph


class Inputs:
    """The input arrays of a model's covariances and predictors."""

    def __init__(
        self, latents: Sequence[GaussianVariable], matched: Sequence[ObservedGraph]
    ) -> None:
        leaves: list[tuple[Variable, str]] = []
        self._bounds: set[Variable] = set()
        for latent in latents:
            what = f"an input of the covariance of {latent.name!r}"
            # PyMC's own constants in a log density may be NaN.
            graphs = [latent.scale] if latent.precision is None else latent.rv.owner.inputs
            leaves += [(leaf, what) for leaf in value_leaves(graphs)]
        for observed in matched:
            if observed.density is None:
                what = f"an input of the distribution of {observed.variable.name!r}"
                inputs, op = observed.variable.owner.inputs, observed.variable.owner.op
                bounds = inputs[1:3] if isinstance(op, CensoredRV) else []
            else:
                what = f"an input of the {observed.label}"
                # Any of them may be a bound.
                inputs = bounds = [observed.density]
            leaves += [(leaf, what) for leaf in value_leaves(inputs)]
            # Infinite where an observation is not censored.
            self._bounds.update(value_leaves(bounds))
        self._arrays = [(leaf, what) for leaf, what in leaves if _is_array(leaf)]
        self.shared = tuple(leaf for leaf, _ in self._arrays if isinstance(leaf, SharedVariable))
        self._shapes = [_value(variable).shape for variable in self.shared]

    def check(self) -> None:
        """Raise DataError if shapes have changed, or values are not finite."""
        for variable, expected in zip(self.shared, self._shapes, strict=True):
            found = _value(variable).shape
            if found != expected:
                raise DataError(
                    f"data {variable.name!r}: expected shape {expected}, as when the model was "
                    f"recognised, found {found}; recognise the model again (build the step again) "
                    "after pm.set_data"
                )
        for leaf, what in self._arrays:
            value = _value(leaf)
            if leaf in self._bounds and value.dtype.kind == "f":
                value = value[~np.isinf(value)]
            _refuse_not_finite(value, f"{what} ({leaf.name!r})" if leaf.name else what)


def _value(leaf: Variable) -> np.ndarray:
    return leaf.data if isinstance(leaf, Constant) else leaf.get_value(borrow=True)


def _is_array(leaf: Variable) -> bool:
    return isinstance(leaf, Constant | SharedVariable) and isinstance(_value(leaf), np.ndarray)


def _refuse_not_finite(value: np.ndarray, what: str) -> None:
    if isinstance(value, np.ma.MaskedArray) and value.dtype.kind == "f":
        value = value.filled(np.nan)  # pm.set_data masks NaN
    # Infinite scalars are bounds (of a clip, say), and belong to PyMC's own graphs.
    if value.ndim == 0 or value.dtype.kind != "f":
        return
    if np.isfinite(value.sum()):  # the quick way for large arrays
        return
    bad = np.argwhere(np.isnan(value) | (np.isinf(value) & (value.size > 1)))
    if bad.size:
        where = tuple(int(i) for i in bad[0])
        raise DataError(
            f"{what} has the value {value[where]} at position {where}: expected finite numbers; "
            "drop or impute the rows with missing inputs"
        )


class Observations:
    """The observations of one site, as a function of the point that does not depend on it.

    It evaluates them when shared data have changed, and checks them, ``inputs`` and the
    parameters at ``point``. All consumers share one array, which they must not change.
    """

    names: tuple[str, ...] = ()

    def __init__(
        self,
        label: str,
        size: int,
        likelihood: Density,
        values: PointFunction,
        params: NamedValues,
        point: Point,
        inputs: Inputs,
    ) -> None:
        self._label, self._size, self._likelihood = label, size, likelihood
        self._values, self._params, self._point = values, params, point
        self._inputs = inputs
        self._known: tuple[np.ndarray, SharedData] | None = None

    def __call__(self, point: Point) -> np.ndarray:
        if self._known is None or self._known[1].changed():
            y = np.array(np.ma.filled(self._values({}), np.nan))  # pm.set_data masks NaN
            self._check(y)
            shared = (*self._values.shared, *self._params.shared, *self._inputs.shared)
            self._known = y, SharedData(shared)
        return self._known[0]

    def _check(self, y: np.ndarray) -> None:
        if y.shape != (self._size,):
            raise DataError(
                f"{self._label}: expected {self._size} observations, as when "
                f"the model was recognised, found {y.size}; recognise the model again (build the "
                "step again) after pm.set_data"
            )
        self._inputs.check()
        bad = np.flatnonzero(~np.isfinite(y))
        if bad.size:
            raise DataError(
                f"{self._label} has the value {y[bad[0]]} at position "
                f"{bad[0]}: expected finite numbers; pass a masked array to have PyMC impute "
                "missing observations"
            )
        sentence = self._likelihood.check(y, self._params(self._point))
        if sentence is not None:
            raise DataError(
                f"{self._label} ({self._likelihood.name}): {sentence}; correct "
                "the data or choose another likelihood"
            )
