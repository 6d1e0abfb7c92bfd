"""``pac.predict``: one function for the predictions of every kind of fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pymc as pm
from pymc.model import Model, modelcontext

from pymc_augconj.errors import AugmentationError
from pymc_augconj.recognition.prediction.new_inputs import read_predictors
from pymc_augconj.recognition.processes.minibatch import with_all_data
from pymc_augconj.recognition.processes.process import JITTER
from pymc_augconj.recognition.recognizer import read_model
from pymc_augconj.results.approximation.approximation import Approximation
from pymc_augconj.results.approximation.data_check import check_data
from pymc_augconj.results.approximation.model_check import (
    check_draws,
)
from pymc_augconj.results.approximation.sparse import SparseApproximation
from pymc_augconj.results.comparison.fits import DataTree
from pymc_augconj.results.predictions import Request
from pymc_augconj.typing import Array

from .chunks import is_dask_array
from .predict_approximation import from_approximation, typed
from .predict_chunks import predict_chunks
from .predict_series import predict_series
from .predict_y import classes_of, independent_classes, y_from_draws
from .process_draws import draw_process

__all__ = ["model_of", "predict"]

# Separates the stream of predictions from other streams of the same seed.
_STREAM = 1


def predict(
    result: Any,
    gp: Any,
    Xnew: Any = None,
    kind: Literal["f", "y"] = "f",
    *,
    steps: int | None = None,
    model: Model | None = None,
    observed: str | None = None,
    params: Mapping[str, Any] | None = None,
    offset: Any = None,
    ynew: Any = None,
    quantile: float | Sequence[float] = (),
    full_cov: bool = False,
    joint: bool = True,
    jitter: float = JITTER,
    dim: str | None = None,
    coords: Sequence | None = None,
    random_seed: int | np.random.Generator | None = None,
) -> DataTree:
    """Predict a Gaussian process, or the observations, at new inputs; or go on with a time series.

    Parameters
    ----------
    result : Approximation or DataTree
        From :func:`pymc_augconj.fit`, :func:`pymc_augconj.sample`, ``pm.sample`` or any other
        sampler. Predictions from an approximation are analytic; those from draws are draws of
        f* | f, and averages over them.
    gp : pm.gp.Latent or sequence of pm.gp.Latent
        The process itself, not its values: the one whose ``prior`` is in the model. For a sum of
        processes pass the sum. For ``kind="y"`` of an observed variable with several predictors
        (a mean and a scale, or classes) all processes in these, ``[gp_mean, gp_scale]``.
        With ``steps`` the name of a time series instead: a ``GaussianRandomWalk``,
        ``MvGaussianRandomWalk``, ``AR`` or ``EulerMaruyama``.
    Xnew : array_like, shape (P, d)
        New inputs, in the units of those of ``prior``. For a Dask array the predictions of an
        approximation are Dask arrays, computed a chunk at a time when they are asked for.
    kind : {"f", "y"}
        Predict the process or the observations. ``"y"`` needs a predictor that is the process,
        perhaps times a coefficient, plus terms that are the same for all observations. With
        several predictors an approximation is drawn from, 1000 times, but for robust-max, whose
        probabilities are integrals.
    steps : int, optional
        Forecast so many values after the last one of a series, one path for each posterior draw of
        its values and of the parameters of its steps; an approximation is drawn from, 1000 times.
    model : pymc.Model, optional
        By default the model of the context, or the one that an approximation was fitted to.
    observed : str, optional
        The observed variable, if several depend on the process.
    params : mapping, optional
        Parameters of the likelihood at the new inputs, by name, if they differ between the
        observations: a number or an array of shape (P,), such as ``{"n": 20}`` for a binomial.
    offset : array_like, shape (P,) or (), optional
        The terms of the predictor at the new inputs other than the process and other Gaussian
        latents, if they differ between observations: for example the logarithm of an exposure.
    ynew : array_like, shape (P,) or (), optional
        Observations at the new inputs: adds their log predictive densities; ``kind="y"`` only.
        With ``ynew=k`` these are the log probabilities of the class or count k.
    quantile : float or sequence of float, optional
        Levels in (0, 1) at which to add quantiles of y; ``kind="y"`` only.
    full_cov : bool
        For an approximation: add the covariance matrix of f, one for each output if there are
        several; ``kind="f"`` only.
    joint : bool
        For draws: whether the entries of one draw of f* are drawn jointly. False draws every input
        independently, which is faster for many inputs.
    jitter : float
        For draws: added to the diagonal of covariances, as ``gp.conditional`` does.
    dim, coords : str, sequence, optional
        Name and labels of the axis of the new inputs; by default ``f_dim_0`` and 0, 1, …, or
        ``f_dim_1`` after the axis of several outputs. Of a series of n values the labels are n,
        n + 1, … by default, and the axis has the name that it has in the model.
    random_seed : int or Generator, optional
        Seed of the draws of f*.

    Returns
    -------
    DataTree
        Group ``predictions``. With f and y for the names of the variables: ``f_mean``, ``f_std``,
        shape (P,), ``f_cov`` (``full_cov``), shape (P, P), and, from draws, ``f`` of shape (chain,
        draw, P); for ``kind="y"`` ``y_mean`` (a probability for binary y, the mean of the codes 0,
        1, … for ordered classes), ``y_std`` and ``y_log_density``, shape (P,), and ``y_quantile``,
        shape (quantile, P); for classes with a predictor each ``y_probability``, shape (P, K), in
        place of mean and standard deviation. Of a series h: ``h``, of the shape that it has in the
        posterior with ``steps`` values, ``h_mean`` and ``h_std``.

    Raises
    ------
    AugmentationError
        If the result, the process and the model do not belong together, the model does not
        determine the predictor at new inputs, or the series is none whose steps are normal.

    Examples
    --------
    >>> with model:  # doctest: +SKIP
    ...     p = pac.predict(vi, gp, Xnew, kind="y").predictions["y_mean"]
    ...     ahead = pac.predict(idata, "h", steps=12).predictions["h"]
    """
    if is_dask_array(Xnew):
        options = {
            "kind": kind, "observed": observed, "params": params, "offset": offset, "ynew": ynew,
            "quantile": quantile, "full_cov": full_cov, "joint": joint, "jitter": jitter,
            "dim": dim, "coords": coords, "random_seed": random_seed,
        }  # fmt: skip
        options["model"] = model_of(model, result)
        return predict_chunks(predict, result, gp, Xnew, options)
    quantile = tuple(np.atleast_1d(np.asarray(quantile, dtype=float)).tolist())
    if kind not in ("f", "y"):
        raise AugmentationError(f"kind: expected 'f' or 'y', got {kind!r}")
    about_y = {"ynew": ynew, "offset": offset, "params": params, "observed": observed}
    given = [name for name, value in about_y.items() if value is not None]
    if kind == "f" and (given or quantile):
        raise AugmentationError(
            f"kind: expected 'y' with {[*given, *(['quantile'] if quantile else [])]}, which are "
            "about observations, got 'f'; use kind='y'"
        )
    if kind == "y" and full_cov:
        raise AugmentationError(
            "full_cov: expected kind='f', as it is about the process, got 'y'; use kind='f'"
        )
    if steps is not None or isinstance(gp, str):
        about_inputs = {"Xnew": Xnew, "full_cov": full_cov or None, **about_y}
        steps = _check_series(gp, steps, about_inputs, kind)
        model = model_of(model, result)
        tree = (
            result.sample(random_seed=random_seed)
            if isinstance(result, Approximation)
            else _draws(result)
        )
        rng = _generator(random_seed)
        return predict_series(tree, model, gp, steps, dim=dim, coords=coords, rng=rng)
    model = model_of(model, result)
    gps = list(gp) if isinstance(gp, list | tuple) else [gp]
    if isinstance(gp, list | tuple) and (kind == "f" or not gps):
        raise AugmentationError(
            "gp: expected one process, or with kind='y' all those in the predictors of an observed "
            f"variable, got {len(gps)} with kind={kind!r}; predict each of them"
        )
    for process in gps:
        Xnew = _check_inputs(process, Xnew)
    outputs = any(process.f.ndim > 1 for process in gps)
    several = kind == "y" and (outputs or isinstance(gp, list | tuple))
    if several and offset is not None:
        raise AugmentationError(
            "offset: expected none for an observed variable with several predictors, got one; "
            "predict kind='f' and combine the processes as the model does"
        )
    drawn = None if isinstance(result, Approximation) else _draws(result)
    for process in gps:
        check_data(result if drawn is None else drawn, model, process, kind, observed)
    everything, rng = with_all_data(model), _generator(random_seed)
    axis = None if several else _outputs(model, gp, outputs)
    request = Request(gps[0].f.name, dim, coords, quantile, ynew, len(Xnew), axis)
    if kind == "f":
        if drawn is None:
            return from_approximation(result, model, gp, Xnew, request, None, full_cov)
        check_draws(drawn, everything, gp.f.name)
        return _from_draws(drawn, model, gp, Xnew, request, jitter, joint, rng)
    numbers = {
        name: _check_numbers(f"params[{name!r}]", value, len(Xnew))
        for name, value in (params or {}).items()
    }
    recognition = None if drawn is not None else result.recognition_of(everything)
    read = read_predictors(
        recognition or read_model(everything), [process.f.name for process in gps], observed,
        numbers, None if offset is None else _check_offset(offset, len(Xnew)), several=several,
    )  # fmt: skip
    if read.likelihood.unpredictable:
        raise AugmentationError(
            f"{read.site.label} ({read.likelihood.name}): {read.likelihood.unpredictable}"
        )
    attrs = {"inference_library": "pymc_augconj"}
    if drawn is None:
        if not several:
            return from_approximation(result, model, gp, Xnew, request, read, full_cov)

        def moments_of(process: Any) -> tuple[Array, Array]:
            found = predict(result, process, Xnew, model=model).predictions
            return tuple(found[f"{process.f.name}_{end}"].values for end in ("mean", "std"))

        theta = typed(model, result.theta)
        classes = independent_classes(result, model, gps, Xnew, read, theta, moments_of)
        if classes is not None:
            return request.tree(classes_of(classes, request, read.site.name), attrs, read)
        drawn = _drawn_from(result, random_seed)
    found = y_from_draws(
        drawn, model, everything, gps, Xnew, request, read, jitter=jitter, joint=joint, rng=rng
    )
    return request.tree(found, attrs, read)


def model_of(model: Model | None, result: Any) -> Model:
    """Return the given model, that of the context, or the one that was fitted."""
    model = model or Model.get_context(error_if_none=False) or getattr(result, "model", None)
    if model is None:
        raise AugmentationError(
            "model: expected the model that was sampled, found none; pass model=, or call "
            "pac.predict inside `with model:`"
        )
    return modelcontext(model)


def _draws(result: Any) -> Any:
    tree = result.to_datatree() if hasattr(result, "to_datatree") else result
    if not hasattr(tree, "children") or "posterior" not in tree.children:
        raise AugmentationError(
            "result: expected what pac.fit returns or a DataTree with a posterior group, got "
            f"{type(result).__name__}"
        )
    return tree


def _generator(random_seed: Any) -> np.random.Generator:
    """Return a separate stream: the posterior's seed must not give the same numbers for f*."""
    if random_seed is None or isinstance(random_seed, np.random.Generator):
        return np.random.default_rng(random_seed)
    return np.random.default_rng(np.random.SeedSequence(random_seed, spawn_key=(_STREAM,)))


