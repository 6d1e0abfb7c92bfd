"""Writing the state of an approximation to a file, and reading it.

The file is one NumPy archive with arrays under dotted keys, and other values as JSON under
``"meta"``. It is read with ``allow_pickle=False``, so that a file cannot run code.
"""

from __future__ import annotations

import hashlib
import json
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pymc_augconj.block import LatentBlock
from pymc_augconj.engines.nested.density import Scaling, density_of
from pymc_augconj.engines.nested.importance import NestedPosterior
from pymc_augconj.errors import AugmentationError
from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.latents.joint import LatentPrior, LatentPriors, block_prior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap, RowSelection
from pymc_augconj.linalg.state_space import MarkovInputs
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.point import FixedValue, Point
from pymc_augconj.recognition.prediction.latent_draws import LatentMeans
from pymc_augconj.recognition.processes.other_graphs import in_linear_time
from pymc_augconj.recognition.recognizer import read_model
from pymc_augconj.typing import Array

from .fitted_model import AffineMean, Fingerprint, FittedLatents, Labels

FORMAT = 2

_SUFFIX = ".npz"

_SCALARS = (
    *("method", "log_evidence", "objective", "converged"),
    *("message", "timings", "diagnostics", "random_seed"),
)
_OF_POINTS = ("x", "log_density", "weights", "h", "lam")
_BLOCK = (
    *("name", "value_name", "form", "shape", "size", "copies", "whitened", "kind", "is_flat"),
    "grid",
)


def save_state(state: Mapping[str, Any], path: str | Path) -> None:
    """Write the fields of an approximation to ``path``, with the suffix ``.npz``."""
    if "_latents" not in state:
        _save_nested(state, path)
        return
    latents: FittedLatents = state["_latents"]
    prior, groups = latents.prior, latents.groups
    arrays: dict[str, np.ndarray] = {"h": state["h"], "lam": state["lam"], "offset": prior.offset}
    meta: dict[str, Any] = {"space": latents.space, "blocks": []}
    for i, (block, full, merged, mean) in enumerate(
        zip(prior.blocks, prior.full_maps, prior.maps, latents.means, strict=True)
    ):
        facts = {name: getattr(block.block, name) for name in _BLOCK}
        meta["blocks"].append(facts | {"jitter": block.jitter, "others": list(mean.matrices)})
        arrays[f"scale.{i}"] = block.array
        arrays[f"mean.{i}"] = mean.constant
        for key, index in (("entries", block.block.entries), ("order", block.block.order)):
            if index is not None:
                arrays[f"{key}.{i}"] = index
        if (inputs := block.block.inputs) is not None:
            arrays |= {f"table.{i}": inputs.table, f"orders.{i}": inputs.orders}
            arrays[f"loadings.{i}"] = np.array(inputs.loadings, dtype=np.intp).reshape(-1, 2)
        for j, matrix in enumerate(mean.matrices.values()):
            arrays[f"mean.{i}.{j}"] = matrix
        arrays |= _map_arrays(f"full.{i}", full) | _map_arrays(f"merged.{i}", merged)
    arrays["first"] = groups.first
    if groups.inverse is not None:
        arrays["inverse"] = groups.inverse
    meta["fingerprint"] = asdict(state["_fingerprint"])
    _write(state, groups.coupling, meta, arrays, path)


def _save_nested(state: Mapping[str, Any], path: str | Path) -> None:
    """Write the fields of a nested approximation: sites and points, and what checks its model."""
    nested: NestedPosterior = state["_posterior"]
    density = nested.density
    assert density is not None  # without hyperparameters there is no mixture
    arrays = {name: getattr(nested, name) for name in _OF_POINTS} | {"z": density.z}
    arrays |= {f"scaling.{f.name}": getattr(density.scaling, f.name) for f in fields(Scaling)}
    arrays["facts"] = _facts(nested.model, nested.point(nested.x[0]), state["observed"])
    meta = {"solver": nested.solver, "start": list(nested.start)}
    arrays |= {f"start.{i}": value for i, value in enumerate(nested.start.values())}
    _write(state, nested.priors.groups.coupling, meta, arrays, path)


def _facts(lgm: LatentGaussianModel, point: Point, observed: Mapping[str, Array]) -> Array:
    """Return numbers that identify a model: densities at θ, and sums of its inputs."""
    found = Fingerprint.of(lgm, point, observed)
    parts: list[Any] = [lgm.log_prior(point), *found.densities.values(), *found.inputs.values()]
    return np.concatenate([np.ravel(part) for part in parts])


