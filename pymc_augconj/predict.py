"""``pac.predict``: one function for the predictions of every kind of fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pymc.model import Model, modelcontext

from .engines.conditional import draw_conditional
from .engines.predictive import DrawnMixture, GaussianMixture, quantiles
from .engines.site_posterior import cross_cov
from .errors import AugmentationError
from .predictors import NewPredictor, read_predictor
from .recognize.evaluate import kernel_functions
from .results.approximation import Approximation
from .results.predictions import posterior_draws, predictions_tree

__all__ = ["predict"]

#: What ``gp.prior`` and ``gp.conditional`` add to a covariance's diagonal where not told otherwise.
DEFAULT_JITTER = 1e-6


def predict(
    result: Any,
    gp: Any,
    Xnew: Any,
    kind: Literal["f", "y"] = "f",
    *,
    model: Model | None = None,
    observed: str | None = None,
    params: Mapping[str, Any] | None = None,
    ynew: Any = None,
    quantile: Sequence[float] = (),
    full_cov: bool = False,
    joint: bool = True,
    jitter: float = DEFAULT_JITTER,
    dim: str | None = None,
    coords: Sequence | None = None,
    random_seed: int | None = None,
):
    """Predict a Gaussian process, or the observations, at new inputs.

    Parameters
    ----------
    result : Approximation or DataTree
        From :func:`pymc_augconj.fit`, :func:`pymc_augconj.sample`, ``pm.sample`` or any other
        sampler. From an approximation predictions are analytic; from draws they are draws of
        f* | f, and averages over them.
    gp : pm.gp.Latent
        Whose ``prior`` is in the model.
    Xnew : array_like, shape (P, d)
        New inputs.
    kind : {"f", "y"}
        The process itself, or the observations. The latter need a predictor that is the process,
        perhaps times a coefficient, plus terms that are the same for all observations.
    model : pymc.Model, optional
        Taken from the context where omitted.
    observed : str, optional
        The observed variable, where several depend on the process.
    params : mapping, optional
        Parameters of the likelihood at the new inputs, where they differ between the
        observations: ``{"n": 20}`` for a binomial, say. By their names in the likelihood.
    ynew : array_like, shape (P,), optional
        Observations at the new inputs: adds their log predictive densities; ``kind="y"`` only.
    quantile : sequence of float, optional
        Levels at which to add quantiles of y; ``kind="y"`` only.
    full_cov : bool
        From an approximation: add the covariance matrix of f; ``kind="f"`` only.
    joint : bool
        From draws: whether the entries of one draw of f* are correlated as the process is. False
        draws every input by itself, which is faster where there are many.
    jitter : float
        As for ``gp.conditional``.
    dim, coords : str, sequence, optional
        Name and labels of the new inputs' axis; by default ``f_dim_0`` and 0, 1, ….
    random_seed : int or Generator, optional
        Of the draws of f*.

    Returns
    -------
    DataTree
        Group ``predictions``. With f and y for the variables' own names: ``f_mean``, ``f_std``,
        ``f_cov`` (``full_cov``) and, from draws, ``f`` of shape (chain, draw, P); for
        ``kind="y"`` ``y_mean`` (a probability for binary y), ``y_std``, ``y_quantile``,
        ``y_log_density``.

    Raises
    ------
    AugmentationError
        If the result, the process and the model do not belong together, or the predictor at new
        inputs cannot be told from the model.

    Examples
    --------
    >>> with model:  # doctest: +SKIP
    ...     p = pac.predict(vi, gp, Xnew, kind="y").predictions["y_mean"]
    """
    if kind not in ("f", "y"):
        raise AugmentationError(f"expected kind 'f' or 'y', got {kind!r}")
    if kind == "f" and (ynew is not None or len(quantile)):
        raise AugmentationError("ynew and quantile are about observations: use kind='y' with them")
    model = modelcontext(model)
    Xnew = _check_inputs(gp, Xnew)
    request = _Request(gp.f.name, dim, coords, tuple(quantile), ynew, len(Xnew))
    read = None
    if kind == "y":
        read = read_predictor(model, gp, observed, params)
    if isinstance(result, Approximation):
        return _from_approximation(result, model, gp, Xnew, request, read, full_cov)
    tree = result.to_datatree() if hasattr(result, "to_datatree") else result
    if not hasattr(tree, "children") or "posterior" not in tree.children:
        raise AugmentationError(
            "result: expected what pac.fit returns or a DataTree with a posterior group, got "
            f"{type(result).__name__}"
        )
    rng = np.random.default_rng(random_seed)
    return _from_draws(tree, model, gp, Xnew, request, read, jitter, joint, rng)


@dataclass(frozen=True)
class _Request:
    name: str
    dim: str | None
    coords: Sequence | None
    quantile: tuple[float, ...]
    ynew: Any
    size: int

    def tree(self, variables, attrs, read: NewPredictor | None = None, sampled=None):
        dim = self.dim or f"{self.name if read is None else read.observed}_dim_0"
        named = {}
        for name, (dims, values) in variables.items():
            named[name] = (tuple(dim + d[1:] if d.startswith("*") else d for d in dims), values)
        labels = np.arange(self.size) if self.coords is None else np.asarray(self.coords)
        coords = {dim: labels, f"{dim}_bis": labels, "quantile": np.array(self.quantile)}
        return predictions_tree(named, coords, attrs, sampled)

    def of_y(self, mixture, read: NewPredictor) -> dict:
        y = read.observed
        mean, var = mixture.moments()
        found = {f"{y}_mean": (("*",), mean), f"{y}_std": (("*",), np.sqrt(var))}
        if self.quantile:
            levels = np.array(self.quantile)
            if not ((levels > 0.0) & (levels < 1.0)).all():
                raise AugmentationError(f"expected quantile levels in (0, 1), got {self.quantile}")
            values = quantiles(mixture, levels, self.size)
            found[f"{y}_quantile"] = (("quantile", "*"), values)
        if self.ynew is not None:
            ynew = np.asarray(self.ynew, dtype=float)
            if ynew.shape != (self.size,):
                raise AugmentationError(
                    f"ynew: expected one observation for each of {self.size} inputs, got shape "
                    f"{ynew.shape}"
                )
            found[f"{y}_log_density"] = (("*",), mixture.log_density(ynew))
        return found


def _check_inputs(gp: Any, Xnew: Any) -> np.ndarray:
    if not all(hasattr(gp, name) for name in ("f", "X", "cov_func", "mean_func")):
        raise AugmentationError(
            f"gp: expected a pm.gp.Latent whose prior is in the model, got {gp!r}"
        )
    if len(gp.f.type.shape) != 1:
        raise AugmentationError(f"{gp.f.name!r}: expected a process of one output, got several")
    Xnew = np.asarray(Xnew, dtype=float)
    width = np.shape(gp.X)[-1] if hasattr(gp.X, "__len__") else gp.X.type.shape[-1]
    if Xnew.ndim != 2 or (width is not None and Xnew.shape[1] != width):
        raise AugmentationError(
            f"Xnew: expected shape (points, {width}) as the inputs of {gp.f.name!r}, got "
            f"{Xnew.shape}"
        )
    if not np.isfinite(Xnew).all():
        raise AugmentationError("Xnew: expected finite numbers, found a NaN or an infinity")
    return Xnew


def _from_approximation(result, model, gp, Xnew, request, read, full_cov):
    name = request.name
    if name not in result.names:
        raise AugmentationError(
            f"the approximation has no latent {name!r}, only {list(result.names)}; use the gp of "
            "the model that was fitted"
        )
    functions, theta = kernel_functions(model, gp, Xnew), _typed(model, result.theta)
    parts = {
        key: np.array(functions[key](theta)) for key in ("mean_new", "cross", "new_diagonal")
    }
    index = result.names.index(name)
    posterior, A = result.posterior, result.prior.maps[index]
    cross = np.stack([A_row for A_row in _apply(A, parts["cross"])])
    attrs = {"method": result.method, "inference_library": "pymc_augconj"}
    if read is None:
        mean = parts["mean_new"] + cross @ posterior.alpha
        var = parts["new_diagonal"] - posterior.explained_var(cross)
        std = np.sqrt(np.maximum(var, 0.0))
        found = {f"{name}_mean": (("*",), mean), f"{name}_std": (("*",), std)}
        if full_cov:
            new = np.array(functions["new"](theta))
            found[f"{name}_cov"] = (("*", "*_bis"), new - posterior.explained(cross))
        return request.tree(found, attrs)
    point = {**result.point}
    coef, params = read.coefficient(point), read.params(point)
    # η* = coef f* + rest, the rest being that of any old row: its prior law is η's without f's.
    row, entry = 0, read.entry
    inner = cross_cov(result.blocks[index], A)[entry]
    prior_cov = result.prior.predictor_cov
    at = row if result.groups.inverse is None else result.groups.inverse[row]
    block = result.blocks[index]
    own = block.cov[entry, entry] if block.std is None else block.std[entry] ** 2
    start = read.first_row
    at = start if result.groups.inverse is None else result.groups.inverse[start]
    cross = coef * cross + prior_cov[at] - coef * inner
    rest_var = prior_cov[at, at] - coef**2 * own
    offset = result.prior.offset[start] - coef * result.means[index].constant[entry]
    mean = offset + coef * parts["mean_new"] + cross @ posterior.alpha
    var = coef**2 * parts["new_diagonal"] + rest_var - posterior.explained_var(cross)
    mixture = GaussianMixture(read.likelihood, mean, np.maximum(var, 0.0), params)
    return request.tree(request.of_y(mixture, read), attrs, read)


def _apply(A, rows: np.ndarray) -> np.ndarray:
    from .engines.site_posterior import apply_rows

    return apply_rows(A, rows)


def _typed(model: Model, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value, dtype=model[name].dtype) for name, value in values.items()}