def _check_series(gp: Any, steps: Any, about_inputs: Mapping[str, Any], kind: str) -> int:
    """Return the number of steps; refuse arguments that do not go with a forecast."""
    if not isinstance(gp, str):
        raise AugmentationError(
            f"steps: expected the name of a time series of the model with it, got {gp!r}; a "
            "Gaussian process is predicted at new inputs, pac.predict(result, gp, Xnew)"
        )
    if steps is None:
        raise AugmentationError(
            f"gp: expected a pm.gp.Latent, got the name {gp!r}; pass the process itself, or steps= "
            "to forecast a time series of that name"
        )
    given = [name for name, value in about_inputs.items() if value is not None]
    if given or kind != "f":
        raise AugmentationError(
            f"steps: expected a forecast of the series {gp!r} alone, got "
            f"{[*given, *(['kind'] if kind != 'f' else [])]} too; draw observations from its "
            "forecasts as the model does"
        )
    return steps


def _check_inputs(gp: Any, Xnew: Any) -> np.ndarray:
    if not all(hasattr(gp, name) for name in ("f", "X", "cov_func", "mean_func")):
        raise AugmentationError(
            f"gp: expected a pm.gp.Latent whose prior is in the model, got {_what(gp)}"
        )
    try:
        Xnew = np.asarray(Xnew, dtype=float)
    except (TypeError, ValueError):
        raise AugmentationError(f"Xnew: expected an array of numbers, got {Xnew!r}") from None
    width = np.shape(gp.X)[-1] if hasattr(gp.X, "__len__") else gp.X.type.shape[-1]
    if Xnew.ndim != 2 or (width is not None and Xnew.shape[1] != width):
        raise AugmentationError(
            f"Xnew: expected shape (points, {width}) as the inputs of {gp.f.name!r}, got "
            f"{Xnew.shape}"
        )
    if not np.isfinite(Xnew).all():
        raise AugmentationError("Xnew: expected finite numbers, found a NaN or an infinity")
    return Xnew


