"""Predictions from posterior draws, also of a series' next steps, and analytic ones from fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from pymc.model import Model

from pymc_augconj.errors import AugmentationError
from pymc_augconj.parallel.executor import blas_limit
from pymc_augconj.prediction.mixtures import (
    DrawnMixture,
    GaussianMixture,
    IndependentMixture,
)
from pymc_augconj.prediction.moments import count_threads, draw_groups
from pymc_augconj.recognition.graph.dependence import static_shape
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.prediction.evaluate import kernel_functions
from pymc_augconj.recognition.prediction.latent_draws import (
    NewProcess,
    equal_draws,
    predictors_of_draws,
)
from pymc_augconj.recognition.prediction.new_inputs import NewPredictors
from pymc_augconj.recognition.prediction.transitions import (
    GridProcess,
    MarkovProcess,
    read_transition,
)
from pymc_augconj.recognition.predictors.coefficients import affine_in_latents
from pymc_augconj.results.approximation.approximation import Approximation
from pymc_augconj.results.approximation.fitted_model import FittedLatents, inducing_name
from pymc_augconj.results.approximation.model_check import (
    check_draws,
    check_inducing_draws,
    check_likelihood,
    check_process,
    inducing_inputs_of,
)
from pymc_augconj.results.comparison.fits import DataTree
from pymc_augconj.results.predictions import (
    Request,
    Sampled,
    Variables,
    needed_draws,
    predictions_tree,
)
from pymc_augconj.typing import Array, Generator, Index

# Draws of a process at new inputs, (S, outputs, P), and of other variables.
_Drawn = tuple[Array, dict[str, np.ndarray], Sampled]


def process_of_draws(tree: DataTree, request: Request) -> tuple[Variables, Sampled]:
    """Return a draw of f* | f for every posterior draw, and their averages."""
    check_draws(tree, request.whole, request.name)
    f_new, _, sampled = _draw_process(tree, request, request.gps[0], [])
    f_new, axes = f_new if request.outputs else f_new[:, 0], request.axes
    return {
        request.name: (("sample", *axes), f_new),
        f"{request.name}_mean": (axes, f_new.mean(axis=0)),
        f"{request.name}_std": (axes, f_new.std(axis=0)),
    }, sampled


def _draw_process(tree: DataTree, request: Request, gp: Any, names: Sequence[str]) -> _Drawn:
    """Return a draw of f* | f for every posterior draw, with the variables ``names``."""
    model, Xnew, process = request.model, request.Xnew, gp.f.name
    Z = inducing_inputs_of(tree, process)
    markov = MarkovProcess.find(model, process, Xnew) if Z is None else None
    grid = GridProcess.find(model, process) if Z is None and markov is None else None
    latent, old = (process, "mean_old") if Z is None else (inducing_name(process), "mean_at")
    wanted = [old, "mean_new", "new" if request.joint else "new_diagonal", "cross", "old"]
    more: Sequence[Any] = ()
    if markov is not None:
        wanted, more = [old, "mean_new", "new_diagonal"], markov.array.names
    elif grid is not None:
        wanted, more = wanted[:-1], grid.matrices.names
    evaluate = kernel_functions(model, gp, Xnew, Z)(*wanted)
    kernel = sorted({str(name) for name in (*evaluate.names, *more)})
    draws, sampled = needed_draws(tree, [latent, *kernel, *names])
    for name in draws.keys() - {latent}:
        draws[name] = draws[name].astype(model[name].dtype)
    f = draws[latent].reshape(len(draws[latent]), -1, draws[latent].shape[-1])

    def values_of(draw: int) -> dict[str, np.ndarray]:
        return {name: np.asarray(draws[name][draw]) for name in kernel}

    def parts_of(draw: int) -> dict[str, np.ndarray]:
        values = map(np.asarray, evaluate(values_of(draw)))
        return dict(zip(["mean_old", *wanted[1:]], values, strict=True))

    f_new = np.empty((*f.shape[:2], len(Xnew)))
    if markov is not None:
        for draw, own in enumerate(f):
            parts, array = parts_of(draw), np.asarray(markov.array(values_of(draw)))
            away, diagonal = own - parts["mean_old"], parts["new_diagonal"]
            away = markov.draw(request.rng, array, away, diagonal, joint=request.joint)
            f_new[draw] = parts["mean_new"] + away
        return f_new, draws, sampled
    groups, noise = equal_draws(draws, kernel), request.rng.standard_normal(f_new.shape)
    if grid is None:
        f_new[:] = _draw_by_kernels(groups, f, noise, parts_of, request, evaluate)
    else:
        for members in groups:
            parts = parts_of(members[0])
            away = f[members, 0] - parts["mean_old"]
            f_new[members, 0] = grid.draw(values_of(members[0]), away, noise[members, 0], parts)
    if Z is not None:
        check_inducing_draws(tree, process, parts_of(0), f[0, 0], request.jitter)
    return f_new, draws, sampled


def _draw_by_kernels(
    equal: Sequence[Index],
    f: Array,
    noise: Array,
    parts_of: Callable[[int], dict[str, np.ndarray]],
    request: Request,
    evaluate: PointFunction,
) -> Array:
    """Return draws of f*, (S, outputs, P), given f, (S, outputs, n), by dense matrices.

    ``equal`` are the draws that share a kernel.
    """
    # The outputs of one draw are treated as several draws with the same kernel.
    outputs, n, n_new = f.shape[1], f.shape[2], noise.shape[2]
    groups = [(outputs * members[:, None] + np.arange(outputs)).ravel() for members in equal]
    threads = count_threads(len(groups), (n + n_new) * (n + n_new if request.joint else n))
    if len(groups) > 1:
        evaluate.compile()
    options: Any = {"jitter": request.jitter, "joint": request.joint, "threads": threads}
    # Several threads with a multithreaded BLAS would compete for the cores.
    with blas_limit(1) if threads > 1 else nullcontext():
        flat = f.reshape(-1, n), noise.reshape(-1, n_new)
        found = draw_groups(groups, *flat, lambda draw: parts_of(draw // outputs), **options)
    return found.reshape(noise.shape)


def y_of_draws(tree: DataTree, request: Request, read: NewPredictors) -> Variables:
    """Return the predictions of an observed variable, from draws of the processes in it."""
    for gp in request.gps:
        check_draws(tree, request.whole, gp.f.name)
    wanted = [*(h.name for h in read.lgm.hyperparameters), *read.other_entries()]
    draws: dict[str, np.ndarray] = {}
    processes = []
    for gp in request.gps:
        f_new, own, _ = _draw_process(tree, request, gp, wanted)
        mean_old = kernel_functions(request.model, gp, request.Xnew)("mean_old")
        processes.append(NewProcess(gp.f.name, f_new, mean_old))
        draws |= own
    eta, params = predictors_of_draws(request.model, read, draws, processes)
    mixture = DrawnMixture(read.likelihood, eta, params)
    if read.site.likelihood.n_classes is None:
        return request.of_y(mixture, read)
    return classes_of(mixture, request, read.site.name)


def classes_of(mixture: DrawnMixture | IndependentMixture, request: Request, y: str) -> Variables:
    """Return the probabilities of all classes, and of the requested ones."""
    probabilities = mixture.class_probabilities()
    assert probabilities is not None
    found: Variables = {f"{y}_probability": (("*", f"{y}_class"), probabilities.T)}
    return {**found, **request.log_density_of_y(mixture, y)}


def check_labels(dim: str | None, coords: Sequence[Any] | None, size: int, name: str) -> None:
    """Refuse a name and labels of the axis of the predictions that do not fit."""
    if coords is not None and len(coords) != size:
        raise AugmentationError(f"coords: expected {size} labels, got {len(coords)}")
    if dim in ("chain", "draw", "sample", name):
        raise AugmentationError(
            f"dim: expected a name that is not of the axes of draws, nor {name!r}, got {dim!r}"
        )


def predict_series(
    tree: DataTree,
    model: Model,
    name: str,
    steps: int,
    *,
    dim: str | None,
    coords: Sequence[Any] | None,
    rng: Generator,
) -> DataTree:
    """Return draws of the next steps of the series ``name``, one for each posterior draw."""
    if not (isinstance(steps, Integral) and steps >= 1):
        raise AugmentationError(f"steps: expected a positive integer, got {steps!r}")
    check_labels(dim, coords, steps, name)
    series = read_transition(model, name)
    draws, sampled = needed_draws(tree, [name, *series.names])
    shapes = {key: static_shape(model[key]) for key in series.names} | {name: series.shape}
    for key, shape in shapes.items():
        if draws[key].shape[1:] != shape:
            raise AugmentationError(
                f"posterior: expected draws of {key!r} of the model's shape {shape}, found "
                f"{draws[key].shape[1:]}; pass the model that was sampled as model="
            )
    n = series.shape[series.axis]
    last = np.take(draws[name], range(n - series.lags, n), axis=series.axis).astype(float)
    new = series.simulate(draws, last, int(steps), rng)

    named = model.named_vars_to_dims.get(name) or (None,) * len(series.shape)
    dims = [given or f"{name}_dim_{i}" for i, given in enumerate(named)]
    labels = {d: c for d, c in model.coords.items() if d in dims and c is not None}
    if dim is not None:
        dims[series.axis] = dim
    labels[dims[series.axis]] = np.arange(n, n + steps) if coords is None else np.asarray(coords)
    found = {
        name: (("sample", *dims), new),
        f"{name}_mean": (dims, new.mean(axis=0)),
        f"{name}_std": (dims, new.std(axis=0)),
    }
    return predictions_tree(found, labels, {"inference_library": "pymc_augconj"}, sampled)


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
        cov = np.array(new.functions("new")(new.theta)) + np.einsum("kikj->kij", change)
        found[f"{name}_cov"] = ((*axes, "*_bis"), cov.reshape(*shape, request.size))
    return found


def y_of_fit(result: Approximation, request: Request, read: NewPredictors) -> Variables:
    """Return the predictions of an observed variable of one predictor."""
    new = _NewValues.of(result, request, request.gps[0])
    point = {**read.start, **result.point}
    check_likelihood(result, read.lgm, point, read.site.name)
    mean_old, through = _mean_of(result._latents, new.functions("mean_old"), new.theta)
    (predictor,) = read.at(point, {request.name: (mean_old, through)})
    (coef,) = predictor.through[request.name].coef
    # Rows of other blocks are added to those of the process's mean.
    rows = {i: coef * row for i, row in new.rows.items()}
    for i, row in predictor.rows.items():
        rows[i] = rows.get(i, 0.0) + row
    added, change = _given_sites(result, coef * new.cross, rows)
    mean = predictor.offset + coef * new.mean + added
    var = np.maximum(coef**2 * new.var + change, 0.0)
    mixture = GaussianMixture(read.likelihood, mean, var, read.params(point))
    return request.of_y(mixture, read)


def classes_of_fit(result: Approximation, request: Request, read: NewPredictors) -> Variables:
    """Return the probabilities of classes by integrals; no variables if the likelihood has none."""
    terms = read.site.likelihood
    if not terms.traits.factorises or terms.n_classes is None or read.other_entries():
        return {}
    point, theta = {**read.start, **result.point}, result.typed_theta(request.model)
    check_likelihood(result, read.lgm, point, read.site.name)
    means_old: dict[str, tuple[Array, dict[int, Array]]] = {}
    for gp in request.gps:
        mean_old = kernel_functions(request.model, gp, request.Xnew)("mean_old")
        if not set(mean_old.names) <= set(theta):
            return {}  # its mean depends on another latent
        means_old[gp.f.name] = mean_old(theta), {}
    predictors = read.at(point, means_old)
    every = [gp.f.name for gp in request.gps]
    coefs = {name: np.stack([each.through[name].coef for each in predictors]) for name in every}
    if (sum(np.count_nonzero(coef, axis=1) for coef in coefs.values()) > 1).any():
        return {}  # terms of one predictor, which are correlated
    mean = np.tile(np.array([[each.offset] for each in predictors]), request.size)
    var = np.zeros_like(mean)
    for gp in request.gps:
        own, own_var, _ = _NewValues.of(result, request, gp).moments(result)
        coef = coefs[gp.f.name]
        mean += coef @ own.reshape(-1, request.size)
        var += coef**2 @ np.maximum(own_var, 0.0).reshape(-1, request.size)
    mixture = IndependentMixture(terms, mean, var, read.params(point))
    return classes_of(mixture, request, read.site.name)


@dataclass(frozen=True)
class _NewValues:
    """The prior of a process with K outputs, one after the other, at P new inputs and a θ."""

    theta: dict[str, np.ndarray]
    functions: Callable[..., PointFunction]
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
        covariances = functions("cross", "new_diagonal")
        if unknown := set(covariances.names) - set(theta):
            raise AugmentationError(
                f"gp {name!r}: expected a kernel whose hyperparameters have a value in the "
                f"approximation, found {sorted(unknown)} without one; use the gp of the fitted "
                "model"
            )
        cross, var = map(np.array, covariances(theta))
        index = result.names.index(latent)
        mean_at = _mean_of(latents, functions("mean_at"), theta)
        check_process(result, index, model, name, functions("old"), theta, mean_at)
        mean, moving = _mean_of(latents, functions("mean_new"), theta)
        outputs = latents.prior.maps[index].size // cross.shape[1]
        return cls(
            theta,
            functions,
            np.tile(mean, outputs),
            np.tile(var, outputs),
            latents.prior.maps[index].apply(np.kron(np.eye(outputs), cross)),
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
    product = np.inner if full_cov else np.vecdot
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
