"""Log densities of the observations at draws through inducing points, for leave-one-out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from pymc.model import Model

from pymc_augconj.errors import AugmentationError
from pymc_augconj.recognition.prediction.evaluate import unconstrained_function
from pymc_augconj.results.approximation.layout import Labels
from pymc_augconj.results.comparison.fits import DataTree
from pymc_augconj.results.predictions import needed_draws, predictions_tree

from .step import AugmentedGibbs

__all__ = ["add_log_likelihood", "observed_names"]

_GROUP = "log_likelihood"
_OPTION = f"idata_kwargs[{_GROUP!r}]"


def observed_names(
    model: Model, sparse: Model, asked: bool | Collection[str], kwargs: Mapping[str, Any]
) -> list[str]:
    """Return the observed variables that ``idata_kwargs={"log_likelihood": …}`` asks for.

    Parameters
    ----------
    model, sparse : pymc.Model
        The user's, and the one through inducing points.
    asked : bool or collection of str
    kwargs : mapping
        Other arguments of ``pm.sample``.

    Raises
    ------
    AugmentationError
        If a name is not known, or if what is computed from would not be kept.
    """
    known = [rv.name for rv in model.observed_RVs]
    if isinstance(asked, bool):
        names = known if asked else []
    elif unknown := set(asked) - set(known):
        raise AugmentationError(
            f"{_OPTION}: expected True or names among {known}, got {sorted(unknown)}"
        )
    else:
        names = [name for name in known if name in asked]
    if names and not kwargs.get("return_inferencedata", True):
        raise AugmentationError(
            f"{_OPTION}: expected a DataTree to add to, got return_inferencedata=False; leave out "
            "one of them"
        )
    free = [rv.name for rv in sparse.free_RVs]
    if names and (missing := set(free) - set(kwargs.get("var_names") or free)):
        raise AugmentationError(
            f"{_OPTION}: expected the draws of all free variables to be kept, found no "
            f"{sorted(missing)} in var_names; add them, or leave out var_names"
        )
    return names


def add_log_likelihood(
    tree: DataTree,
    step: AugmentedGibbs,
    sparse: Model,
    model: Model,
    names: Collection[str],
) -> DataTree:
    """Return draws with the group ``log_likelihood``.

    Its entries are E log p(y_i | f_i) given the values at the inducing inputs and the
    hyperparameters of a draw: what the draws' own distribution has a factor of for each
    observation, so that leaving one out divides by it.

    Parameters
    ----------
    tree : DataTree
        Draws of ``sparse``.
    step : AugmentedGibbs
        What drew them.
    sparse, model : pymc.Model
        The model through inducing points, and the user's.
    names : collection of str
        Observed variables.
    """
    draws, sampled = needed_draws(tree, [rv.name for rv in sparse.free_RVs])
    variables = {rv.name: sparse.rvs_to_values[rv].name for rv in sparse.free_RVs}
    entries = unconstrained_function(sparse, list(variables))
    sampler = step.make_sampler(step.recognition.start, by_observation=True)
    found: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for i in range(len(sampled[0]) * len(sampled[1])):
        point = entries({name: draws[name][i] for name in entries.names})
        point = dict(zip(variables.values(), map(np.asarray, point), strict=True))
        for name, densities in sampler.log_densities(point).items():
            if name in found:
                found[name].append(densities)
    labels = Labels.of_model(model)
    dimmed = {
        name: (("sample", _dim(labels, name)), np.array(rows)) for name, rows in found.items()
    }
    tree.update(predictions_tree(dimmed, labels.coords, {}, sampled, _GROUP))
    return tree


def _dim(labels: Labels, name: str) -> str:
    """Return the dim of the observations of a variable, which may be more than a vector."""
    dims = labels.of(name, 1)
    return dims[0] if len(dims) == 1 else f"{name}_dim_0"
