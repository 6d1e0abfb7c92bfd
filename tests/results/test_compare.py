"""The table against numbers known in advance: AR(1) chains, shifted copies, conjugate LOO."""

import arviz as az
import numpy as np
import pytest
import xarray as xr
from scipy.signal import lfilter
from scipy.stats import norm

from pymc_augconj.errors import AugmentationError
from pymc_augconj.results.comparison.compare import compare

N_CHAIN, N_DRAW = 4, 2000


def ar1(rng, phi, n_chain=N_CHAIN, n_draw=N_DRAW, shape=()):
    """Stationary AR(1) chains with standard normal marginals."""
    noise = rng.normal(size=(n_chain, n_draw, *shape)) * np.sqrt(1 - phi**2)
    noise[:, 0] /= np.sqrt(1 - phi**2)
    return lfilter([1.0], [1.0, -phi], noise, axis=1)


def fit(posterior, *, sampling_time=None, **groups):
    tree = az.from_dict({"posterior": posterior, **groups})
    if sampling_time is not None:
        tree["posterior"].attrs["sampling_time"] = sampling_time
    return tree


@pytest.fixture
def rng():
    return np.random.default_rng(20)


def test_independent_draws_have_their_number_as_ess(rng):
    table = compare({"iid": fit({"f": rng.normal(size=(N_CHAIN, N_DRAW, 30))})})
    row = table.loc["iid"]
    n = N_CHAIN * N_DRAW
    assert row["ess_bulk_median"] == pytest.approx(n, rel=0.05)
    assert row["ess_tail_median"] == pytest.approx(n, rel=0.05)
    assert row["rhat_max"] < 1.005
    assert row["lag1_median"] == pytest.approx(0, abs=5 / np.sqrt(n))
    assert (row["chains"], row["draws"], row["entries"]) == (N_CHAIN, n, 30)


@pytest.mark.parametrize("phi", [0.5, 0.9])
def test_ar1_autocorrelation_and_ess(rng, phi):
    row = compare({"ar": fit({"f": ar1(rng, phi, shape=(30,))})}).loc["ar"]
    n = N_CHAIN * N_DRAW
    assert row["lag1_median"] == pytest.approx(phi, abs=0.02)
    assert row["ess_bulk_median"] == pytest.approx(n * (1 - phi) / (1 + phi), rel=0.1)


def test_columns_agree_with_arviz(rng):
    tree = fit({"a": ar1(rng, 0.3), "b": ar1(rng, 0.8, shape=(3,))})
    row = compare({"x": tree}).loc["x"]
    summary = az.summary(tree, round_to="none")
    assert row["ess_bulk_min"] == pytest.approx(summary["ess_bulk"].min(), abs=1)
    assert row["ess_tail_median"] == pytest.approx(summary["ess_tail"].median(), abs=1)
    assert row["rhat_max"] == pytest.approx(summary["r_hat"].max())


def test_lag1_is_arviz_autocorrelation_for_one_chain(rng):
    tree = fit({"a": ar1(rng, 0.6, n_chain=1)})
    expected = tree["posterior"].to_dataset().azstats.autocorr()["a"].values[0, 1]
    assert compare({"x": tree}).loc["x", "lag1_max"] == pytest.approx(expected)


