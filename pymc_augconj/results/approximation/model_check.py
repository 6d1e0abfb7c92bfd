"""Check that a fit belongs to a model, with the same process, mean and likelihood.

Names are not enough, as most models have a process ``"f"`` and observations ``"y"``. The numbers
that a fit stores about its model are recomputed and compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pymc_augconj.errors import AugmentationError
from pymc_augconj.latents.dense import DensePrior
from pymc_augconj.linalg.cholesky import cholesky_with_jitter
from pymc_augconj.model import LatentGaussianModel, Point
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.prediction.evaluate import (
    covariance_function,
    variable_function,
)
from pymc_augconj.recognition.processes.input_data import sums_of_arrays
from pymc_augconj.recognition.processes.process import JITTER
from pymc_augconj.typing import Array

from .approximation import Approximation
from .fingerprint import densities
from .layout import inducing_name

__all__ = ["check_draws", "check_inducing_draws", "check_likelihood", "check_process"]

# Covariances from different operations differ by rounding if inputs are many length scales from
# zero; predictions differ as little.
_TOLERANCE = 1e-6


def check_likelihood(fit: Approximation, lgm: LatentGaussianModel, point: Point, name: str) -> None:
    """Refuse a model whose observed variable ``name`` differs from the fit's.

    Raises
    ------
    AugmentationError
    """
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
    functions: Mapping[str, PointFunction],
    theta: Point,
    mean: tuple[Array, Mapping[int, Array]],
) -> None:
    """Refuse a process whose covariance or mean at its inputs differs from the fit's.

    Parameters
    ----------
    fit : Approximation
    index : int
        Index of the latent.
    model : pymc.Model
    name : str
        The process.
    functions : mapping
        Its kernel, see :func:`.kernel_functions`.
    theta : mapping
    mean : (constant, rows)
        Its mean, as a function of the innovations of other blocks by their index.

    Raises
    ------
    AugmentationError
    """
    block = fit._latents.blocks[index]
    if not isinstance(block, DensePrior):
        raise _refuse(name, f"a dense covariance, found the kind {block.kind!r}")
    cov = block.cov
    diagonal = cov.diagonal() - block.jitter
    tolerance = _TOLERANCE * np.abs(diagonal).max(initial=0.0)

    def agrees(K: Array, jitter: Array | float = 0.0) -> bool:
        difference = K - cov
        np.fill_diagonal(difference, K.diagonal() + jitter - diagonal)
        return bool(np.all(np.abs(difference) <= tolerance))

    own = np.asarray(functions["old"](theta))
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


def check_draws(tree: Any, model: Any, name: str) -> None:
    """Refuse draws of a process that disagree with the draws of its free variables.

    The kernel of a process that is itself a free variable cannot be checked.

    Parameters
    ----------
    tree : DataTree
    model : pymc.Model
    name : str
        The process.

    Raises
    ------
    AugmentationError
    """
    function = variable_function(model, name)
    posterior = tree["posterior"].to_dataset().isel(chain=0, draw=0)
    if not {name, *function.names} <= set(posterior):
        return
    values = {key: posterior[key].values.astype(model[key].dtype) for key in function.names}
    shapes = {key: model[key].type.shape for key in function.names}
    drawn = posterior[name].values
    same = all(
        len(shapes[key]) == np.ndim(value)
        and all(known in (None, size) for known, size in zip(shapes[key], value.shape, strict=True))
        for key, value in values.items()
    )
    if same:
        found = np.asarray(function(values))
        # A factor of an ill-conditioned covariance loses half of the digits, and traces may have
        # single precision.
        scale = np.abs(drawn).max(initial=0.0)
        same = found.shape == drawn.shape and np.abs(found - drawn).max(initial=0.0) <= 1e-3 * scale
    if not same:
        raise _refuse(
            name,
            f"draws of {sorted({name, *function.names})} that agree with each other in the model, "
            "found that they do not",
        )


def check_inducing_draws(
    tree: Any, name: str, parts: Mapping[str, Array], values: Array, jitter: float
) -> None:
    """Refuse draws at inducing inputs whose kernel differs from the model's.

    Parameters
    ----------
    tree : DataTree
    name : str
        The process.
    parts : mapping
        ``"mean_old"`` and ``"old"`` at the inducing inputs, at the first draw.
    values : ndarray, shape (M,)
        Values of the process there in that draw; of the first output if there are several.
    jitter : float

    Raises
    ------
    AugmentationError
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
        found = parts["mean_old"] + cholesky_with_jitter(cov)[0] @ weights
        # A factor of an ill-conditioned covariance loses half of the digits.
        scale = np.abs(values).max(initial=0.0)
        same = np.abs(found - values).max(initial=0.0) <= 1e-3 * scale
    if not same:
        raise _refuse(
            name,
            f"draws of {[inducing_name(name), entry]} that agree with each other in the model, "
            "found that they do not",
        )


def _refuse(name: str, what: str) -> AugmentationError:
    return AugmentationError(
        f"gp {name!r}: expected {what}; use the gp and the model that were fitted (with "
        "model=…), or fit this model"
    )
