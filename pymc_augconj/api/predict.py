"""``pac.predict``: one function for the predictions of every kind of fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from traceback import walk_tb
from typing import Any, Literal

import numpy as np
import pymc as pm
from pymc.model import Model, modelcontext

from pymc_augconj.errors import AugmentationError
from pymc_augconj.recognition.prediction.new_inputs import read_predictors
from pymc_augconj.recognition.processes.other_graphs import with_all_data
from pymc_augconj.recognition.processes.process import JITTER
from pymc_augconj.recognition.recognizer import read_model
from pymc_augconj.results.approximation.approximation import Approximation
from pymc_augconj.results.approximation.model_check import check_data
from pymc_augconj.results.comparison.fits import DataTree
from pymc_augconj.results.predictions import ObservationOptions, Request

from .chunks import is_dask_array, predict_chunks
from .predict_from import (
    check_labels,
    classes_of_fit,
    predict_series,
    process_of_draws,
    process_of_fit,
    y_of_draws,
    y_of_fit,
)

# Separates the stream of predictions from other streams of the same seed.
_STREAM = 1
# What predicts other effects.
_OTHERS = (
    "an effect is predicted by pm.set_data and pm.sample_posterior_predictive, and a pac.Vecchia "
    "at new inputs by pac.Vecchia.conditional"
)


def predict(
    result: Any,
    gp: Any,
    Xnew: Any = None,
    kind: Literal["f", "y"] = "f",
    *,
    steps: int | None = None,
    model: Model | None = None,
    full_cov: bool = False,
    joint: bool = True,
    jitter: float = JITTER,
    dim: str | None = None,
    coords: Sequence[Any] | None = None,
    random_seed: int | np.random.Generator | None = None,
    **options: Any,
) -> DataTree:
    """Predict a Gaussian process, or the observations, at new inputs; or forecast a time series.

    Parameters
    ----------
    result : Approximation or DataTree
        A result of :func:`pymc_augconj.fit`, or draws by any sampler. Predictions from an
        approximation are analytic; predictions from draws are draws of f* | f, and their averages.
    gp : pm.gp.Latent or sequence of pm.gp.Latent
        The process itself, not its values: the process whose ``prior`` is in the model, or the sum
        of processes. For ``kind="y"`` of an observed variable with several predictors (a mean and
        a scale, or classes) all processes in the predictors, ``[gp_mean, gp_scale]``. With
        ``steps`` the name of a time series: a ``GaussianRandomWalk``, ``MvGaussianRandomWalk``,
        ``AR`` or ``EulerMaruyama``.
    Xnew : array_like, shape (P, d)
        New inputs, in the units of the inputs of ``prior``. For a Dask array the predictions of an
        approximation are Dask arrays.
    kind : {"f", "y"}
        Predict the process or the observations. ``"y"`` needs a predictor that is the process,
        perhaps times a coefficient, plus terms that are the same for all observations. With
        several predictors, predictions from an approximation use 1000 draws; robust-max uses
        integrals.
    steps : int, optional
        Number of values to forecast after the last one of a series, one path for each posterior
        draw, or for each of 1000 draws of an approximation.
    model : pymc.Model, optional
        By default the model of the context, or the fitted model of an approximation.
    full_cov : bool
        For an approximation: whether to add the covariance matrix of f, one for each output;
        ``kind="f"`` only.
    joint : bool
        For draws: whether to draw the entries of one f* jointly. False draws each input
        independently, which is faster for many inputs.
    jitter : float
        For draws: added to the diagonal of covariances, as ``gp.conditional`` does.
    dim, coords : str, sequence, optional
        Name and labels of the axis of the new inputs; by default ``f_dim_0`` and 0, 1, …, or
        ``f_dim_1`` after the axis of several outputs; for a series of n values its own axis and n,
        n + 1, ….
    random_seed : int or Generator, optional
        Seed of the draws of f*.
    **options
        Options about observations, with ``kind="y"`` only, see
        :class:`~pymc_augconj.results.predictions.ObservationOptions`: ``observed``, the observed
        variable; ``params`` and ``offset``, parameters of the likelihood and other terms of the
        predictor at the new inputs; ``ynew``, observations, whose log predictive densities the
        result then has; and ``quantile``, levels.

    Returns
    -------
    DataTree
        Group ``predictions``. With f and y for the names of the variables: ``f_mean``, ``f_std``,
        shape (P,), ``f_cov`` (``full_cov``), shape (P, P), and, from draws, ``f`` of shape (chain,
        draw, P); for ``kind="y"`` ``y_mean`` (a probability for binary y, the mean of the codes 0,
        1, … for ordered classes), ``y_std`` and ``y_log_density``, shape (P,), and ``y_quantile``,
        shape (quantile, P); for classes with a predictor each ``y_probability``, shape (P, K), in
        place of mean and standard deviation. For a series h: ``h``, of its shape in the posterior
        but with ``steps`` values, ``h_mean`` and ``h_std``.

    Raises
    ------
    AugmentationError
        If the result, the process and the model do not belong together, the model does not
        determine the predictor at new inputs, or the steps of the series are not normal.

    Examples
    --------
    >>> with model:  # doctest: +SKIP
    ...     p = pac.predict(vi, gp, Xnew, kind="y").predictions["y_mean"]
    ...     ahead = pac.predict(idata, "h", steps=12).predictions["h"]
    """
    if unknown := options.keys() - {each.name for each in fields(ObservationOptions)}:
        raise TypeError(f"predict() got an unexpected keyword argument {unknown.pop()!r}")
    if is_dask_array(Xnew):
        options |= {
            "kind": kind, "full_cov": full_cov, "joint": joint, "jitter": jitter, "dim": dim,
            "coords": coords, "random_seed": random_seed, "model": model_of(model, result),
        }  # fmt: skip
        return predict_chunks(predict, result, gp, Xnew, options)
    about_y = ObservationOptions(**options)
    _check_kind(kind, about_y, full_cov)
    fitted, rng = isinstance(result, Approximation), _generator(random_seed)
    if steps is not None or isinstance(gp, str):
        steps = _check_series(gp, steps, kind, about_y, Xnew, full_cov)
        model = model_of(model, result)
        tree = result.sample(random_seed=random_seed) if fitted else draws_of(result)
        return predict_series(tree, model, gp, steps, dim=dim, coords=coords, rng=rng)
    model = model_of(model, result)
    gps = list(gp) if isinstance(gp, list | tuple) else [gp]
    if isinstance(gp, list | tuple) and (kind == "f" or not gps):
        raise AugmentationError(
            "gp: expected one process, or with kind='y' all processes in the predictors of an "
            f"observed variable, got {len(gps)} with kind={kind!r}; predict each process separately"
        )
    for process in gps:
        Xnew = _check_inputs(process, Xnew)
        check_labels(dim, coords, len(Xnew), process.f.name)
    outputs = any(process.f.ndim > 1 for process in gps)
    several = kind == "y" and (outputs or isinstance(gp, list | tuple))
    if several and about_y.offset is not None:
        raise AugmentationError(
            "offset: expected none for an observed variable with several predictors, got one; "
            "predict kind='f' and combine the processes as the model does"
        )
    drawn = result if fitted else draws_of(result)
    for process in gps:
        check_data(drawn, model, process, kind, about_y.observed)
    request = Request(
        model, with_all_data(model), gps, Xnew, about_y, full_cov, joint, jitter, dim, coords, rng,
        _outputs(model, gp) if outputs and not several else None,
    )  # fmt: skip
    attrs = {"inference_library": "pymc_augconj"} | ({"method": result.method} if fitted else {})
    with _indices_in_range(gps[0].f.name):
        if kind == "f":
            if fitted:
                return request.tree(process_of_fit(result, request), attrs)
            found, sampled = process_of_draws(drawn, request)
            return request.tree(found, attrs, sampled=sampled)
        read = read_predictors(
            (result.recognition_of(request.whole) if fitted else None) or read_model(request.whole),
            request.whole,
            [process.f.name for process in gps], about_y.observed, about_y.numbers(len(Xnew)),
            about_y.offsets(len(Xnew)), several=several,
        )  # fmt: skip
        if read.likelihood.unpredictable:
            raise AugmentationError(
                f"{read.site.label} ({read.likelihood.name}): {read.likelihood.unpredictable}"
            )
        if fitted and not several:
            return request.tree(y_of_fit(result, request, read), attrs, read)
        found = classes_of_fit(result, request, read) if fitted else {}
        if not found:
            drawn = result.draws_at_inducing(random_seed) if fitted else drawn
            found = y_of_draws(drawn, request, read)
        return request.tree(found, attrs, read)


def model_of(model: Model | None, result: Any) -> Model:
    """Return the given model, the model of the context, or the fitted model."""
    model = model or Model.get_context(error_if_none=False) or getattr(result, "model", None)
    if model is None:
        raise AugmentationError(
            "model: expected the model that was sampled, found none; pass model=, or call "
            "pac.predict inside `with model:`"
        )
    return modelcontext(model)


def draws_of(result: Any) -> Any:
    """Return a DataTree of draws; AugmentationError if there is none."""
    tree = result.to_datatree() if hasattr(result, "to_datatree") else result
    posterior = getattr(tree, "children", {}).get("posterior")
    if posterior is None or not {"chain", "draw"} <= set(posterior.dims):
        raise AugmentationError(
            "result: expected what pac.fit returns or a DataTree with a posterior group, which has "
            f"a chain and a draw axis (one chain is sel(chain=[0])), got {type(result).__name__}"
        )
    return tree


def _generator(random_seed: Any) -> np.random.Generator:
    """Return a separate stream: the seed of the posterior must give other numbers for f*."""
    if random_seed is None or isinstance(random_seed, np.random.Generator):
        return np.random.default_rng(random_seed)
    return np.random.default_rng(np.random.SeedSequence(random_seed, spawn_key=(_STREAM,)))


def _check_kind(kind: str, about_y: ObservationOptions, full_cov: bool) -> None:
    """Refuse options of another kind of predictions."""
    if kind not in ("f", "y"):
        raise AugmentationError(f"kind: expected 'f' or 'y', got {kind!r}")
    if kind == "f" and about_y.given:
        raise AugmentationError(
            f"kind: expected 'y' with {about_y.given}, which are about observations, got 'f'; use "
            "kind='y'"
        )
    if kind == "y" and full_cov:
        raise AugmentationError(
            "full_cov: expected kind='f', as it is about the process, got 'y'; use kind='f'"
        )


def _check_series(
    gp: Any, steps: Any, kind: str, about_y: ObservationOptions, Xnew: Any, full_cov: bool
) -> int:
    """Return the number of steps; refuse arguments that do not go with a forecast."""
    if not isinstance(gp, str):
        raise AugmentationError(
            f"steps: expected the name of a time series of the model with it, got {gp!r}; a "
            "Gaussian process is predicted at new inputs, pac.predict(result, gp, Xnew)"
        )
    if steps is None:
        raise AugmentationError(
            f"gp: expected a pm.gp.Latent, got the name {gp!r}; pass the process itself, or steps= "
            f"to forecast a time series of that name; {_OTHERS}"
        )
    others = {"Xnew": Xnew is not None, "full_cov": full_cov, "kind": kind != "f"}
    given = [*about_y.given, *(name for name, is_given in others.items() if is_given)]
    if given:
        raise AugmentationError(
            f"steps: expected a forecast of the series {gp!r} alone, got {given} too; draw "
            "observations from its forecasts as the model does"
        )
    return steps


def _check_inputs(gp: Any, Xnew: Any) -> np.ndarray:
    known = all(hasattr(gp, name) for name in ("f", "X", "cov_func", "mean_func"))
    if not known or isinstance(gp, pm.gp.TP):
        raise AugmentationError(
            f"gp: expected a pm.gp.Latent whose prior is in the model, got {_what(gp)}"
        )
    try:
        Xnew = np.asarray(Xnew, dtype=float)
    except (TypeError, ValueError):
        raise AugmentationError(f"Xnew: expected an array of numbers, got {Xnew!r}") from None
    width = np.shape(gp.X)[-1] if hasattr(gp.X, "__len__") else gp.X.type.shape[-1]
    if Xnew.ndim != 2 or not len(Xnew) or (width is not None and Xnew.shape[1] != width):
        raise AugmentationError(
            f"Xnew: expected shape (points, {width}) as the inputs of {gp.f.name!r}, got "
            f"{Xnew.shape}"
        )
    if not np.isfinite(Xnew).all():
        raise AugmentationError("Xnew: expected finite numbers, found a NaN or an infinity")
    return Xnew


@contextmanager
def _indices_in_range(name: str) -> Iterator[None]:
    """Explain an index of an output of ``Coregion``, say, that is too large for a graph."""
    try:
        yield
    except IndexError as error:
        *_, (frame, _) = walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").startswith("pymc_augconj"):
            raise
        what = (
            f"Xnew: expected outputs that the covariance of {name!r} has, found another ({error})"
        )
        raise AugmentationError(what) from error


def _what(gp: Any) -> str:
    """Return a description of an argument that is no process with a prior, and an alternative."""
    if hasattr(gp, "owner"):
        return f"the variable {gp.name!r}; pass the process, not its values; {_OTHERS}"
    if hasattr(gp, "prior_linearized") or isinstance(gp, pm.gp.TP):
        return (
            f"{type(gp).__name__}; use its conditional(…) with pm.sample_posterior_predictive, on "
            "draws of the posterior or of an approximation's sample()"
        )
    if hasattr(gp, "marginal_likelihood") and not isinstance(gp, pm.gp.Latent):
        return (
            f"pm.gp.{type(gp).__name__}; predict it with its own predict(…) or conditional(…), or "
            "write the model with pm.gp.Latent"
        )
    if isinstance(gp, pm.gp.Latent):
        return (
            "one without a prior; call gp.prior(…), for a sum of processes pass the sum, and "
            "predict a part of it by part.conditional(name, Xnew, given={'X': X, 'f': f, 'gp': "
            "sum}) with pm.sample_posterior_predictive"
        )
    return repr(gp)


def _outputs(model: Model, gp: Any) -> tuple[str, Any]:
    """Return name and labels of the axis of a process of several outputs."""
    dim = (model.named_vars_to_dims.get(gp.f.name) or (f"{gp.f.name}_dim_0",))[0]
    return str(dim), model.coords.get(dim)
