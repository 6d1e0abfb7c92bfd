"""Analytic predictions from an approximation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_augconj.errors import AugmentationError
from pymc_augconj.prediction.mixtures import GaussianMixture, IndependentMixture
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.prediction.evaluate import kernel_function, kernel_functions
from pymc_augconj.recognition.prediction.new_inputs import NewPredictors
from pymc_augconj.recognition.predictors.random_mean import affine_in_latents
from pymc_augconj.results.approximation.approximation import Approximation
from pymc_augconj.results.approximation.fitted_model import FittedLatents
from pymc_augconj.results.approximation.layout import inducing_name
from pymc_augconj.results.approximation.model_check import check_likelihood, check_process
from pymc_augconj.results.predictions import Request, Variables
from pymc_augconj.typing import Array

from .predict_draws import by_inputs, classes_of


def process_of_fit(result: Approximation, request: Request) -> Variables:
    """Return means and standard deviations of the process, and covariances if asked for."""
    name, axes = request.name, request.axes
    new = _NewValues.of(result, request, request.gps[0])
    mean, var, change = new.moments(result, full_cov=request.full_cov)
    outputs = len(mean) // request.size
    shape = (request.size,) if request.outputs is None else (outputs, request.size)
    found = {
        f"{name}_mean": (axes, mean.reshape(shape)),
        f"{name}_std": (axes, np.sqrt(np.maximum(var, 0.0)).reshape(shape)),
    }
    if request.full_cov:
        change = change.reshape(2 * (outputs, request.size))
        cov = np.array(new.functions["new"](new.theta)) + np.einsum("kikj->kij", change)
        found[f"{name}_cov"] = ((*axes, "*_bis"), cov.reshape(*shape, request.size))
    return found


def y_of_fit(result: Approximation, request: Request, read: NewPredictors) -> Variables:
    """Return the predictions of an observed variable of one predictor."""
    new = _NewValues.of(result, request, request.gps[0])
    point = {**read.start, **result.point}
    check_likelihood(result, read.lgm, point, read.site.name)
    mean_old, through = _mean_of(result._latents, new.functions["mean_old"], new.theta)
    (predictor,) = read.at(point, {request.name: mean_old}, through)
    (coef,) = predictor.through[request.name].coef
    # Rows of other blocks are added to those of the process's mean.
    rows = {i: coef * row for i, row in new.rows.items()}
    for i, row in predictor.rows.items():
        rows[i] = rows.get(i, 0.0) + row
    added, change = _given_sites(result, coef * new.cross, rows)
    mean = predictor.offset + coef * new.mean + added
    var = np.maximum(coef**2 * new.var + change, 0.0)
    mixture = GaussianMixture(read.likelihood, mean, var, read.params(point))
    return request.of_y(by_inputs(mixture, read), read)


def classes_of_fit(result: Approximation, request: Request, read: NewPredictors) -> Variables:
    """Return the probabilities of classes by integrals; no variables if the likelihood has none."""
    terms = read.site.likelihood
    if not terms.traits.factorises or terms.n_classes is None or read.other_entries():
        return {}
    point, theta = {**read.start, **result.point}, result.typed_theta(request.model)
    check_likelihood(result, read.lgm, point, read.site.name)
    means_old = {}
    for gp in request.gps:
        mean_old = kernel_function(request.model, gp, request.Xnew, ["mean_old"])
        if not set(mean_old.names) <= set(theta):
            return {}  # its mean depends on another latent
        (means_old[gp.f.name],) = mean_old(theta)
    predictors = read.at(point, means_old)
    coefs = {
        gp.f.name: np.stack([each.through[gp.f.name].coef for each in predictors])
        for gp in request.gps
    }
    if (sum(np.count_nonzero(coef, axis=1) for coef in coefs.values()) > 1).any():
        return {}  # terms of one predictor, which are correlated
    mean = np.tile(np.array([[each.offset] for each in predictors]), request.size)
    var = np.zeros_like(mean)
    for gp in request.gps:
        own, own_var, _ = _NewValues.of(result, request, gp).moments(result)
        coef = coefs[gp.f.name]
        mean += coef @ own.reshape(-1, request.size)
        var += coef**2 @ np.maximum(own_var, 0.0).reshape(-1, request.size)
    mixture = IndependentMixture(terms, mean, var, {**read.params(point), **read.varying})
    return classes_of(mixture, request, read.site.name)


@dataclass(frozen=True)
class _NewValues:
    """The prior of a process with K outputs, one after the other, at P new inputs and a θ."""

    theta: dict[str, np.ndarray]
    functions: dict[str, PointFunction]
    mean: Array
    var: Array
    # Covariance with the merged old predictors, (KP, R).
    cross: Array
    # By the index of a block, (KP, size): coefficients of its innovation in the mean.
    rows: dict[int, Array]

    @classmethod
    def of(cls, result: Approximation, request: Request, gp: Any) -> _NewValues:
        """Return them; AugmentationError if the process is not the one that was fitted."""
        model, name, latents = request.model, gp.f.name, result._latents
        Z = result.inducing.get(name)
        latent = name if Z is None else inducing_name(name)
        if latent not in result.names:
            raise AugmentationError(
                f"gp: expected a process among the latents {list(result.names)} of the "
                f"approximation, got {name!r}; use the gp of the fitted model"
            )
        functions = kernel_functions(model, gp, request.Xnew, Z)
        theta = result.typed_theta(model)
        needed = {*functions["cross"].names, *functions["new_diagonal"].names}
        if unknown := needed - set(theta):
            raise AugmentationError(
                f"gp {name!r}: expected a kernel whose hyperparameters have a value in the "
                f"approximation, found {sorted(unknown)} without one; use the gp of the fitted "
                "model"
            )
        cross, var = (np.array(functions[key](theta)) for key in ("cross", "new_diagonal"))
        index = result.names.index(latent)
        mean_at = _mean_of(latents, functions["mean_at"], theta)
        check_process(result, index, model, name, functions, theta, mean_at)
        mean, moving = _mean_of(latents, functions["mean_new"], theta)
        outputs = latents.prior.maps[index].size // cross.shape[1]
        return cls(
            theta,
            functions,
            np.tile(mean, outputs),
            np.tile(var, outputs),
            latents.prior.maps[index].apply_rows(np.kron(np.eye(outputs), cross)),
            # A mean that depends on latents contributes to the covariance.
            {i: np.tile(rows, (outputs, 1)) for i, rows in moving.items()},
        )

    def moments(
        self, result: Approximation, *, full_cov: bool = False
    ) -> tuple[Array, Array, Array]:
        """Return posterior means, variances, and the change of these, or of the covariances."""
        added, change = _given_sites(result, self.cross, self.rows, full_cov=full_cov)
        diagonal = np.diagonal(change) if full_cov else change
        return self.mean + added, self.var + diagonal, change


def _given_sites(
    result: Approximation, cross: Array, rows: Mapping[int, Array], *, full_cov: bool = False
) -> tuple[Array, Array]:
    """Return means of new values f* + Σ row @ innovation of a block, and changes of variances.

    ``cross``, (P, R), is the prior covariance of f* with the merged old predictors; ``rows`` are of
    shape (P, size) or (size,), by the index of a block. With ``full_cov`` covariances are changed.
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
