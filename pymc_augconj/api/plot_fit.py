"""``pac.plot_fit``: data, mean and bands of a Gaussian process with one or two inputs."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytensor.tensor as pt
from pymc.model import Model
from scipy.special import ndtri

from pymc_augconj.errors import AugmentationError
from pymc_augconj.results.approximation.approximation import Approximation
from pymc_augconj.typing import Array

from .predict import draws_of, model_of, predict

_POINTS = 200  # of a grid over one input
_SIDE = 40  # of a grid over two
_MARGIN = 0.05  # by how much a grid is wider than the inputs, relatively


def plot_fit(
    result: Any,
    gp: Any,
    kind: Literal["f", "y"] = "f",
    *,
    model: Model | None = None,
    observed: str | None = None,
    Xnew: Any = None,
    level: float = 0.9,
    draws: int = 200,
    ax: Any = None,
    random_seed: int | None = None,
) -> Any:
    """Plot a process of one or two inputs, or its observations, with matplotlib.

    With one input: the mean with a band, and the data if ``kind="y"``. With two inputs: a map of
    the mean, with the inputs of the data.

    Parameters
    ----------
    result, gp, kind, model, observed, random_seed
        As in :func:`~pymc_augconj.predict`.
    Xnew : array_like, shape (P, d), optional
        Inputs to evaluate at; by default a grid a little wider than the inputs of the data. Omit
        it with two inputs.
    level : float
        Probability of the band, 0.9 by default. Binary y have no band.
    draws : int
        Largest number of draws to average over; evenly spaced ones are taken.
    ax : matplotlib Axes, optional
        By default the axes of a new figure.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    AugmentationError
        If the process has more than two inputs or several outputs; otherwise as
        :func:`~pymc_augconj.predict`.

    Examples
    --------
    >>> with model:  # doctest: +SKIP
    ...     pac.plot_fit(idata, gp, "y")
    """
    if not 0.0 < level < 1.0:
        raise AugmentationError(f"level: expected a probability in (0, 1), got {level!r}")
    model = model_of(model, result)
    X = _inputs(gp)
    if Xnew is not None and X.shape[1] == 2:
        raise AugmentationError("Xnew: expected none with two inputs, whose map needs a grid")
    grid = _grid(X) if Xnew is None else np.asarray(Xnew, dtype=float)
    options: dict[str, Any] = {"model": model, "random_seed": random_seed}
    if kind == "y":
        options |= {"quantile": _tails(level), "observed": observed}
    if not isinstance(result, Approximation):
        options["joint"] = False
        result = _thinned(result, draws)
    new = predict(result, gp, grid, kind, **options)
    found = new["predictions"].to_dataset()
    name = next(str(v).removesuffix("_mean") for v in found if str(v).endswith("_mean"))
    if ax is None:
        # Loaded here, because it is slow, and chooses a display.
        from matplotlib import pyplot as plt

        ax = plt.figure(layout="constrained").add_subplot()
    y = _data(model, name, len(X)) if kind == "y" else None
    if X.shape[1] == 2:
        _draw_map(ax, grid, X, y, found[f"{name}_mean"].values, name)
    else:
        _draw_line(ax, grid[:, 0], X[:, 0], y, found, name, level)
    return ax


def _inputs(gp: Any) -> Array:
    """Return the inputs of the process's prior, shape (n, d), d one or two."""
    X = getattr(gp, "X", None)
    if X is None or getattr(gp, "f", None) is None:
        raise AugmentationError(f"gp: expected a pm.gp.Latent with a prior, got {gp!r}")
    X = np.asarray(pt.as_tensor(X).eval(), dtype=float)
    if X.shape[1] > 2 or gp.f.ndim > 1:
        raise AugmentationError(
            f"{gp.f.name!r}: expected a process of one output and at most two inputs, found "
            f"{X.shape[1]} inputs and {gp.f.ndim} axes; draw what pac.predict gives along a line"
        )
    return X


def _grid(X: Array) -> Array:
    low, high = X.min(axis=0), X.max(axis=0)
    margin = _MARGIN * (high - low)
    number = _POINTS if X.shape[1] == 1 else _SIDE
    sides = [np.linspace(*ends, number) for ends in zip(low - margin, high + margin, strict=True)]
    return np.stack(np.meshgrid(*sides), axis=-1).reshape(-1, X.shape[1])


def _tails(level: float) -> tuple[float, float]:
    return 0.5 * (1.0 - level), 0.5 * (1.0 + level)


def _thinned(result: Any, draws: int) -> Any:
    if draws < 1:
        raise AugmentationError(f"draws: expected at least 1, got {draws}")
    tree = draws_of(result)
    sizes = tree["posterior"].sizes
    every = -(-sizes["chain"] * sizes["draw"] // draws)
    return tree.isel(draw=slice(None, None, every))


def _data(model: Model, name: str, n: int) -> Array | None:
    """Return the observations where there is one for each input."""
    value = model.rvs_to_values[model[name]]
    y = np.asarray(value.eval(), dtype=float)
    return y if y.shape == (n,) else None


def _draw_line(
    ax: Any, x: Array, inputs: Array, y: Array | None, found: Any, name: str, level: float
) -> None:
    order = np.argsort(x)
    band = None if y is not None and np.unique(y).size <= 2 else _band(found, name, level)
    if band is not None:
        low, high = band
        ax.fill_between(x[order], low[order], high[order], alpha=0.3, lw=0, label=f"{level:.0%}")
    ax.plot(x[order], found[f"{name}_mean"].values[order], label="mean")
    if y is None:
        ax.plot(
            inputs, np.full(inputs.shape, 0.02), "|", c="0.3", transform=ax.get_xaxis_transform()
        )
    else:
        ax.plot(inputs, y, ".", c="0.3", label="data")
    ax.set(xlabel="input", ylabel=name, title=f"{name}: posterior mean")
    ax.legend()


def _band(found: Any, name: str, level: float) -> tuple[Array, Array]:
    """Return the ends of the band: quantiles of y, of draws of f, or of a Gaussian f."""
    if f"{name}_quantile" in found:
        low, high = found[f"{name}_quantile"].values
    elif name in found:
        low, high = found[name].quantile(_tails(level), ("chain", "draw")).values
    else:
        mean, std = found[f"{name}_mean"].values, found[f"{name}_std"].values
        low, high = (mean + ndtri(tail) * std for tail in _tails(level))
    return low, high


def _draw_map(ax: Any, grid: Array, X: Array, y: Array | None, mean: Array, name: str) -> None:
    first, second, mean = (a.reshape(_SIDE, _SIDE) for a in (*grid.T, mean))
    shown = ax.contourf(first, second, mean, 12)
    ax.figure.colorbar(shown, ax=ax, label=f"mean of {name}")
    # Data have the colours of the map.
    points = {"c": "0.3"} if y is None else {"c": y, "norm": shown.norm, "cmap": shown.cmap}
    ax.scatter(*X.T, edgecolor="w", s=20, **points)
    ax.set(xlabel="first input", ylabel="second input", title=f"{name}: posterior mean")
