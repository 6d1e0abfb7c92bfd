"""A model with other rows of its data, from the user's model of a sample."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, cast

import cloudpickle
import numpy as np
import pymc as pm
from pymc.model import Model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors

from pymc_augconj.errors import AugmentationError, DataError
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.point import Point
from pymc_augconj.recognition.recognizer import read_model
from pymc_augconj.typing import Array

from .other_graphs import input_data
from .process import LatentProcess

# Numbers of rows for which each thread keeps a recognised model.
_KEPT = 16
# So that results do not depend on how many chunks a thread has had before.
_NEVER_COMPILED = 10**9
# Tolerance, beyond rounding, for the same rows among different other rows.
_SAME = 1e-9


class OtherRows:
    """Reads a model whose ``pm.Data`` hold other rows; pickled to the worker that has the rows.

    Each thread recognises the model once for each number of rows. At other rows it reads the
    designs again, and checks the data. ``names`` are the ``pm.Data`` that hold the rows, and
    ``point`` is any value of θ. Raises AugmentationError if the model is not a product over rows:
    a prior depends on the rows, an observed variable does not, or a row's terms depend on other
    rows.
    """

    def __init__(
        self,
        model: Model,
        gps: Sequence[Any],
        names: Sequence[str],
        point: Point,
        compile_kwargs: dict[str, Any] | None = None,
        *,
        gradient_of_inducing: bool = False,
    ) -> None:
        self.names = tuple(names)
        self._compile_kwargs, self._by_inducing = compile_kwargs, gradient_of_inducing
        shared = [_data_of(model, name) for name in names]
        _check_graph(model, gps, shared)
        #: Whether the inputs of each process are among the rows.
        self.follows = tuple(bool(set(input_data(gp)) & set(names)) for gp in gps)
        self._pickled = cloudpickle.dumps((model, list(gps)))
        self._local = threading.local()
        self._check_rows({var.name: var.get_value() for var in shared}, point)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_local": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"_local": threading.local()})

    def __call__(
        self, rows: Mapping[str, np.ndarray], where: str
    ) -> tuple[LatentGaussianModel, list[LatentProcess]]:
        """Return the model and its processes at these rows, valid until the next call.

        ``where`` is the name of the rows in messages. Raises DataError for numbers that are not
        finite, or out of range.
        """
        size = len(next(iter(rows.values())))
        for name, values in rows.items():
            _refuse_nan(name, values, where)
        try:
            lgm, processes = self._read(rows, size)
            for site in lgm.sites:
                site.y({})  # refuses data out of range
        except DataError as error:
            raise DataError(f"{where}: {error}") from None
        return lgm, processes

    def _read(
        self, rows: Mapping[str, np.ndarray], size: int
    ) -> tuple[LatentGaussianModel, list[LatentProcess]]:
        kept = self._local.__dict__
        if "model" not in kept:
            kept["model"], kept["gps"] = cloudpickle.loads(self._pickled)
            kept["known"], kept["processes"] = {}, []
        model, gps, known = kept["model"], kept["gps"], kept["known"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pm.exceptions.ShapeWarning)
            for name, values in rows.items():
                _set(model, name, values)
        if size not in known:
            while len(known) >= _KEPT:
                del known[next(iter(known))]
            known[size] = read_model(
                model, compile_kwargs=self._compile_kwargs, first_calls=_NEVER_COMPILED
            ).model
        lgm, processes = known[size], kept["processes"]
        if not processes:
            processes += [
                LatentProcess(model, gp, lgm, gradient_of_inducing=self._by_inducing) for gp in gps
            ]
        for process, gp in zip(processes, gps, strict=True):
            process.read_inputs(gp)
        return lgm, processes

    def _check_rows(self, rows: Mapping[str, np.ndarray], point: Point) -> None:
        """Refuse a model in which the terms of a row depend on other rows."""
        size = len(next(iter(rows.values())))
        half = max(size // 2, 1)
        whole = self._facts(rows, point)
        try:
            part = self._facts({name: value[:half] for name, value in rows.items()}, point)
        except Exception as error:
            # Graphs of other shapes fail in any way.
            raise AugmentationError(
                f"data: expected a model of any number of rows, found that with {half} rows of its "
                f"{size} it cannot be read ({error}); write all arrays with an entry for each row "
                "as pm.Data, and pass them in data"
            ) from error
        for what, values in whole.items():
            own = part[what]
            rows_alike = len(own) * size == len(values) * half or len(own) == len(values) == 1
            if not rows_alike or not np.allclose(
                values[: len(own)], own, rtol=_SAME, atol=_SAME, equal_nan=True
            ):
                raise AugmentationError(
                    f"data: expected a model in which {what} of a row depends on that row alone, "
                    "found that it changes with the other rows (a mean over the data, say, or an "
                    "effect for each row); compute such numbers beforehand, or fit without data=…"
                )

    def _facts(self, rows: Mapping[str, np.ndarray], point: Point) -> dict[str, Array]:
        """Return values that must not depend on other rows, by name: one number, or some a row."""
        lgm, processes = self(rows, "the sample")
        offset = np.array(lgm.offset(point), dtype=float)
        terms = {"predictor": offset}
        sparse = {process.name: process for process in processes}
        rng = np.random.default_rng(0)
        for block, read in zip(lgm.blocks, lgm.maps, strict=True):
            if block.name in sparse:
                u = np.sin(np.asarray(sparse[block.name].inputs, dtype=float)).sum(axis=1)
            else:
                u = rng.standard_normal(block.total_size)
            terms[f"coefficient of {block.name!r}"] = read(point).apply(u)
        found = {}
        for site in lgm.sites:
            for name, stacked in terms.items():
                found[f"the {name} in {site.name!r}"] = stacked[site.rows]
            found[f"the value of {site.name!r}"] = site.y(point)
            for name, value in site.params(point).items():
                found[f"the parameter {name!r} of {site.name!r}"] = np.ravel(value)
        return found


def _data_of(model: Model, name: str) -> SharedVariable:
    names = [var.name for var in model.data_vars if isinstance(var, SharedVariable)]
    if name not in names:
        raise AugmentationError(
            f"data: expected names of the model's pm.Data, {names}, got {name!r}; write "
            f"{name} = pm.Data({name!r}, …) in the model"
        )
    return cast(SharedVariable, model[name])


def _check_graph(model: Model, gps: Sequence[Any], shared: Sequence[SharedVariable]) -> None:
    names = [var.name for var in shared]
    own = {gp.f for gp in gps}
    # A whitened process is a function of a variable that has the size of its inputs.
    own |= {rv for rv in ancestors(own) if f"{rv.name}".endswith("_rotated_")}
    for rv in model.observed_RVs:
        if not set(ancestors([model.rvs_to_values[rv]])) & set(shared):
            raise AugmentationError(
                f"observed variable {rv.name!r}: expected observations that are among "
                f"data={names}, found others, which every chunk would count again; pass these in "
                "data, too"
            )
    if model.potentials:
        raise AugmentationError(
            f"potentials {[p.name for p in model.potentials]}: expected none with data=…, since "
            "whether they are sums over rows cannot be told; write observed variables"
        )
    for rv in model.free_RVs:
        if rv not in own and set(ancestors([rv])) & set(shared):
            raise AugmentationError(
                f"variable {rv.name!r}: expected a prior that does not depend on data={names}, "
                "whose rows differ between chunks; compute its arguments beforehand"
            )


def _set(model: Model, name: str, values: np.ndarray) -> None:
    old = model[name].get_value(borrow=True)
    if values.ndim != old.ndim or values.shape[1:] != old.shape[1:]:
        raise DataError(
            f"data {name!r}: expected rows of shape {old.shape[1:]}, as in the model, found "
            f"{values.shape[1:]}"
        )
    new = np.asarray(values).astype(old.dtype)
    if new.dtype != values.dtype and np.any(new != values):
        raise DataError(
            f"data {name!r}: expected numbers of type {old.dtype}, as in the model, found "
            f"{values.dtype}"
        )
    dims = model.named_vars_to_dims.get(name) or ()
    coords = {d: np.arange(len(new)) for d in dims[:1] if model.coords.get(d) is not None}
    model.set_data(name, new, coords=coords)


def _refuse_nan(name: str, values: np.ndarray, where: str) -> None:
    if values.dtype.kind != "f" or not np.isnan(values.sum()):
        return
    bad = np.argwhere(np.isnan(values))
    if bad.size:
        column = f", column {bad[0][1]}" if values.ndim > 1 else ""
        raise DataError(
            f"data {name!r}: expected finite numbers, found nan in {where}, row {bad[0][0]}{column}"
            "; drop or impute the rows with missing values"
        )