def _write(
    state: Mapping[str, Any],
    coupling: Coupling,
    meta: dict[str, Any],
    arrays: dict[str, np.ndarray],
    path: str | Path,
) -> None:
    """Write an archive of the fields of all approximations, and of the fields of this kind."""
    meta |= {"format": FORMAT} | {name: state[name] for name in _SCALARS}
    meta |= {"variables": state["_variables"], "data": state["_data"]}
    meta["coupled"] = len(coupling.rows)
    arrays |= {f"coupled.{i}": rows for i, rows in enumerate(coupling.rows)}
    coords = {name: _storable(name, labels) for name, labels in state["_labels"].coords.items()}
    for kind, values in (
        ("theta", state["theta"]),
        ("point", state["point"]),
        ("observed", state["observed"]),
        ("inducing", state["inducing"]),
        ("coords", coords),
    ):
        meta[kind] = list(values)
        arrays |= {f"{kind}.{i}": np.asarray(value) for i, value in enumerate(values.values())}
    meta["dims"] = state["_labels"].dims
    meta["history"] = state["history"].to_dict(orient="list")
    arrays["meta"] = np.array(json.dumps(meta, default=_plain))
    arrays["digest"] = np.array(_digest(arrays))
    path = Path(path)
    path = path if path.suffix == _SUFFIX else path.with_name(path.name + _SUFFIX)
    # NumPy's stubs match the arrays by keyword with its option allow_pickle.
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def load_state(path: str | Path, model: Any = None) -> dict[str, Any]:
    """Return the fields of an approximation in a file.

    A nested approximation needs the fitted ``model``.
    """
    path = Path(path)
    if not path.exists() and path.suffix != _SUFFIX:
        path = path.with_name(path.name + _SUFFIX)
    if not path.exists():
        raise FileNotFoundError(f"expected a saved approximation {path}, found no file")
    if not zipfile.is_zipfile(path):
        raise AugmentationError(f"expected {path} to be a saved approximation, found another file")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = dict(archive)
        if "meta" not in arrays:
            raise AugmentationError("found no metadata")
        meta = json.loads(str(arrays["meta"]))
        if meta["format"] != FORMAT:
            raise AugmentationError(
                f"expected format {FORMAT}, found {meta['format']}; use the version of "
                "pymc-augconj that wrote the file"
            )
        if str(arrays.pop("digest", "")) != _digest(arrays):
            raise AugmentationError(
                "found other contents than were saved (their checksum differs); save the fit again"
            )
        coupled = [arrays[f"coupled.{i}"] for i in range(meta["coupled"])]
        coupling = Coupling(arrays["h"].shape[-1], coupled)
        state = _shared(meta, arrays)
        if model is None and "blocks" in meta:
            return state | _latents(meta, arrays, coupling)
    except Exception as error:
        # A damaged file can fail in any way.
        raise AugmentationError(
            f"expected {path} to be a saved approximation, complete and unchanged: "
            f"{error if isinstance(error, AugmentationError) else repr(error)}"
        ) from error
    if model is None or "blocks" in meta:
        found, other = ("nested", "Nested") if model is None else (meta["method"], "")
        model = ", model" if model is None else ""
        raise AugmentationError(
            f"{path}: expected another kind of approximation, found one by {found!r}; use "
            f"pac.{other}Approximation.load(path{model})"
        )
    return state | _nested(meta, arrays, coupling, state["observed"], model)


