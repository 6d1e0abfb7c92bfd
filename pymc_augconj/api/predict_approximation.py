"""Predictions of an approximation, which are analytic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pymc.model import Model

from pymc_augconj.errors import AugmentationError
from pymc_augconj.prediction.mixtures import GaussianMixture
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.prediction.evaluate import kernel_functions
from pymc_augconj.recognition.prediction.new_inputs import NewPredictors
from pymc_augconj.recognition.predictors.random_mean import affine_in_latents
from pymc_augconj.results.approximation.approximation import Approximation
from pymc_augconj.results.approximation.latents import FittedLatents
from pymc_augconj.results.approximation.layout import inducing_name
from pymc_augconj.results.approximation.model_check import check_likelihood, check_process
from pymc_augconj.results.comparison.fits import DataTree
from pymc_augconj.results.predictions import Request
from pymc_augconj.typing import Array

from .predict_y import by_inputs

__all__ = ["from_approximation", "typed"]


def from_approximation(
    result: Approximation,
    model: Model,
    gp: Any,
    Xnew: np.ndarray,
    request: Request,
    read: NewPredictors | None,
    full_cov: bool,
) -> DataTree:
    """Return the predictions of the process, or of the observed variable that was read."""
    name, latents = request.name, result._latents
    Z = result.inducing.get(name)
    latent = name if Z is None else inducing_name(name)
    if latent not in result.names:
        raise AugmentationError(
            f"gp: expected a process among the latents {list(result.names)} of the approximation, "
            f"got {name!r}; use the gp of the fitted model"
        )
    functions = kernel_functions(model, gp, Xnew, Z)
    theta = typed(model, result.theta)
    unknown = {name for key in ("cross", "new_diagonal") for name in functions[key].names} - set(
        theta
    )
    if unknown:
        raise AugmentationError(
            f"gp {name!r}: expected a kernel whose hyperparameters have a value in the "
            f"approximation, found {sorted(unknown)} without one; use the gp of the fitted model"
        )
    new_cross, var = (np.array(functions[key](theta)) for key in ("cross", "new_diagonal"))
    index = result.names.index(latent)
    mean_at = _mean_of(latents, functions["mean_at"], theta)
    check_process(result, index, model, name, functions, theta, mean_at)
    mean_new, moving = _mean_of(latents, functions["mean_new"], theta)
    # Outputs are independent and identically distributed a priori: the first axis of the block.
    outputs = latents.prior.maps[index].size // new_cross.shape[1]
    mean_new, var = np.tile(mean_new, outputs), np.tile(var, outputs)
    new_cross = np.kron(np.eye(outputs), new_cross)
    # Covariance of f*, and below of η*, with the merged old predictors.
    cross = latents.prior.maps[index].apply_rows(new_cross)
    # A mean that depends on latents contributes to the covariance.
    moving = {i: np.tile(rows, (outputs, 1)) for i, rows in moving.items()}
    attrs = {"method": result.method, "inference_library": "pymc_augconj"}
    if read is None:
        added, change = _given_sites(result, cross, moving, full_cov=full_cov)
        diagonal = np.diagonal(change) if full_cov else change
        std = np.sqrt(np.maximum(var + diagonal, 0.0))
        shape = (request.size,) if request.outputs is None else (outputs, request.size)
        found = {
            f"{name}_mean": (request.axes, (mean_new + added).reshape(shape)),
            f"{name}_std": (request.axes, std.reshape(shape)),
        }
        if full_cov:
            change = change.reshape(2 * (outputs, request.size))
            cov = np.array(functions["new"](theta)) + np.einsum("kikj->kij", change)
            found[f"{name}_cov"] = ((*request.axes, "*_bis"), cov.reshape(*shape, request.size))
        return request.tree(found, attrs)
    point = {**read.start, **result.point}
    check_likelihood(result, read.lgm, point, read.site.name)
    mean_old, through = _mean_of(latents, functions["mean_old"], theta)
    (new,) = read.at(point, {name: mean_old}, through)
    (coef,) = new.through[name].coef
    # Rows of other blocks are added to those of the process's mean.
    rows = {i: coef * row for i, row in moving.items()}
    for i, row in new.rows.items():
        rows[i] = rows.get(i, 0.0) + row
    added, change = _given_sites(result, coef * cross, rows)
    mean = new.offset + coef * mean_new + added
    var = np.maximum(coef**2 * var + change, 0.0)
    mixture = GaussianMixture(read.likelihood, mean, var, read.params(point))
    return request.tree(request.of_y(by_inputs(mixture, read), read), attrs, read)


def _given_sites(
    result: Approximation, cross: Array, rows: Mapping[int, Array], *, full_cov: bool = False
) -> tuple[Array, Array]:
    """Return moments of new values f* + Σ row @ innovation of a block, given the sites.

    Parameters
    ----------
    result : Approximation
    cross : ndarray, shape (P, R)
        Prior covariance of f* with the merged old predictors.
    rows : mapping
        By the index of a block, (P, size) or (size,).
    full_cov : bool

    Returns
    -------
    mean : ndarray, shape (P,)
    cov : ndarray, shape (P,) or (P, P)
        To be added to the prior variances, or covariance, of f*.
    """
    latents, posterior = result._latents, result._posterior
    product = _outer if full_cov else np.vecdot
    blocks, coefficients, cov = latents.blocks, {}, np.zeros(())
    for i, row in rows.items():
        row = np.atleast_2d(row)
        if blocks[i].diagonal_scale is not None:
            coefficients[i] = row
            continue
        cross = cross + row @ blocks[i].cross_cov(latents.prior.maps[i])
        cov = cov + product(row, blocks[i].apply_cov(row))
    mean = cross @ posterior.alpha
    cov = cov - (posterior.explained(cross) if full_cov else posterior.explained_var(cross))
    # By their own moments, as the prior variance of a wide or flat coefficient has no digits of the
    # posterior one.
    means = posterior.innovation_means() if coefficients else []
    for i, row in coefficients.items():
        mean = mean + row @ means[i]
        beside = product(cross @ posterior.weighted_cov(i), row)
        cov = cov - beside - beside.T
        for j, other in coefficients.items():
            cov = cov + product(row @ posterior.innovation_cov(i, j), other)
    return mean, cov


def _outer(X: Array, Y: Array) -> Array:
    return X @ Y.T


def _mean_of(
    latents: FittedLatents, function: PointFunction, theta: Mapping[str, np.ndarray]
) -> tuple[Array, dict[int, Array]]:
    """Return a mean function's values as constant + Σ rows @ innovation of a block."""
    shapes = {b.block.name: b.block.shape for b in latents.blocks if not b.block.whitened}
    constant, matrices = affine_in_latents(function, theta, shapes)
    rows: dict[int, Array] = {}
    for name, matrix in matrices.items():
        offset, maps = latents.mean_in_innovations(name)
        constant = constant + matrix @ offset
        own = latents.index(name)
        for i, inner in {own: np.eye(matrix.shape[1]), **maps}.items():
            rows[i] = rows.get(i, 0.0) + matrix @ inner
    return constant, rows


def typed(model: Model, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return values with the types that the model's variables have."""
    return {name: np.asarray(value, dtype=model[name].dtype) for name, value in values.items()}
