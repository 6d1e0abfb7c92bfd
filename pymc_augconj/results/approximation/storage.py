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
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import AugmentationError
from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.latents.registry import block_prior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap, RowSelection
from pymc_augconj.point import FixedValue

from .fitted_model import AffineMean, Fingerprint, FittedLatents
from .layout import Labels

FORMAT = 2

_SUFFIX = ".npz"

_SCALARS = (
    "method",
    "log_evidence",
    "objective",
    "converged",
    "message",
    "timings",
    "diagnostics",
    "random_seed",
)
_BLOCK = ("name", "value_name", "form", "shape", "size", "copies", "whitened", "kind", "is_flat")


def save_state(state: Mapping[str, Any], path: str | Path) -> None:
    """Write the fields of an approximation to ``path``, with the suffix ``.npz``."""
    latents: FittedLatents = state["_latents"]
    prior, groups = latents.prior, latents.groups
    arrays: dict[str, np.ndarray] = {"h": state["h"], "lam": state["lam"], "offset": prior.offset}
    meta: dict[str, Any] = {"format": FORMAT} | {name: state[name] for name in _SCALARS}
    meta |= {"space": latents.space, "variables": state["_variables"], "data": state["_data"]}
    meta["blocks"] = []
    for i, (block, full, merged, mean) in enumerate(
        zip(prior.blocks, prior.full_maps, prior.maps, latents.means, strict=True)
    ):
        facts = {name: getattr(block.block, name) for name in _BLOCK}
        meta["blocks"].append(facts | {"jitter": block.jitter, "others": list(mean.matrices)})
        arrays[f"scale.{i}"] = block.array
        arrays[f"mean.{i}"] = mean.constant
        if block.block.entries is not None:
            arrays[f"entries.{i}"] = block.block.entries
        for j, matrix in enumerate(mean.matrices.values()):
            arrays[f"mean.{i}.{j}"] = matrix
        arrays |= _map_arrays(f"full.{i}", full) | _map_arrays(f"merged.{i}", merged)
    arrays["first"] = groups.first
    if groups.inverse is not None:
        arrays["inverse"] = groups.inverse
    meta["coupled"] = len(groups.coupling.rows)
    arrays |= {f"coupled.{i}": rows for i, rows in enumerate(groups.coupling.rows)}
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
    meta["fingerprint"] = asdict(state["_fingerprint"])
    meta["history"] = state["history"].to_dict(orient="list")
    arrays["meta"] = np.array(json.dumps(meta, default=_plain))
    arrays["digest"] = np.array(_digest(arrays))
    path = Path(path)
    path = path if path.suffix == _SUFFIX else path.with_name(path.name + _SUFFIX)
    # NumPy's stubs match the arrays by keyword with its option allow_pickle.
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def load_state(path: str | Path) -> dict[str, Any]:
    """Return the fields written by :func:`save_state`."""
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
        return _read(arrays)
    except Exception as error:
        # A damaged file can fail in any way.
        raise AugmentationError(
            f"expected {path} to be a saved approximation, complete and unchanged: "
            f"{error if isinstance(error, AugmentationError) else repr(error)}"
        ) from error


def _read(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    meta = json.loads(str(arrays["meta"]))
    if meta["format"] != FORMAT:
        raise AugmentationError(
            f"expected format {FORMAT}, found {meta['format']}; use the version of pymc-augconj "
            "that wrote the file"
        )
    if str(arrays.pop("digest", "")) != _digest(arrays):
        raise AugmentationError(
            "found other contents than were saved (their checksum differs); save the fit again"
        )
    blocks, means = [], []
    for i, facts in enumerate(meta["blocks"]):
        others, jitter = facts.pop("others"), facts.pop("jitter")
        entries, array = arrays.get(f"entries.{i}"), np.asfortranarray(arrays[f"scale.{i}"])
        block = LatentBlock(
            **{**facts, "shape": tuple(facts["shape"])}, scale=FixedValue(array), entries=entries
        )
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

    def named(kind: str) -> dict[str, np.ndarray]:
        return {name: arrays[f"{kind}.{i}"] for i, name in enumerate(meta[kind])}

    groups = RowGroups(
        arrays["first"],
        arrays.get("inverse"),
        Coupling(arrays["h"].size, [arrays[f"coupled.{i}"] for i in range(meta["coupled"])]),
    )
    state = {name: meta[name] for name in _SCALARS}
    state |= {kind: named(kind) for kind in ("theta", "point", "observed", "inducing")}
    return state | {
        "h": arrays["h"],
        "lam": arrays["lam"],
        "history": pd.DataFrame(meta["history"]),
        "_latents": FittedLatents(prior, groups, meta["space"], tuple(means)),
        "_labels": Labels(meta["dims"], named("coords")),
        "_fingerprint": Fingerprint(**meta["fingerprint"]),
        "_variables": tuple(meta["variables"]),
        "_data": meta["data"],
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
