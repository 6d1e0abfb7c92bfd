"""Check that a fit, or draws, belong to a model: the same process, mean, likelihood and data.

Names are not enough, as most models have a process ``"f"`` and observations ``"y"``. The checks
recompute the numbers that a fit stores about its model, and compare them. ``pm.set_data`` changes
a model's data but not its fits: a prediction would mix old and new data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pymc_augconj.errors import AugmentationError
from pymc_augconj.latents.base import BlockPrior
from pymc_augconj.latents.dense import DensePrior
from pymc_augconj.latents.markov import MarkovPrior
from pymc_augconj.linalg.dense import cholesky_with_jitter
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.point import Point
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.prediction.evaluate import covariance_function, variable_function
from pymc_augconj.recognition.prediction.transitions import MarkovProcess
from pymc_augconj.recognition.processes.other_graphs import (
    checksums,
    data_behind,
    in_linear_time,
    input_data,
    sums_of_arrays,
)
from pymc_augconj.recognition.processes.process import JITTER
from pymc_augconj.typing import Array

from .approximation import Approximation
from .fitted_model import densities, inducing_inputs_name, inducing_name

# Covariances from different operations differ by rounding if inputs are many length scales from
# zero; predictions differ as little.
_TOLERANCE = 1e-6


def check_likelihood(fit: Approximation, lgm: LatentGaussianModel, point: Point, name: str) -> None:
    """Raise AugmentationError if the observed variable ``name`` differs from the fit's."""
    kept = fit._fingerprint.densities
    expected = kept.get(name, np.nan)
    found = densities(lgm, point, fit.observed).get(name, np.nan)
    if name not in kept or not np.isclose(
        found, expected, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True
    ):
        raise AugmentationError(
            f"observed variable {name!r}: expected the likelihood and the predictor of the fit, "
            f"whose log density is {expected:.6g} where this model's is {found:.6g}; use the model "
            "that was fitted, or fit this one"
        )


def check_process(
    fit: Approximation,
    index: int,
    model: Any,
    name: str,
    cov_old: PointFunction,
    theta: Point,
    mean: tuple[Array, Mapping[int, Array]],
) -> None:
    """Raise AugmentationError if covariance or mean of latent ``index`` differ from the fit's.

    ``cov_old`` is its covariance at the old inputs; ``mean`` its mean at ``theta``.
    """
    block = fit._latents.blocks[index]
    if isinstance(block, MarkovPrior):
        _check_markov(block, model, name, theta)
    else:
        _check_dense(fit, block, model, name, cov_old, theta)
    constant, rows = fit._latents.mean_in_innovations(fit.names[index])
    found, moving = mean
    copies = block.block.copies
    scale = 1.0 + np.abs(constant).max(initial=0.0)
    same = np.abs(np.tile(found, copies) - constant).max(initial=0.0) <= _TOLERANCE * scale
    for i in {*rows, *moving}:
        ours, theirs = np.tile(moving.get(i, 0.0), (copies, 1)), rows.get(i, 0.0)
        same = same and np.abs(ours - theirs).max(initial=0.0) <= _TOLERANCE * scale
    if not same:
        raise _refuse(name, "the mean of the fit at its inputs, found a different one")


def _check_markov(block: MarkovPrior, model: Any, name: str, theta: Point) -> None:
    """Raise AugmentationError unless the process has the inputs and parameters of the fit."""
    process = MarkovProcess.find(model, name, np.empty((0, 1)))
    same = process is not None and set(process.array.names) <= set(theta)
    if same and process is not None:
        found = np.asarray(process.array(theta))
        same = np.array_equal(process.inputs.table, block.inputs.table) and (
            found.shape == block.array.shape
            and np.allclose(found, block.array, rtol=_TOLERANCE, atol=0.0)
        )
    if not same:
        raise _refuse(name, "the inputs and the covariance of the fit, found different ones")


