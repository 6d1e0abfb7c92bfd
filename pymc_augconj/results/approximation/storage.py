"""Writing an :class:`~.approximation.Approximation` to a file, and reading it.

One NumPy archive: arrays under dotted keys, everything else as JSON under ``"meta"``. It is read
with ``allow_pickle=False``, so a file from elsewhere cannot run code.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pymc_augconj.errors import AugmentationError
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.latents.registry import block_prior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.linalg.linear_map import DenseMap, LinearMap, RowSelection
from pymc_augconj.model import LatentBlock

from .approximation import Approximation
from .layout import AffineMean, Labels
from .sparse import SparseApproximation

__all__ = ["load_approximation", "save_approximation"]

FORMAT = 2

_SCALARS = (
    "method",
    "evidence",
    "objective",
    "converged",
    "message",
    "timings",
    "diagnostics",
    "space",
    "variables",
    "random_seed",
    "data",
)
_BLOCK = ("name", "value_name", "form", "shape", "size", "copies", "whitened", "kind")


def save_approximation(fit: Approximation, path: str | Path) -> None:
    """Write ``fit`` to ``path``, with the suffix ``.npz`` if it has none."""
    arrays: dict[str, np.ndarray] = {"h": fit.h, "lam": fit.lam, "offset": fit.prior.offset}
    meta: dict[str, Any] = {"format": FORMAT} | {name: getattr(fit, name) for name in _SCALARS}
    meta["blocks"] = []
    for i, (block, full, merged, mean) in enumerate(
        zip(fit.prior.blocks, fit.prior.full_maps, fit.prior.maps, fit.means, strict=True)
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
    arrays["first"] = fit.groups.first
    if fit.groups.inverse is not None:
        arrays["inverse"] = fit.groups.inverse
    for kind in ("theta", "point", "observed"):
        values = getattr(fit, kind)
        meta[kind] = list(values)
        arrays |= {f"{kind}.{i}": np.asarray(value) for i, value in enumerate(values.values())}
    meta["inducing"] = list(fit.inducing)
    arrays |= {f"inducing.{i}": Z for i, Z in enumerate(fit.inducing.values())}
    meta["dims"] = fit.labels.dims
    meta["coords"] = {name: np.asarray(value).tolist() for name, value in fit.labels.coords.items()}
    meta["history"] = fit.history.to_dict(orient="list")
    arrays["meta"] = np.array(json.dumps(meta, default=_plain))
    np.savez_compressed(Path(path).with_suffix(".npz") if not Path(path).suffix else path, **arrays)


def load_approximation(path: str | Path) -> Approximation:
    """Read what :func:`save_approximation` has written."""
    path = Path(path)
    if not path.exists() and not path.suffix:
        path = path.with_suffix(".npz")
    if not zipfile.is_zipfile(path) and path.exists():
        raise AugmentationError(f"expected {path} to be a saved approximation, found another file")
    with np.load(path, allow_pickle=False) as archive:
        arrays = dict(archive)
    if "meta" not in arrays:
        raise AugmentationError(f"expected {path} to be a saved approximation, found no meta data")
    meta = json.loads(str(arrays["meta"]))
    if meta["format"] != FORMAT:
        raise AugmentationError(
            f"{path}: expected format {FORMAT} of a saved approximation, found {meta['format']}; "
            "use the version of pymc-augconj that wrote it"
        )
    meta.setdefault("diagnostics", {})
    meta.setdefault("data", {})
    blocks, means = [], []
    for i, facts in enumerate(meta["blocks"]):
        others, jitter = facts.pop("others"), facts.pop("jitter")
        entries = arrays.get(f"entries.{i}")
        block = LatentBlock(
            **{**facts, "shape": tuple(facts["shape"])}, scale=None, entries=entries
        )
        blocks.append(block_prior(block, np.asfortranarray(arrays[f"scale.{i}"]), jitter))
        matrices = {name: arrays[f"mean.{i}.{j}"] for j, name in enumerate(others)}
        means.append(AffineMean(arrays[f"mean.{i}"], matrices))
    indices = range(len(blocks))
    prior = LatentPrior(
        arrays["offset"],
        tuple(blocks),
        tuple(_read_map(f"full.{i}", arrays) for i in indices),
        tuple(_read_map(f"merged.{i}", arrays) for i in indices),
    )
    named = {
        kind: {name: arrays[f"{kind}.{i}"] for i, name in enumerate(meta[kind])}
        for kind in ("theta", "point", "observed")
    }
    scalars = {name: meta[name] for name in _SCALARS} | {"variables": tuple(meta["variables"])}
    inducing = {name: arrays[f"inducing.{i}"] for i, name in enumerate(meta.get("inducing", ()))}
    kind = SparseApproximation if inducing else Approximation
    return kind(
        h=arrays["h"],
        lam=arrays["lam"],
        history=pd.DataFrame(meta["history"]),
        prior=prior,
        groups=RowGroups(arrays["first"], arrays.get("inverse")),
        means=tuple(means),
        inducing=inducing,
        labels=Labels(meta["dims"], {n: np.asarray(v) for n, v in meta["coords"].items()}),
        **named,
        **scalars,
    )


def _map_arrays(key: str, A: LinearMap) -> dict[str, np.ndarray]:
    if isinstance(A, DenseMap):
        found = {f"{key}.matrix": A.matrix}
        return found if A.columns is None else found | {f"{key}.columns": A.columns}
    found = {f"{key}.index": A.index, f"{key}.size": np.array(A.size)}
    return found if A.coef is None else found | {f"{key}.coef": A.coef}


def _read_map(key: str, arrays: dict[str, np.ndarray]) -> LinearMap:
    if f"{key}.matrix" in arrays:
        return DenseMap(np.asfortranarray(arrays[f"{key}.matrix"]), arrays.get(f"{key}.columns"))
    return RowSelection(
        arrays[f"{key}.index"], arrays.get(f"{key}.coef"), int(arrays[f"{key}.size"])
    )


def _plain(value: Any) -> Any:
    """Return a NumPy scalar or array as what JSON knows."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"cannot save a {type(value).__name__}")