def _what(gp: Any) -> str:
    """Return a description of an argument that is no process with a prior, and what to do."""
    if hasattr(gp, "owner"):
        return f"the variable {gp.name!r}; pass the process, not its values"
    if hasattr(gp, "prior_linearized"):
        return (
            f"{type(gp).__name__}; use its conditional(…) with pm.sample_posterior_predictive, on "
            "the draws or on those of an approximation's sample()"
        )
    if hasattr(gp, "marginal_likelihood") and not isinstance(gp, pm.gp.Latent):
        return (
            f"pm.gp.{type(gp).__name__}; predict it with its own predict(…) or conditional(…), or "
            "write the model with pm.gp.Latent"
        )
    if isinstance(gp, pm.gp.Latent):
        return "one without a prior; call gp.prior(…), and for a sum of processes pass the sum"
    return repr(gp)


def _check_numbers(name: str, given: Any, size: int) -> np.ndarray:
    values = np.asarray(given, dtype=float)
    if values.shape not in ((), (size,)) or np.isnan(values).any():
        raise AugmentationError(
            f"{name}: expected one number, or one for each of {size} inputs, got shape "
            f"{values.shape}{' with NaN' if np.isnan(values).any() else ''}"
        )
    return values


def _check_offset(offset: Any, size: int) -> np.ndarray:
    values = _check_numbers("offset", offset, size)
    if not np.isfinite(values).all():
        raise AugmentationError("offset: expected finite numbers, found an infinity")
    return np.broadcast_to(values, (size,))


