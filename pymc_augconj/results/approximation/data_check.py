"""Whether the data of a model are still those that a fit, or draws, are of.

``pm.set_data`` changes them for every use of the model to come, while a fit keeps the numbers that
it was made with: a prediction from both would mix old and new.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pymc_augconj.errors import AugmentationError
from pymc_augconj.recognition.processes.input_data import checksums, data_behind, input_data

from .approximation import Approximation

__all__ = ["check_data"]


def check_data(result: Any, model: Any, gp: Any, kind: str, observed: str | None) -> None:
    """Refuse a result of other data than the model has now.

    Data that matter are those of the process's inputs, mean and covariance; for ``kind="y"`` also
    those of an observed variable's predictor and parameters. Of draws only those can be told that
    come with their data.

    Parameters
    ----------
    result : Approximation or DataTree
    model : pymc.Model
    gp : pm.gp.Latent
    kind : {"f", "y"}
    observed : str, optional
        The observed variable; any where omitted.

    Raises
    ------
    AugmentationError
        With the names of the data.
    """
    used = data_behind(model, gp, observations=kind == "y", observed=observed)
    if isinstance(result, Approximation):
        if gp.f.name in result.inducing:
            # It is of the process at inducing inputs, whatever the others are.
            used = {name: var for name, var in used.items() if name not in input_data(gp)}
        now = checksums(used.values())
        changed = [name for name, sum_ in now.items() if result.data.get(name, sum_) != sum_]
    else:
        changed = _changed_since_drawn(result, used)
    if changed:
        raise AugmentationError(
            f"{gp.f.name!r}: data {changed} are not those of the fit; set them back, or fit again. "
            "New inputs are given as Xnew, parameters and offsets at them as params={…} and "
            "offset=…"
        )


def _changed_since_drawn(tree: Any, used: Mapping[str, Any]) -> list[str]:
    if "constant_data" not in tree.children:
        return []
    drawn = tree["constant_data"].to_dataset()
    now = {name: var.get_value(borrow=True) for name, var in used.items() if name in drawn}
    return [name for name, value in now.items() if not np.array_equal(value, drawn[name].values)]
