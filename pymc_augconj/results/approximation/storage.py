"""Writing the state of an approximation to a file, and reading it.

The file is one NumPy archive with arrays under dotted keys, and other values as JSON under
``"meta"``. It is read with ``allow_pickle=False``, and makes objects of the classes listed here
alone, so that a file cannot run code.
"""

from __future__ import annotations

import hashlib
import json
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pymc_augconj.block import LatentBlock
from pymc_augconj.engines.nested.density import Scaling, density_of
from pymc_augconj.engines.nested.importance import NestedPosterior
from pymc_augconj.errors import AugmentationError
from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.latents.base import BlockPrior
from pymc_augconj.latents.joint import LatentPrior, LatentPriors, block_prior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.linalg.linear_map import DenseMap, RowSelection
from pymc_augconj.linalg.state_space import MarkovInputs
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.point import FixedValue, Point
from pymc_augconj.recognition.prediction.latent_draws import AffineMean, LatentMeans
from pymc_augconj.recognition.processes.other_graphs import in_linear_time
from pymc_augconj.recognition.recognizer import read_model
from pymc_augconj.typing import Array

from .fitted_model import Fingerprint, FittedLatents, Labels

FORMAT = 3

_SUFFIX = ".npz"

# Fields that the model has.
_OF_MODEL = (
    *("model", "_evaluate", "_pointwise", "_processes", "_value_names", "_deterministics"),
    *("_posterior", "_means"),
)
_OF_POINTS = ("x", "log_density", "weights", "h", "lam")

# By the class of an object, or a base class, the arguments that make it again.
_ARGUMENTS: dict[type, tuple[str, ...]] = {
    AffineMean: ("constant", "matrices"),
    BlockPrior: ("array", "block", "jitter"),
    Coupling: ("n_rows", "rows"),
    DenseMap: ("matrix", "columns"),
    Fingerprint: ("densities", "inputs"),
    FittedLatents: ("prior", "groups", "space", "means"),
    FixedValue: ("value",),
    Labels: ("dims", "coords"),
    LatentBlock: (
        *("name", "value_name", "form", "shape", "size", "copies", "whitened", "kind", "scale"),
        *("entries", "order", "inputs", "grid", "is_flat"),
    ),
    LatentPrior: ("offset", "blocks", "full_maps", "maps"),
    MarkovInputs: ("table", "orders", "loadings"),
    RowGroups: ("first", "inverse", "coupling"),
    RowSelection: ("index", "coef", "size"),
    Scaling: ("mode", "axes", "width", "skew"),
}
_MAKERS: dict[str, Any] = {kind.__name__: kind for kind in _ARGUMENTS} | {"BlockPrior": block_prior}


def save_state(state: Mapping[str, Any], path: str | Path) -> None:
    """Write the fields of an approximation to ``path``, with the suffix ``.npz``."""
    own = {name: value for name, value in state.items() if name not in _OF_MODEL}
    labels = own["_labels"]
    coords = {dim: _storable(dim, values) for dim, values in labels.coords.items()}
    own["_labels"] = replace(labels, coords=coords)
    if "_posterior" in state:
        own["nested"] = _parts_of(state["_posterior"], state["observed"])
    arrays: dict[str, np.ndarray] = {}
    meta = {"format": FORMAT, "state": {k: _packed(v, k, arrays) for k, v in own.items()}}
    arrays["meta"] = np.array(json.dumps(meta))
    arrays["digest"] = np.array(_digest(arrays))
    path = Path(path)
    path = path if path.suffix == _SUFFIX else path.with_name(path.name + _SUFFIX)
    # NumPy's stubs match the arrays by keyword with its option allow_pickle.
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def _packed(value: Any, key: str, arrays: dict[str, np.ndarray]) -> Any:
    """Return a value as JSON, with its arrays added to ``arrays`` under keys that begin so."""
    if isinstance(value, np.ndarray):
        # An array may be part of several objects.
        known = (name for name, array in arrays.items() if array is value)
        name = next(known, key)
        arrays[name] = value
        return {"array": name}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, pd.DataFrame):
        return {"table": value.to_dict(orient="list")}
    if isinstance(value, Mapping):
        pairs = enumerate(value.items())
        return {"mapping": {k: _packed(v, f"{key}.{i}", arrays) for i, (k, v) in pairs}}
    if isinstance(value, Sequence):
        parts = [_packed(v, f"{key}.{i}", arrays) for i, v in enumerate(value)]
        return parts if isinstance(value, list) else {"tuple": parts}
    for kind, names in _ARGUMENTS.items():
        if isinstance(value, kind):
            own = {name: _packed(getattr(value, name), f"{key}.{name}", arrays) for name in names}
            return {"class": kind.__name__, "arguments": own}
    raise TypeError(f"cannot save a {type(value).__name__}")