def _drawn_from(result: Approximation, random_seed: Any) -> Any:
    if isinstance(result, SparseApproximation):
        return result.draws_at_inducing(random_seed)
    return result.sample(random_seed=random_seed)


def _outputs(model: Model, gp: Any, several: bool) -> tuple[str, Any] | None:
    """Return name and labels of the axis of a process of several outputs."""
    if not several:
        return None
    dim = (model.named_vars_to_dims.get(gp.f.name) or (f"{gp.f.name}_dim_0",))[0]
    return str(dim), model.coords.get(dim)


def _from_draws(
    tree: DataTree,
    model: Model,
    gp: Any,
    Xnew: np.ndarray,
    request: Request,
    jitter: float,
    joint: bool,
    rng: np.random.Generator,
) -> DataTree:
    drawn = draw_process(tree, model, gp, Xnew, [], jitter=jitter, joint=joint, rng=rng)
    f_new, name = drawn.f_new, request.name
    if request.outputs is None:
        f_new = f_new[:, 0]
    found = {
        name: (("sample", *request.axes), f_new),
        f"{name}_mean": (request.axes, f_new.mean(axis=0)),
        f"{name}_std": (request.axes, f_new.std(axis=0)),
    }
    return request.tree(found, {"inference_library": "pymc_augconj"}, sampled=drawn.sampled)
