"""Whether a fit is one of this model: of this process, this mean and this likelihood.

Names alone say little, as most models have a process ``"f"`` and observations ``"y"``. What a fit
keeps of its model are numbers at its hyperparameters, and these are computed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_augconj.errors import AugmentationError
from pymc_augconj.model import LatentGaussianModel, Point
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.prediction.evaluate import (
    covariance_function,
    variable_function,
)
from pymc_augconj.recognition.processes.input_data import sums_of_arrays
from pymc_augconj.recognition.processes.process import JITTER

from .approximation import Approximation
from .fingerprint import densities

__all__ = ["check_draws", "check_likelihood", "check_process"]

Array = NDArray[np.float64]

# Covariances that are computed by other operations differ by rounding where inputs are far from
# zero in units of their length scale; predictions differ as little.
_TOLERANCE = 1e-6


def check_likelihood(fit: Approximation, lgm: LatentGaussianModel, point: Point, name: str) -> None:
    """Refuse a model in which the observed variable ``name`` is another one than in the fit.

    Raises
    ------
    AugmentationError
    """
    kept = fit.fingerprint.densities
    if not kept:  # a file from before it was kept
        return
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
    """Refuse a process whose covariance or mean at its inputs is another one than in the fit.

    Parameters
    ----------
    fit : Approximation
    index : int
        Its latent.
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
    block = fit.blocks[index]
    diagonal = block.cov.diagonal() - block.jitter
    tolerance = _TOLERANCE * np.abs(diagonal).max(initial=0.0)

    def agrees(K: Array, jitter: Array | float = 0.0) -> bool:
        difference = K - block.cov
        np.fill_diagonal(difference, K.diagonal() + jitter - diagonal)
        return bool(np.all(np.abs(difference) <= tolerance))

    own = np.asarray(functions["old"](theta))
    if own.shape != block.cov.shape:
        raise _refuse(name, f"{len(block.cov)} inputs, found {len(own)}")
    if name in fit.inducing:
        same = agrees(own, JITTER)
    else:
        # gp.prior adds a jitter of the user's choice, which the variable in the model has, too.
        jitter = diagonal - own.diagonal()
        same = np.ptp(jitter) <= tolerance and agrees(own, jitter)
        prior = covariance_function(model, name) if same else None
        same = prior is not None and set(prior.names) <= set(theta) and agrees(prior(theta))
        if same and name in fit.fingerprint.inputs:
            kept, sums = fit.fingerprint.inputs[name], sums_of_arrays(prior.graph)
            if len(sums) != len(kept) or not np.allclose(sums, kept, rtol=_TOLERANCE, atol=0.0):
                raise _refuse(name, "the inputs that were fitted, found others")
    if not same:
        raise _refuse(name, "the covariance of its inputs that was fitted, found another one")
    constant, rows = fit.in_innovations(fit.names[index])
    found, moving = mean
    copies = block.block.copies
    scale = 1.0 + np.abs(constant).max(initial=0.0)
    same = np.abs(np.tile(found, copies) - constant).max(initial=0.0) <= _TOLERANCE * scale
    for i in {*rows, *moving}:
        ours, theirs = np.tile(moving.get(i, 0.0), (copies, 1)), rows.get(i, 0.0)
        same = same and np.abs(ours - theirs).max(initial=0.0) <= _TOLERANCE * scale
    if not same:
        raise _refuse(name, "the mean at its inputs that was fitted, found another one")


def check_draws(tree: Any, model: Any, name: str) -> None:
    """Refuse draws of a process that do not follow from those of its free variables.

    Where the process is itself the free variable, draws say nothing of its kernel.

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
        # A factor of an ill-conditioned covariance loses half of the digits, and traces may be of
        # single precision.
        scale = np.abs(drawn).max(initial=0.0)
        same = found.shape == drawn.shape and np.abs(found - drawn).max(initial=0.0) <= 1e-3 * scale
    if not same:
        raise _refuse(
            name,
            f"draws of {sorted({name, *function.names})} that belong together in "
            "the model, found others",
        )


def _refuse(name: str, what: str) -> AugmentationError:
    return AugmentationError(
        f"gp {name!r}: expected {what}; use the gp and the model that were fitted (with "
        "model=…), or fit this model"
    )