def _unpacked(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the value of :func:`_packed`."""
    if isinstance(value, list):
        return [_unpacked(part, arrays) for part in value]
    if not isinstance(value, dict):
        return value
    if "class" in value:
        given = {name: _unpacked(v, arrays) for name, v in value["arguments"].items()}
        return _MAKERS[value["class"]](**given)
    ((how, content),) = value.items()
    if how == "array":
        return arrays[content]
    if how == "table":
        return pd.DataFrame(content)
    if how == "tuple":
        return tuple(_unpacked(part, arrays) for part in content)
    return {name: _unpacked(part, arrays) for name, part in content.items()}


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
        state = {name: _unpacked(value, arrays) for name, value in meta["state"].items()}
    except Exception as error:
        # A damaged file can fail in any way.
        raise AugmentationError(
            f"expected {path} to be a saved approximation, complete and unchanged: "
            f"{error if isinstance(error, AugmentationError) else repr(error)}"
        ) from error
    parts = state.pop("nested", None)
    if (model is None) != (parts is None):
        found, other = ("nested", "Nested") if model is None else (state["method"], "")
        model = ", model" if model is None else ""
        raise AugmentationError(
            f"{path}: expected another kind of approximation, found one by {found!r}; use "
            f"pac.{other}Approximation.load(path{model})"
        )
    return state if parts is None else state | _nested(parts, state["observed"], model)


def _parts_of(nested: NestedPosterior, observed: Mapping[str, Array]) -> dict[str, Any]:
    """Return sites and points of a nested approximation, and what checks its model."""
    density = nested.density
    assert density is not None  # without hyperparameters there is no mixture
    parts = {name: getattr(nested, name) for name in (*_OF_POINTS, "solver", "start")}
    facts = _facts(nested.model, nested.point(nested.x[0]), observed)
    coupling = nested.priors.groups.coupling
    more = {"z": density.z, "scaling": density.scaling, "facts": facts, "coupling": coupling}
    return parts | more


def _facts(lgm: LatentGaussianModel, point: Point, observed: Mapping[str, Array]) -> Array:
    """Return numbers that identify a model: densities at θ, and sums of its inputs."""
    found = Fingerprint.of(lgm, point, observed)
    parts: list[Any] = [lgm.log_prior(point), *found.densities.values(), *found.inputs.values()]
    return np.concatenate([np.ravel(part) for part in parts])


def _nested(parts: dict[str, Any], observed: Mapping[str, Array], model: Any) -> dict[str, Any]:
    """Return the fields of a nested approximation; AugmentationError if ``model`` is another."""
    read = read_model(in_linear_time(model))
    lgm, start = read.model, parts["start"]
    shapes = {name: np.shape(value) for name, value in read.start.items()}
    points = {name: parts[name] for name in _OF_POINTS}
    same = shapes == {name: np.shape(value) for name, value in start.items()}
    same = same and lgm.n_rows == points["h"].shape[-1]
    if same:
        priors = LatentPriors(lgm, (read.start, *read.probes), parts["coupling"])
        density = density_of(parts["scaling"], parts["z"], points["log_density"])
        members = lgm.hyperparameters
        nested = NestedPosterior(
            lgm, priors, parts["solver"], members, start, **points, density=density
        )
        now, facts = _facts(lgm, nested.point(nested.x[0]), observed), parts["facts"]
        same = now.shape == facts.shape and np.allclose(now, facts, rtol=1e-6)
    if not same:
        raise AugmentationError(
            "model: expected the model and data of the saved fit, found another one; build it as "
            "it was, with the same data and names"
        )
    return {"_posterior": nested, "_means": LatentMeans(model, lgm, start), "model": model}


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