def test_shifted_and_scaled_copies_differ_by_exactly_that(rng):
    reference = rng.normal(size=(N_CHAIN, N_DRAW, 3)) * [1.0, 5.0, 0.1]
    std = reference.std(axis=(0, 1), ddof=1)
    mean = reference.mean(axis=(0, 1))
    shifted = reference + std * [0.25, -0.75, 0.5]
    scaled = mean + 1.5 * (reference - mean)
    table = compare(
        {
            "ref": fit({"f": reference}),
            "shifted": fit({"f": shifted}),
            "scaled": fit({"f": scaled}),
        },
        reference="ref",
    )
    differences = ["mean_diff", "mean_diff_z", "sd_diff", "wasserstein"]
    np.testing.assert_array_equal(table.loc["ref", differences].astype(float), 0)
    assert table.loc["shifted", "mean_diff"] == pytest.approx(0.75)
    assert table.loc["shifted", "wasserstein"] == pytest.approx(0.75)
    assert table.loc["shifted", "sd_diff"] == pytest.approx(0, abs=1e-12)
    assert table.loc["scaled", "mean_diff"] == pytest.approx(0, abs=1e-12)
    assert table.loc["scaled", "sd_diff"] == pytest.approx(0.5)
    # A normal stretched by 1.5 moves each quantile by half of itself: 0.5 E|z|.
    assert table.loc["scaled", "wasserstein"] == pytest.approx(0.5 * np.sqrt(2 / np.pi), rel=0.03)
    mcse = np.sqrt(2 / (N_CHAIN * N_DRAW))
    assert table.loc["shifted", "mean_diff_z"] == pytest.approx(0.75 / mcse, rel=0.1)


def test_z_tells_noise_from_a_difference(rng):
    fits = {name: fit({"f": ar1(rng, 0.5, shape=(50,))}) for name in ("ref", "same")}
    fits["other"] = fit({"f": ar1(rng, 0.5, shape=(50,)) + 0.3})
    table = compare(fits, reference="ref")
    assert table.loc["same", "mean_diff_z"] < 4.5
    assert table.loc["other", "mean_diff_z"] > 8


def test_no_reference_no_difference_columns(rng):
    table = compare({"x": fit({"f": rng.normal(size=(2, 50))})})
    assert not {"mean_diff", "wasserstein", "elpd_loo"} & set(table.columns)
    assert table.attrs == {"var_names": ["f"], "reference": None}


def test_constant_and_nonfinite_entries_are_counted_and_left_out(rng):
    chol = rng.normal(size=(2, 100, 3)) + 4
    alone = compare({"x": fit({"chol": chol})}).loc["x"]
    with_constants = np.concatenate([chol, np.zeros((2, 100, 1)), np.full((2, 100, 1), 0.1)], -1)
    with_constants[0, 5, -1] *= 1 + 1e-15  # rounding is not movement
    broken = np.where(np.arange(100) == 7, np.nan, rng.normal(size=(2, 100)))
    row = compare({"x": fit({"chol": with_constants, "broken": broken})}).loc["x"]
    assert (row["entries"], row["constant"], row["nonfinite"]) == (6, 2, 1)
    for column in ("rhat_max", "ess_bulk_min", "ess_tail_median", "lag1_max"):
        assert row[column] == pytest.approx(alone[column])


def test_point_estimate_and_stuck_chains_show(rng):
    reference = rng.normal(size=(2, 400))
    stuck = np.repeat([[1.0], [2.0]], 400, axis=1)
    table = compare(
        {"ref": fit({"f": reference}), "map": fit({"f": stuck * 0}), "stuck": fit({"f": stuck})},
        reference="ref",
    )
    with pytest.warns(RuntimeWarning, match="reference 'apart': expected R-hat of at most 1.05"):
        compare({"apart": fit({"f": np.add(reference, [[0.0], [3.0]])})}, reference="apart")
    assert table.loc["map", "constant"] == 1
    assert table.loc["map", "sd_diff"] == pytest.approx(1)
    assert np.isnan(table.loc["map", "ess_bulk_min"])
    assert table.loc["stuck", "rhat_max"] > 1e6
    assert table.loc["stuck", "lag1_max"] == 1
    assert table.loc["stuck", "ess_bulk_min"] < 5


def test_one_chain_has_no_rhat(rng):
    table = compare({"vi": fit({"f": rng.normal(size=(1, 500))})})
    assert np.isnan(table.loc["vi", "rhat_max"])
    assert table.loc["vi", "ess_bulk_min"] > 300


