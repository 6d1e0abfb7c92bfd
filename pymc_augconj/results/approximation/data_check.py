"""Check that a model still has the data of a fit, or of draws.

``pm.set_data`` changes a model's data but not its fits: a prediction would mix old and new data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pymc_augconj.errors import AugmentationError
from pymc_augconj.recognition.processes.input_data import checksums, data_behind, input_data

from .approximation import Approximation
from .layout import inducing_inputs_name

__all__ = ["check_data", "inducing_inputs_of"]


def check_data(result: Any, model: Any, gp: Any, kind: str, observed: str | None) -> None:
    """Refuse a result from other data than the model has now.

    The check compares the data in the process's inputs, mean and covariance; for ``kind="y"`` also
    the data in an observed variable's predictor and parameters. Draws need the group
    ``constant_data``, else they are not checked.

    Parameters
    ----------
    result : Approximation or DataTree
    model : pymc.Model
    gp : pm.gp.Latent
    kind : {"f", "y"}
    observed : str, optional
        The observed variable; by default any.

    Raises
    ------
    AugmentationError
        With the names of the data.
    """
    used = data_behind(model, gp, observations=kind == "y", observed=observed)
    fitted, name = isinstance(result, Approximation), gp.f.name
    if name in result.inducing if fitted else inducing_inputs_of(result, name) is not None:
        # The result depends on the inducing inputs only.
        used = {key: var for key, var in used.items() if key not in input_data(gp)}
    if fitted:
        now = checksums(used.values())
        changed = [name for name, sum_ in now.items() if result._data.get(name, sum_) != sum_]
    else:
        changed = _changed_since_drawn(result, used)
    if changed:
        raise AugmentationError(
            f"{gp.f.name!r}: expected the data of the fit, found {changed} changed; set them back, "
            "or fit again. Pass new inputs as Xnew, and parameters and offsets at these as "
            "params={…} and offset=…"
        )


def inducing_inputs_of(tree: Any, name: str) -> np.ndarray | None:
    """Return the inducing inputs of draws of a process; None for dense draws."""
    if name in tree["posterior"].data_vars or "constant_data" not in tree.children:
        return None
    found = tree["constant_data"].data_vars.get(inducing_inputs_name(name))
    return None if found is None else np.asarray(found.values, dtype=float)


def _changed_since_drawn(tree: Any, used: Mapping[str, Any]) -> list[str]:
    if "constant_data" not in tree.children:
        return []
    drawn = tree["constant_data"].to_dataset()
    now = {name: var.get_value(borrow=True) for name, var in used.items() if name in drawn}
    return [name for name, value in now.items() if not np.array_equal(value, drawn[name].values)]