def _check_dense(
    fit: Approximation,
    block: BlockPrior,
    model: Any,
    name: str,
    cov_old: PointFunction,
    theta: Point,
) -> None:
    """Raise AugmentationError unless the process has the covariance matrix of the fit."""
    if not isinstance(block, DensePrior):
        raise _refuse(name, f"a dense covariance, found the kind {block.kind!r}")
    cov = block.cov
    diagonal = cov.diagonal() - block.jitter
    tolerance = _TOLERANCE * np.abs(diagonal).max(initial=0.0)

    def agrees(K: Array, jitter: Array | float = 0.0) -> bool:
        difference = K - cov
        np.fill_diagonal(difference, K.diagonal() + jitter - diagonal)
        return bool(np.all(np.abs(difference) <= tolerance))

    own = np.asarray(cov_old(theta))
    if own.shape != cov.shape:
        raise _refuse(name, f"{len(cov)} inputs, found {len(own)}")
    if name in fit.inducing:
        same = agrees(own, JITTER)
    else:
        # gp.prior adds a jitter of the user's choice, also to the model's variable.
        jitter = diagonal - own.diagonal()
        same = np.ptp(jitter) <= tolerance and agrees(own, jitter)
        prior = covariance_function(model, name) if same else None
        same = prior is not None and set(prior.names) <= set(theta) and agrees(prior(theta))
        if same and prior is not None and name in fit._fingerprint.inputs:
            kept, sums = fit._fingerprint.inputs[name], sums_of_arrays(prior.graph)
            if len(sums) != len(kept) or not np.allclose(sums, kept, rtol=_TOLERANCE, atol=0.0):
                raise _refuse(name, "the inputs of the fit, found different ones")
    if not same:
        raise _refuse(name, "the covariance of the fit at its inputs, found a different one")


def check_draws(tree: Any, model: Any, name: str) -> None:
    """Raise AugmentationError if draws of a process disagree with those of its free variables."""
    function = variable_function(in_linear_time(model), name)
    posterior = tree["posterior"].to_dataset().isel(chain=0, draw=0)
    if not {name, *function.names} <= set(posterior):
        return
    values = {key: posterior[key].values.astype(model[key].dtype) for key in function.names}
    shapes = {key: model[key].type.shape for key in function.names}
    same = all(
        len(shapes[key]) == np.ndim(value)
        and all(known in (None, size) for known, size in zip(shapes[key], value.shape, strict=True))
        for key, value in values.items()
    )
    if not (same and _agree(function(values), posterior[name].values)):
        raise _refuse_draws(name, sorted({name, *function.names}))


def check_inducing_draws(
    tree: Any, name: str, parts: Mapping[str, Array], values: Array, jitter: float
) -> None:
    """Raise AugmentationError if draws at inducing inputs have another kernel than the model.

    ``parts`` are mean and covariance at the first draw, ``values``, (M,), those of one output
    there.
    """
    posterior = tree["posterior"].to_dataset()
    entry = f"{inducing_name(name)}_rotated_"
    if entry not in posterior:
        return
    weights = posterior[entry].isel(chain=0, draw=0).values
    weights = weights[0] if weights.ndim > 1 else weights
    same = weights.shape == values.shape == parts["mean_old"].shape
    if same:
        cov = parts["old"] + jitter * np.eye(values.size)
        same = _agree(parts["mean_old"] + cholesky_with_jitter(cov)[0] @ weights, values)
    if not same:
        raise _refuse_draws(name, [inducing_name(name), entry])


def _agree(found: Any, drawn: Array) -> bool:
    """Return whether arrays agree, up to half of the digits, as an ill-conditioned factor's do."""
    found, scale = np.asarray(found), np.abs(drawn).max(initial=0.0)
    return found.shape == drawn.shape and bool(
        np.abs(found - drawn).max(initial=0.0) <= 1e-3 * scale
    )


def _refuse_draws(name: str, names: Sequence[str]) -> AugmentationError:
    return _refuse(
        name, f"draws of {names} that agree with each other in the model, found that they do not"
    )


def _refuse(name: str, what: str) -> AugmentationError:
    return AugmentationError(
        f"gp {name!r}: expected {what}; use the gp and the model that were fitted (with "
        "model=…), or fit this model"
    )


def check_data(result: Any, model: Any, gp: Any, kind: str, observed: str | None) -> None:
    """Raise AugmentationError if the model's data differ from the data of a result.

    The group ``constant_data`` has the data of draws; without it they are not checked.
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
        constant = "constant_data" in result.children
        # Among the data are also lengths of dims, which draws have as coordinates.
        drawn = result["constant_data"].data_vars if constant else {}
        changed = [
            name
            for name, var in used.items()
            if name in drawn and not np.array_equal(var.get_value(borrow=True), drawn[name].values)
        ]
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