def test_wall_time_is_read_or_given(rng):
    def draws():
        return {"f": rng.normal(size=(2, 200))}

    fits = {"read": fit(draws(), sampling_time=4.0), "given": fit(draws()), "none": fit(draws())}
    table = compare(fits, wall_time={"given": 0.5})
    assert table["wall_time"].tolist()[:2] == [4.0, 0.5]
    for name in ("ess_bulk_min", "ess_bulk_median", "ess_tail_min", "ess_tail_median"):
        np.testing.assert_allclose(table[f"{name}_per_s"], table[name] / table["wall_time"])
    assert np.isnan(table.loc["none", "ess_tail_min_per_s"])
    assert compare(fits, wall_time={"read": 1}).loc["read", "wall_time"] == 1


def test_divergences_are_counted_where_recorded(rng):
    diverging = np.zeros((2, 50), bool)
    diverging[1, :3] = True
    with_stats = fit({"f": rng.normal(size=(2, 50))}, sample_stats={"diverging": diverging})
    table = compare({"nuts": with_stats, "gibbs": fit({"f": rng.normal(size=(2, 50))})})
    assert table.loc["nuts", "divergences"] == 3
    assert table["divergences"].isna().tolist() == [False, True]


def test_variables_common_filtered_and_selected(rng):
    def draws(*names):
        return fit({name: rng.normal(size=(2, 50, 4)) for name in names})

    fits = {"a": draws("ls", "f", "extra"), "b": draws("f", "ls")}
    assert compare(fits).attrs["var_names"] == ["ls", "f"]
    assert compare(fits, var_names="~f").attrs["var_names"] == ["ls"]
    assert compare(fits, var_names=["f", "ls"]).attrs["var_names"] == ["f", "ls"]
    assert compare(fits, var_names="^l", filter_vars="regex").attrs["var_names"] == ["ls"]
    assert compare(fits, var_names="f", coords={"f_dim_0": [0, 3]})["entries"].tolist() == [2, 2]


def test_dimensions_in_another_order_are_aligned(rng):
    values = xr.DataArray(rng.normal(size=(2, 200, 3, 2)), dims=("chain", "draw", "i", "j"))
    one = xr.DataTree.from_dict({"posterior": values.to_dataset(name="f")})
    other = xr.DataTree.from_dict(
        {"posterior": values.transpose("j", "i", ...).to_dataset(name="f")}
    )
    table = compare({"one": one, "other": other}, reference="one")
    assert table.loc["other", "wasserstein"] == 0


class Approximation:
    """Stands for a fit that makes its DataTree on demand."""

    def __init__(self, tree):
        self.to_datatree = lambda: tree


def test_objects_with_to_datatree_are_converted(rng):
    tree = fit({"f": rng.normal(size=(1, 50))})
    assert compare({"vi": Approximation(tree)}).equals(compare({"vi": tree}))


def loo_fits(rng, n=60):
    """Normal mean with known variance: the exact posterior, and one that is far off."""
    y = rng.normal(size=n)
    posterior = {"right": y.mean(), "wrong": y.mean() + 1.0}
    fits = {}
    for name, centre in posterior.items():
        mu = rng.normal(centre, 1 / np.sqrt(n), size=(4, 500))
        fits[name] = fit({"mu": mu}, log_likelihood={"y": norm.logpdf(y, mu[..., None])})
    # p(y_i | the others): mean of the others, variance 1 + 1/(n − 1).
    others = (y.sum() - y) / (n - 1)
    return fits, norm.logpdf(y, others, np.sqrt(1 + 1 / (n - 1))).sum()


