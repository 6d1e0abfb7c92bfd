"""The pictures: which panels there are, that unequal fits are drawn whole, and the errors."""

import arviz as az
import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from pymc_augconj.errors import AugmentationError
from pymc_augconj.results.comparison.plots import KINDS, plot_compare

ENTRIES = ["ls", "f[0]", "f[20]", "f[39]"]
GRIDS = ["rank", "trace", "autocorr"]


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def fit(rng, n_chain, n_draw, n_diverging=None):
    groups = {
        "posterior": {
            "ls": rng.gamma(3, size=(n_chain, n_draw)),
            "f": rng.normal(size=(n_chain, n_draw, 40)),
            "corr": np.ones((n_chain, n_draw, 2)),
        }
    }
    if n_diverging is not None:
        groups["sample_stats"] = {
            "diverging": np.arange(n_chain * n_draw).reshape(n_chain, n_draw) < n_diverging
        }
    return az.from_dict(groups)


@pytest.fixture
def fits():
    rng = np.random.default_rng(3)
    return {"cavi": fit(rng, 1, 200), "nuts": fit(rng, 2, 80, 5), "gibbs/1": fit(rng, 3, 150)}


def lines(axes, n_points):
    return [line for line in axes.lines if len(line.get_xdata()) == n_points]


def test_all_pictures_of_unequal_fits(fits):
    pictures = plot_compare(fits)
    assert tuple(pictures) == KINDS
    for kind in GRIDS:
        panels = pictures[kind].viz["plot"]
        assert list(panels.data_vars) == ENTRIES
        # A fit of one chain has no ranks to compare.
        drawn = ["nuts", "gibbs/1"] if kind == "rank" else list(fits)
        assert panels["fit"].values.tolist() == drawn
    for kind in ("ess_evolution", "dist"):
        assert list(pictures[kind].viz["plot"].data_vars) == ENTRIES
        assert len(pictures[kind].get_viz("figure").legends) == 1


def test_each_fit_is_drawn_whole(fits):
    trace = plot_compare(fits, kind="trace", var_names="ls").viz["plot"]["ls"]
    autocorr = plot_compare(fits, kind="autocorr", var_names="ls").viz["plot"]["ls"]
    for name, tree in fits.items():
        n_chain, n_draw = tree["posterior"]["ls"].shape
        drawn = lines(trace.sel(fit=name).item(), n_draw)
        np.testing.assert_allclose([line.get_ydata() for line in drawn], tree["posterior"]["ls"])
        curves = lines(autocorr.sel(fit=name).item(), min(100, n_draw))
        assert sum(np.isfinite(line.get_ydata()).all() for line in curves) >= n_chain
        assert trace.sel(fit=name).item().get_title() == f"ls\n{name}"


def test_visuals_of_each_fit_are_kept(fits):
    picture = plot_compare(fits, kind="trace", var_names="ls")
    for name, tree in fits.items():
        kept = picture.viz[f"trace@{name.replace('/', '∕')}"]["ls"]
        assert kept.shape == (tree["posterior"].sizes["chain"],)


def test_divergences_are_marked(fits):
    panels = plot_compare(fits, kind="trace", var_names="ls").viz["plot"]["ls"]
    marked = {name: len(panels.sel(fit=name).item().collections) for name in fits}
    assert marked["nuts"] > 0
    assert marked["gibbs/1"] == marked["cavi"] == 0


def test_overlaid_panels_have_every_fit(fits):
    dist = plot_compare(fits, kind="dist", var_names="ls").viz["plot"]["ls"].item()
    assert len(dist.lines) == 3
    evolution = plot_compare(fits, kind="ess_evolution", var_names="ls").viz["plot"]["ls"].item()
    last = {line.get_xdata()[-1] for line in evolution.lines}
    assert {450, 160, 200} <= last
    assert all(np.isfinite(line.get_ydata()).all() for line in evolution.lines)


def test_forest_summarises_each_fit(fits):
    picture = plot_compare(fits, kind="forest", var_names="ls")
    axes = picture.viz["plot"].sel(column="forest").item()
    points = [c.get_offsets()[0, 0] for c in axes.collections if len(c.get_offsets()) == 1]
    means = [tree["posterior"]["ls"].mean().item() for tree in fits.values()]
    np.testing.assert_allclose(sorted(points), sorted(means))


def test_ranks_of_mixing_chains_raise_no_alarm_and_of_others_do():
    rng = np.random.default_rng(5)
    good = rng.normal(size=(4, 300))
    bad = good + np.array([[0.0], [0.0], [0.0], [1.0]])
    trees = {
        "good": az.from_dict({"posterior": {"x": good}}),
        "bad": az.from_dict({"posterior": {"x": bad}}),
    }
    panels = plot_compare(trees, kind="rank").viz["plot"]["x"]
    alarms = {
        name: sum(len(c.get_offsets()) for c in panels.sel(fit=name).item().collections)
        for name in trees
    }
    assert alarms["good"] == 0
    assert alarms["bad"] > 10


def test_entries_are_bounded_and_chosen(fits):
    def entries(**arguments):
        return list(plot_compare(fits, kind="dist", **arguments).viz["plot"].data_vars)

    assert entries(var_names="f", max_entries=1) == ["f[0]"]
    assert entries(var_names="f", max_entries=5) == ["f[0]", "f[10]", "f[20]", "f[29]", "f[39]"]
    assert entries(var_names="f", coords={"f_dim_0": [7, 8]}) == ["f[7]", "f[8]"]
    assert entries(coords={"f_dim_0": 7}) == ["ls", "f"]


def test_very_few_draws():
    tree = az.from_dict({"posterior": {"mu": np.arange(4.0).reshape(2, 2)}})
    assert plot_compare({"short": tree}) is not None


def test_entry_names_carry_labels():
    rng = np.random.default_rng(0)
    tree = az.from_dict(
        {"posterior": {"b": rng.normal(size=(2, 50, 2, 2))}},
        dims={"b": ["group", "day"]},
        coords={"group": ["a/b", "c"], "day": [1, 2]},
    )
    picture = plot_compare({"x": tree}, kind="dist", max_entries=4)
    # A slash would be a path in the DataTree of axes.
    assert list(picture.viz["plot"].data_vars) == ["b[a∕b, 1]", "b[a∕b, 2]", "b[c, 1]", "b[c, 2]"]


def test_arguments_reach_arviz(fits):
    picture = plot_compare(fits, kind="autocorr", var_names="ls", max_lag=10)
    axes = picture.viz["plot"]["ls"].sel(fit="nuts").item()
    assert {len(line.get_xdata()) for line in axes.lines} == {10}


def test_one_chain_fits_have_no_rank_picture(fits):
    only = {"cavi": fits["cavi"]}
    assert "rank" not in plot_compare(only, var_names="ls")
    with pytest.raises(AugmentationError, match=r"two or more chains.*'cavi'.*kind='dist'"):
        plot_compare(only, kind="rank")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "pair"}, "'rank', 'trace'.*got 'pair'"),
        ({"max_lag": 5}, "'max_lag'.*without kind"),
        ({"max_entries": 0}, "at least 1, got 0"),
        ({"var_names": "corr"}, r"finite and not constant in every fit.*\['corr'\]"),
        ({"kind": "trace", "max_entries": 30}, "at most 40 panels, got 93"),
        ({"var_names": "g"}, "'g'.*, of which 'cavi' does not have"),
    ],
)
def test_errors(fits, arguments, message):
    with pytest.raises(AugmentationError, match=message):
        plot_compare(fits, **arguments)
