"""ArviZ's figures of several fits of a model, side by side."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from arviz_base import rcParams
from arviz_base.labels import BaseLabeller
from arviz_stats import ess

from pymc_augconj.errors import AugmentationError

from .fits import SAMPLE_DIMS, Fits, as_datatrees, common_posteriors, is_moving, scalar_draws

if TYPE_CHECKING:
    # Loaded by the functions that draw, because it takes long, and chooses a display.
    from arviz_plots import PlotCollection

MAX_LAG = 100
_PANEL = (3.6, 2.0)  # width and height of a panel, inches
_LEGEND_WIDTH = 1.2  # inches
_WRAP = 3  # panels in a row

# One panel per entry and fit, with the chains of that fit.
_BY_FIT = ("rank", "trace", "autocorr")
# One panel per entry, with all fits in it.
_OVERLAID = ("ess_evolution", "dist")

KINDS = (*_BY_FIT, *_OVERLAID, "forest")


def plot_compare(
    fits: Fits,
    *,
    kind: str | None = None,
    var_names: str | Sequence[str] | None = None,
    filter_vars: str | None = None,
    coords: Mapping[Hashable, Any] | None = None,
    max_entries: int = 3,
    **plot_kwargs: Any,
) -> PlotCollection | dict[str, PlotCollection]:
    """Plot ArviZ's figures of several fits of one model with matplotlib.

    Parameters
    ----------
    fits : mapping of str to DataTree
        As in :func:`compare`; numbers of chains and draws may differ.
    kind : {"rank", "trace", "autocorr", "ess_evolution", "dist", "forest"}, optional
        The kind of figure; by default all of them. ``rank``, ``trace``, ``autocorr``: a row per
        entry, a column per fit and a line per chain, with divergences marked under the traces;
        ranks compare the chains of one fit, so fits of one chain are left out. ``ess_evolution``: a
        panel per entry, bulk (solid) and tail (dashed) effective sample size of each fit against
        its number of draws. ``dist``: a panel per entry with the marginal densities of all fits.
        ``forest``: one panel with mean and intervals of each entry in each fit.
    var_names, filter_vars, coords : optional
        As in :func:`compare`; by default all numeric variables that every fit has.
    max_entries : int, default 3
        Largest number of entries to plot of each variable, evenly spaced; choose others by
        ``coords``. Entries that are constant or not finite in one of the fits are omitted first.
    **plot_kwargs
        Passed to the ArviZ function of ``kind``, for example ``max_lag`` or ``visuals``.

    Returns
    -------
    PlotCollection or dict of str to PlotCollection
        The figure, or with ``kind=None`` all of them by kind. Save one by ``.savefig(path)``.
        Axes are in ``.viz["plot"]``, by entry (such as ``"f[3]"``) and, for the grids, by
        ``fit``; plotted elements are there too, such as ``.viz["trace@nuts"]`` for fit "nuts".

    Raises
    ------
    AugmentationError
        If ``kind`` is unknown, no entry can be drawn, there would be more panels than ArviZ's
        ``rcParams["plot.max_subplots"]``, or as in :func:`compare`.

    Examples
    --------
    >>> pac.plot_compare({"gibbs": idata, "nuts": idata2}, kind="dist")  # doctest: +SKIP
    """
    if kind is not None and kind not in KINDS:
        raise AugmentationError(f"kind: expected one of {list(KINDS)} or None, got {kind!r}")
    if kind is None and plot_kwargs:
        raise AugmentationError(
            f"expected arguments of one figure together with its kind, got {sorted(plot_kwargs)} "
            f"without kind; use kind=, one of {list(KINDS)}"
        )
    if max_entries < 1:
        raise AugmentationError(f"max_entries: expected at least 1, got {max_entries}")
    trees = as_datatrees(fits)
    posteriors = common_posteriors(trees, var_names, filter_vars, coords)
    entries = drawable_entries(posteriors, max_entries)
    drawn = {fit: with_divergences(entries[fit], tree) for fit, tree in trees.items()}
    ranked = {fit: tree for fit, tree in drawn.items() if tree["posterior"].sizes["chain"] > 1}
    if kind == "rank" and not ranked:
        raise AugmentationError(
            f"rank: expected a fit of two or more chains, got one chain in each of {list(fits)}; "
            "use kind='dist' to compare the fits with each other"
        )
    kinds = [kind] if kind else [name for name in KINDS if name != "rank" or ranked]
    figures = {
        name: _draw(name, ranked if name == "rank" else drawn, plot_kwargs) for name in kinds
    }
    return figures[kind] if kind else figures


def _draw(
    kind: str, fits: Mapping[str, xr.DataTree], plot_kwargs: dict[str, Any]
) -> PlotCollection:
    """Draw each fit in turn on shared axes.

    ArviZ would pad fits of unequal chains or draws with NaN, which ranks take for alarms.
    """
    import arviz as az
    from arviz_plots.visuals import labelled_title

    data = xr.concat(
        [tree["posterior"].to_dataset() for tree in fits.values()], dim="fit", join="outer"
    ).assign_coords(fit=list(fits))
    if kind == "forest":
        return _draw_forest(data, plot_kwargs)
    n_panels = len(data) * (len(fits) if kind in _BY_FIT else 1)
    max_panels = rcParams["plot.max_subplots"]
    if max_panels is not None and n_panels > max_panels:
        raise AugmentationError(
            f"{kind}: expected at most {max_panels} panels, got {n_panels} for {list(data)}; use "
            'var_names, a smaller max_entries, or arviz.rcParams["plot.max_subplots"]'
        )
    figure = _panels(data, kind)
    n_draws = {fit: math.prod(tree["posterior"].sizes.values()) for fit, tree in fits.items()}
    longest = max(n_draws, key=n_draws.__getitem__)
    for fit, tree in fits.items():
        figure.coords = {"fit": fit}
        arguments = _arguments(kind, tree, plot_kwargs, is_longest=fit == longest)
        getattr(az, f"plot_{kind}")(tree, plot_collection=figure, **arguments)
        figure.coords = None
        _keep_visuals_of(fit, figure)
    figure.map(labelled_title, "title", subset_info=True, ignore_aes="all", labeller=BaseLabeller())
    if kind in _OVERLAID and len(fits) > 1:
        figure.add_legend("fit")
    return figure


def _panels(data: xr.Dataset, kind: str) -> PlotCollection:
    """Return empty panels: a row an entry and a column a fit, or one panel an entry."""
    from arviz_plots import PlotCollection

    width, height = _PANEL
    if kind in _BY_FIT:
        size = width * data.sizes["fit"], height * len(data)
        # Ranks have separate limits in each panel.
        how = {"figsize": size, "sharey": False if kind == "rank" else "row"}
        return PlotCollection.grid(
            data, rows=["__variable__"], cols=["fit"], backend="matplotlib",
            aes={"color": ["chain"], "overlay": ["chain"]},
            figure_kwargs={**how, "layout": "constrained"},
        )  # fmt: skip
    columns = min(_WRAP, len(data))
    size = width * columns + _LEGEND_WIDTH, height * -(-len(data) // columns)
    return PlotCollection.wrap(
        data, cols=["__variable__"], col_wrap=columns, backend="matplotlib",
        aes={"color": ["fit"], "overlay": ["fit"]},
        figure_kwargs={"figsize": size, "layout": "constrained"},
    )  # fmt: skip


def _keep_visuals_of(fit: str, figure: PlotCollection) -> None:
    """Rename the new visuals, so that the next fit does not overwrite them."""
    own = [name for name in figure.viz.children if "@" not in name]
    fresh = [name for name in own if name not in ("plot", "row_index", "col_index")]
    figure.rename_visuals({name: f"{name}@{node_name(fit)}" for name in fresh})


def _draw_forest(data: xr.Dataset, plot_kwargs: dict[str, Any]) -> PlotCollection:
    """Draw all fits at once: summaries can skip the NaN that pad the shorter fits."""
    import arviz as az

    n_fits = data.sizes["fit"]
    skip_padding = {name: {"skipna": True} for name in ("trunk", "twig", "point_estimate")}
    height = 1 + len(data) * (0.2 + 0.15 * n_fits)
    defaults: dict[str, Any] = {
        "combined": True,
        "stats": skip_padding,
        "backend": "matplotlib",
        "figure_kwargs": {"figsize": (3 * _PANEL[0], height), "layout": "constrained"},
    }
    # ArviZ shifts and colours by a dimension of the name "model".
    by_model: Any = data.rename(fit="model")
    figure = az.plot_forest(by_model, **(defaults | plot_kwargs))
    if n_fits > 1:
        figure.add_legend("model", title="fit")
    return figure


def _arguments(
    kind: str, tree: xr.DataTree, given: dict[str, Any], *, is_longest: bool
) -> dict[str, Any]:
    """Return the arguments for ArviZ: our defaults for ``kind``, then the user's arguments."""
    visuals: dict[str, Any] = {"title": False}  # drawn once for all fits
    defaults: dict[str, Any] = {}
    stats: dict[str, Any] = {}
    if kind == "rank":
        defaults["thin"] = True
        stats["thin"] = {"factor": _thinning(tree["posterior"].to_dataset())}
    elif kind == "autocorr":
        # ArviZ draws its band for max_lag draws rather than for the number of draws.
        visuals["credible_interval"] = False
        defaults["max_lag"] = min(MAX_LAG, tree["posterior"].sizes["draw"])
    elif kind == "ess_evolution":
        visuals |= {"ess_bulk": False, "ess_tail": False, "ess_tail_line": {"linestyle": "--"}}
        if not is_longest:
            visuals["min_ess"] = False  # one line is enough
    elif kind == "dist":
        # The summaries of several fits would lie on top of each other.
        visuals |= dict.fromkeys(
            ("credible_interval", "point_estimate", "point_estimate_text"), False
        )
    merged = {
        "visuals": visuals | given.get("visuals", {}),
        "stats": stats | given.get("stats", {}),
    }
    return defaults | given | {name: values for name, values in merged.items() if values}