def test_loo_columns(rng):
    fits, exact = loo_fits(rng)
    fits["no likelihood"] = fit({"mu": rng.normal(size=(1, 100))})
    table = compare(fits)
    assert table.index.tolist() == ["right", "wrong", "no likelihood"]
    assert table.loc["right", "elpd_loo"] == pytest.approx(exact, abs=0.1)
    expected = az.compare({name: fits[name] for name in ("right", "wrong")}, round_to="none")
    for name in ("right", "wrong"):
        for column in ("elpd_diff", "dse", "weight", "rank"):
            assert table.loc[name, column] == pytest.approx(expected.loc[name, column])
        assert table.loc[name, "elpd_se"] == pytest.approx(expected.loc[name, "se"])
    assert table.loc["right", "rank"] == 0
    assert table.loc["right", "high_k"] == 0
    assert table.loc["no likelihood", ["elpd_loo", "weight", "rank"]].isna().all()
    assert "elpd_loo" not in compare(fits, loo=False)


def test_loo_of_several_observed_variables_adds_up(rng):
    fits, _ = loo_fits(rng)
    both = fits["right"].copy()
    y = both["log_likelihood"]["y"].values
    both["log_likelihood"] = xr.Dataset(
        {
            "head": (("chain", "draw", "i"), y[..., :10]),
            "tail": (("chain", "draw", "j"), y[..., 10:]),
        }
    )
    whole = compare({"x": fits["right"]}).loc["x", "elpd_loo"]
    assert compare({"x": both}).loc["x", "elpd_loo"] == pytest.approx(whole)
    parts = [compare({"x": both}, loo_var_name=n).loc["x", "elpd_loo"] for n in ("head", "tail")]
    assert sum(parts) == pytest.approx(whole)
    with pytest.raises(AugmentationError, match=r"loo_var_name.*'z'.*'head', 'tail'"):
        compare({"x": both}, loo_var_name="z")
    with pytest.raises(AugmentationError, match=r"same observations.*60.*10"):
        compare(
            {
                "x": fits["right"],
                "head": both.assign(
                    log_likelihood=xr.DataTree(both["log_likelihood"].to_dataset()[["head"]])
                ),
            }
        )


def test_errors_say_what_is_wrong_and_what_to_use(rng):
    good = fit({"f": rng.normal(size=(2, 50, 3)), "ls": rng.normal(size=(2, 50))})
    short = fit({"f": rng.normal(size=(2, 50, 2))})
    cases = [
        ({"a": good, "b": short}, {"var_names": ["ls"]}, r"\['ls'\], of which 'b' .*\['f'\]"),
        ({"a": good}, {"reference": "nuts"}, r"'nuts'; use one of \['a'\]"),
        ({"a": good}, {"wall_time": {"b": 1.0}}, r"wall_time.*'b': 1.0; the fits are \['a'\]"),
        ({"a": good}, {"wall_time": {"a": 0.0}}, "positive seconds"),
        ({"a": good}, {"filter_vars": "glob"}, "'like' or 'regex', got 'glob'"),
        ({"a": good}, {"coords": {"time": 0}}, r"coords: .*'f_dim_0'.*got \['time'\]"),
        ({"a": good, "b": short}, {}, "'f': .*shape in 'b'.*and 'a'"),
        ({"a": good, "b": fit({"g": np.zeros((1, 9))})}, {}, "variable that every fit has"),
        ({"a": np.zeros(3)}, {}, "'a': expected a DataTree.*got ndarray"),
        ({"a": xr.DataTree()}, {}, "'a': expected a group 'posterior'"),
        ({"a": xr.DataTree.from_dict({"posterior": xr.Dataset({"f": 1})})}, {}, "chain and draw"),
        ({}, {}, "one or more fits"),
        ([good], {}, "dict of one or more fits by name, got list"),
    ]
    for fits, arguments, message in cases:
        with pytest.raises(AugmentationError, match=message):
            compare(fits, **arguments)


def test_other_labels_of_the_same_dimension_are_refused(rng):
    def labelled(labels):
        return az.from_dict(
            {"posterior": {"f": rng.normal(size=(2, 50, 2))}},
            dims={"f": ["site"]},
            coords={"site": labels},
        )

    with pytest.raises(AugmentationError, match=r"labels of \['site'\]"):
        compare({"a": labelled(["x", "y"]), "b": labelled(["y", "x"])})