def _shared(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    state = {name: meta[name] for name in _SCALARS}
    kinds = ("theta", "point", "observed", "inducing")
    return state | {kind: _named(kind, meta, arrays) for kind in kinds} | {
        "history": pd.DataFrame(meta["history"]),
        "_labels": Labels(meta["dims"], _named("coords", meta, arrays)),
        "_variables": tuple(meta["variables"]),
        "_data": meta["data"],
    }  # fmt: skip


def _named(kind: str, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: arrays[f"{kind}.{i}"] for i, name in enumerate(meta[kind])}


def _nested(
    meta: dict[str, Any],
    arrays: dict[str, np.ndarray],
    coupling: Coupling,
    observed: Mapping[str, Array],
    model: Any,
) -> dict[str, Any]:
    """Return the fields of a nested approximation; AugmentationError if ``model`` is another."""
    read = read_model(in_linear_time(model))
    lgm, start = read.model, _named("start", meta, arrays)
    shapes = {name: np.shape(value) for name, value in read.start.items()}
    points = {name: arrays[name] for name in _OF_POINTS}
    same = shapes == {name: value.shape for name, value in start.items()}
    same = same and lgm.n_rows == points["h"].shape[-1]
    if same:
        priors = LatentPriors(lgm, (read.start, *read.probes), coupling)
        scaling = Scaling(*(arrays[f"scaling.{f.name}"] for f in fields(Scaling)))
        density = density_of(scaling, arrays["z"], points["log_density"])
        members = lgm.hyperparameters
        nested = NestedPosterior(
            lgm, priors, meta["solver"], members, start, **points, density=density
        )
        now = _facts(lgm, nested.point(nested.x[0]), observed)
        same = now.shape == arrays["facts"].shape and np.allclose(now, arrays["facts"], rtol=1e-6)
    if not same:
        raise AugmentationError(
            "model: expected the model and data of the saved fit, found another one; build it as "
            "it was, with the same data and names"
        )
    return {"_posterior": nested, "_means": LatentMeans(model, lgm, start), "model": model}


def _latents(
    meta: dict[str, Any], arrays: dict[str, np.ndarray], coupling: Coupling
) -> dict[str, Any]:
    """Return the fields of one Gaussian approximation."""
    blocks, means = [], []
    for i, facts in enumerate(meta["blocks"]):
        others, jitter = facts.pop("others"), facts.pop("jitter")
        array, inputs = np.asfortranarray(arrays[f"scale.{i}"]), None
        if f"table.{i}" in arrays:
            pairs = [(int(wave), int(column)) for wave, column in arrays[f"loadings.{i}"]]
            inputs = MarkovInputs(arrays[f"table.{i}"], arrays[f"orders.{i}"].tolist(), pairs)
        of_tuples = {key: tuple(facts.get(key, ())) for key in ("shape", "grid")}
        block = LatentBlock(
            **{**facts, **of_tuples}, scale=FixedValue(array), inputs=inputs,
            entries=arrays.get(f"entries.{i}"), order=arrays.get(f"order.{i}"),
        )  # fmt: skip
        blocks.append(block_prior(block, array, jitter))
        matrices = {name: arrays[f"mean.{i}.{j}"] for j, name in enumerate(others)}
        means.append(AffineMean(arrays[f"mean.{i}"], matrices))
    indices = range(len(blocks))
    prior = LatentPrior(
        arrays["offset"],
        tuple(blocks),
        tuple(_read_map(f"full.{i}", arrays) for i in indices),
        tuple(_read_map(f"merged.{i}", arrays) for i in indices),
    )
    groups = RowGroups(arrays["first"], arrays.get("inverse"), coupling)
    return {
        "h": arrays["h"],
        "lam": arrays["lam"],
        "_latents": FittedLatents(prior, groups, meta["space"], tuple(means)),
        "_fingerprint": Fingerprint(**meta["fingerprint"]),
    }


def _digest(arrays: dict[str, np.ndarray]) -> str:
    """Return a checksum of names, types, shapes and values."""
    digest = hashlib.sha256()
    for name, value in sorted(arrays.items()):
        value = np.asarray(value)
        digest.update(f"{name} {value.dtype.str} {value.shape} ".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def _storable(dim: str, labels: Any) -> np.ndarray:
    """Return labels as an array that NumPy stores without pickling: numbers, strings or dates."""
    array = pd.Index(labels, tupleize_cols=False).to_numpy()
    if array.dtype.kind != "O":
        return array
    if not all(isinstance(label, str) for label in array):
        warnings.warn(
            f"coords: labels of {dim!r} are saved as strings; expected numbers, strings or dates "
            f"without a time zone, found {type(array[0]).__name__}",
            UserWarning,
            stacklevel=4,
        )
    return np.array([str(label) for label in array], dtype=str)


def _map_arrays(key: str, A: LinearMap) -> dict[str, np.ndarray]:
    if isinstance(A, DenseMap):
        dense = {f"{key}.matrix": A.matrix}
        return dense if A.columns is None else dense | {f"{key}.columns": A.columns}
    found: dict[str, np.ndarray] = {f"{key}.index": A.index, f"{key}.size": np.array(A.size)}
    return found if A.coef is None else found | {f"{key}.coef": A.coef}


def _read_map(key: str, arrays: dict[str, np.ndarray]) -> LinearMap:
    if f"{key}.matrix" in arrays:
        return DenseMap(np.asfortranarray(arrays[f"{key}.matrix"]), arrays.get(f"{key}.columns"))
    return RowSelection(
        arrays[f"{key}.index"], arrays.get(f"{key}.coef"), int(arrays[f"{key}.size"])
    )


def _plain(value: Any) -> Any:
    """Return a NumPy scalar or array as a type of JSON."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"cannot save a {type(value).__name__}")