def _thinning(posterior: xr.Dataset) -> int:
    """Return k such that every k-th draw of a chain is nearly independent of the last.

    The test of ranks assumes independence: with autocorrelation 0.7 it flagged chains of one
    distribution at α = 0.01 in 60 % of 150 simulations, with this thinning in 3 % of 100. ArviZ's
    factor uses all chains together, and so hides their disagreement.
    """
    chains = scalar_draws(posterior)
    of_chains = [ess(chain[None], method="bulk", chain_axis=0, draw_axis=1) for chain in chains]
    smallest = np.min(np.mean(of_chains, axis=0))
    # The effective sample size of fewer than four draws is NaN; these are not thinned.
    return max(1, math.ceil(chains.shape[1] / smallest)) if np.isfinite(smallest) else 1


def drawable_entries(
    posteriors: Mapping[str, xr.Dataset], max_entries: int
) -> dict[str, xr.Dataset]:
    """Return posteriors with a scalar variable, named like ``f[3]``, for each entry to be drawn.

    These are at most ``max_entries`` of each variable, finite in all fits and constant in none.
    """
    labels = _entry_names(next(iter(posteriors.values())))
    draws = {fit: scalar_draws(posterior) for fit, posterior in posteriors.items()}
    drawable = np.logical_and.reduce(
        [np.isfinite(values).all(axis=(0, 1)) & is_moving(values) for values in draws.values()]
    )
    chosen, start = [], 0
    for names in labels:
        candidates = start + np.flatnonzero(drawable[start : start + len(names)])
        spaced = np.linspace(0, len(candidates) - 1, min(max_entries, len(candidates)))
        chosen.extend(candidates[spaced.round().astype(int)])
        start += len(names)
    if not chosen:
        raise AugmentationError(
            "var_names: expected an entry that is finite and not constant in every fit, got none "
            f"in {list(next(iter(posteriors.values())))}; use other var_names"
        )
    flat = [name for names in labels for name in names]
    return {
        fit: xr.Dataset(
            {flat[k]: (SAMPLE_DIMS, values[:, :, k]) for k in chosen},
            coords={dim: np.arange(n) for dim, n in zip(SAMPLE_DIMS, values.shape, strict=False)},
        )
        for fit, values in draws.items()
    }


def _entry_names(posterior: xr.Dataset) -> list[list[str]]:
    """Return names of the entries of each variable, in the order of :func:`scalar_draws`."""
    found = []
    for name, da in posterior.items():
        axes = [da[dim].values for dim in da.dims[len(SAMPLE_DIMS) :]]
        labels = [", ".join(map(str, entry)) for entry in product(*axes)]
        found.append([f"{name}[{node_name(label)}]" if axes else str(name) for label in labels])
    return found


def node_name(text: str) -> str:
    """Return ``text`` as a name in a DataTree, where a slash would open a sub-group."""
    return text.replace("/", "∕")


def with_divergences(posterior: xr.Dataset, tree: xr.DataTree) -> xr.DataTree:
    """Return the entries, and the divergences that ``plot_trace`` marks, labelled alike."""
    groups = {"posterior": posterior}
    stats = tree.children.get("sample_stats")
    if stats is not None and "diverging" in stats.data_vars:
        diverging = stats["diverging"].transpose(*SAMPLE_DIMS).values
        groups["sample_stats"] = xr.Dataset(
            {"diverging": (SAMPLE_DIMS, diverging)}, coords=posterior.coords
        )
    return xr.DataTree.from_dict(groups)
