"""``pac.fit(data=…)``: the fit of a model that holds all the data, from chunks of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac
from pymc_augconj.api import chunks
from pymc_augconj.engines.base import FitProblem, SparseProblem
from pymc_augconj.engines.sparse.chunks import Chunk, ChunkedData, RowsInChunks
from pymc_augconj.engines.sparse.fit import _ChunkedFamily, _packed
from pymc_augconj.engines.sparse.model import SparseModel, SparseSites
from pymc_augconj.engines.sparse.rows import State, all_slopes, evaluated, natural_sums, slope_sums
from pymc_augconj.engines.variational.bound import CoordinateAscent, VariationalGaussian
from pymc_augconj.parallel.executor import Executor, Pool
from pymc_augconj.recognition.processes.other_rows import OtherRows
from pymc_augconj.recognition.processes.process import LatentProcess

QUIET = {"progressbar": False}
N = 280
Z = np.linspace(-3, 3, 8)[:, None]


class Chunked:
    """An array that tells its chunks and reads slices, as those of Zarr."""

    def __init__(self, values, rows):
        self.shape, self.chunks, self._values = values.shape, (rows, *values.shape[1:]), values
        self.read = []

    def __getitem__(self, rows):
        self.read.append(rows)
        return self._values[rows]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    X = rng.uniform(-3.0, 3.0, (N, 1))
    group = rng.integers(0, 3, N)
    eta = np.sin(1.5 * X[:, 0]) + group
    return {
        "X": X,
        "group": group,
        "y": (rng.random(N) < 1.0 / (1.0 + np.exp(-eta))).astype(int),
        "z": 2.0 * eta + 0.5 * rng.standard_t(4, N),
    }


def write(X, group, y, z, dims=False):
    """Two observed variables, a group effect, hyperparameters of prior, predictor and noise."""
    with pm.Model(coords={"row": np.arange(len(y))} if dims else {}) as model:
        of = {"dims": "row"} if dims else {}
        X, group = pm.Data("X", X), pm.Data("group", group, **of)
        ls, c = pm.InverseGamma("ls", 5, 5), pm.Normal("c", 1, 1)
        sigma, tau = pm.HalfNormal("sigma", 1), pm.HalfNormal("tau", 1)
        a = pm.Normal("a", 0, tau, shape=3)
        gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=ls))
        f = gp.prior("f", X=X)
        pm.Bernoulli("y", logit_p=f + a[group], observed=pm.Data("y_data", y))
        pm.StudentT("z", nu=4, mu=c * f + 2 * a[group], sigma=sigma, observed=pm.Data("z_data", z))
    return model, gp


def named(data):
    return {name + "_data" * (name in "yz"): value for name, value in data.items()}


@pytest.fixture(scope="module")
def sample(data):
    return write(**{name: value[:70] for name, value in data.items()})


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "_ROWS", 70)
        yield


def in_chunks(arrays, rows):
    """Return the arrays, of which the first alone has chunks."""
    (name, first), *others = arrays.items()
    return {name: Chunked(first, rows), **dict(others)}


def fit(sample, data, method="cavi", rows=70, **options):
    model, gp = sample
    given = {"inducing": Z, "data": in_chunks(named(data), rows), "tol": 1e-8}
    return pac.fit(method, model=model, gp=gp, **(given | options), **QUIET)


@pytest.fixture(scope="module")
def reader(data, sample):
    model, gp = sample
    return OtherRows(model, [gp], tuple(named(data)), pac.recognize(model).start)


def test_chunks_give_the_fit_of_all_the_data(data, sample):
    model, gp = write(**data)
    options = {"hyper": "fixed", "start": {"ls": 1.2, "c": 2.0}, "tol": 1e-8}
    whole = pac.fit("vgp", model=model, gp=gp, inducing=Z, **options, **QUIET)
    found = fit(sample, data, "vgp", **options)
    assert whole.converged
    assert found.converged
    assert found.log_evidence == pytest.approx(whole.log_evidence, abs=1e-8)
    for name in ("f_u", "a"):
        np.testing.assert_allclose(found.mean[name], whole.mean[name], atol=1e-6)
        np.testing.assert_allclose(found.std[name], whole.std[name], rtol=1e-6)


@pytest.fixture(scope="module")
def problem_of(data, sample, reader):
    model, gp = sample
    recognition = pac.recognize(model)
    point = {name: np.asarray(value) for name, value in recognition.start.items()}
    prior = LatentProcess(model, gp, recognition.model)

    def problem(executor, rows):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chunks, "_ROWS", rows)
            pieces = chunks.chunks_of(in_chunks(named(data), rows), executor)
        given = ChunkedData(executor, reader, pieces, reader.follows)
        sparse = SparseProblem([prior], [Z], np.random.default_rng(0), data=given)
        return FitProblem(recognition.model, point, (), (), None, 100, 1e-8, sparse=sparse)

    return problem


@pytest.fixture(scope="module")
def whole(data):
    model, gp = write(**data)
    lgm = pac.recognize(model).model
    return lgm, LatentProcess(model, gp, lgm)


@pytest.mark.parametrize("rule", [CoordinateAscent, VariationalGaussian])
def test_sums_and_gradients_do_not_depend_on_the_chunks(problem_of, whole, rule):
    """Those of all rows at once, at any q(w); the same bits for the same chunks, wherever."""
    rng = np.random.default_rng(3)
    found = []
    with ThreadPoolExecutor(1) as pool, Pool(pool, 1) as threads:
        for rows, run in ((70, Executor()), (70, threads), (140, Executor())):
            problem = problem_of(run, rows)
            family, point = _ChunkedFamily(problem, rule()), problem.point
            bound = family.at(point)
            if not found:
                half = rng.normal(size=(bound.size, bound.size))
                b, B = rng.normal(size=bound.size), _packed(half @ half.T)
            end = bound.evaluate(b, B)
            gradient = bound.gradient(end)
            sums = [end.expected, end.target_lam, end.target_h]
            found.append([*sums, *(gradient[n] for n in sorted(gradient))])
    for ours, theirs in zip(*found[:2], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(found[0], found[2], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10 * np.abs(ours).max())
    lgm, process = whole
    model, sites = SparseModel(lgm, [process], [point]), SparseSites(lgm, rule(), point)
    q = end.posterior.q
    rows = evaluated(sites, model.design(point, [Z]), q)
    sums = natural_sums(rows)
    natural = sums.gram, sums.linear
    by_theta = all_slopes(model, State(point, [Z], q), lambda: slope_sums(rows), natural)
    assert set(by_theta) == {"ls_log__", "c", "sigma_log__", "tau_log__"}
    gram = _packed(*q.matrices(sums.gram))
    expected = [sums.value, gram, sums.linear, *(by_theta[name] for name in sorted(by_theta))]
    for ours, theirs in zip(found[0], expected, strict=True):
        # Derivatives by σ are differences.
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("sizes", [[70, 70, 70, 41], [30], [5] * 60])
def test_a_pass_of_minibatches_has_every_row_once(sizes):
    pieces = [(Chunk(i, ("X",), size), ()) for i, size in enumerate(sizes)]
    data = SimpleNamespace(n_rows=sum(sizes), chunks=pieces)
    batches = RowsInChunks(data, None).batches(np.random.default_rng(0), 16)
    counts, passes = [np.zeros(size) for size in sizes], 0
    lengths = []
    while passes < 3:
        rows = next(batches)
        lengths.append(0)
        for i, which in rows:
            taken = which.of(sizes[i])
            assert (np.diff(taken) > 0).all()
            counts[i][taken] += 1
            lengths[-1] += taken.size
        # A minibatch at the end of a pass has rows of the next one, too.
        passes = min(count.min() for count in counts)
        assert max(count.max() for count in counts) <= passes + 1
    assert abs(np.mean(lengths) - 16) < 5


def test_inducing_inputs_are_those_of_all_the_data(data, tmp_path):
    """By k-means over chunks; with a memory map, threads, and dims that have labels."""
    model, gp = write(**data)
    np.save(tmp_path / "X.npy", data["X"])
    mapped = data | {"X": np.load(tmp_path / "X.npy", mmap_mode="r")}
    of = write(**{name: value[:70] for name, value in data.items()}, dims=True)
    options = {"inducing": 6, "random_seed": 2, "hyper": "fixed"} | QUIET
    whole = pac.fit("cavi", model=model, gp=gp, **options)
    with ThreadPoolExecutor(2) as pool:
        found = pac.fit("cavi", model=of[0], gp=of[1], data=named(mapped), client=pool, **options)
    np.testing.assert_array_equal(found.inducing["f"], whole.inducing["f"])
    assert found.log_evidence == pytest.approx(whole.log_evidence, abs=1e-8)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("X", np.nan, r"'X': expected finite numbers, found nan in chunk 2, row 3, column 0"),
        ("z_data", np.nan, r"'z_data': expected finite numbers, found nan in chunk 2, row 3;"),
        ("z_data", np.inf, r"chunk 2: .*'z'.* inf at position 3"),
        ("y_data", 2, r"chunk 2: .*'y'.*expected 0 or 1, found 2 at position 3"),
        ("group", 0.5, r"'group': expected numbers of type int32.*found float64"),
    ],
)
def test_bad_rows_are_named(data, reader, name, value, message):
    rows = {key: values[:70].copy() for key, values in named(data).items()}
    bad = rows[name].astype(np.result_type(rows[name], type(value)))
    bad[3] = value
    reader(rows, "chunk 2")
    with pytest.raises(pac.DataError, match=message):
        reader(rows | {name: bad}, "chunk 2")


def test_a_model_that_is_no_product_over_rows_is_refused(data, sample):
    def refused(message, change=lambda X, y, f: {"logit_p": f}, names=("X", "y"), **options):
        with pm.Model():
            X, y = pm.Data("X", data["X"][:20]), pm.Data("y", data["y"][:20])
            pm.Data("short", data["y"][:20])
            gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
            observed = options.pop("observed", y)
            pm.Bernoulli("seen", observed=observed, **change(X, y, gp.prior("f", X=X)))
            given = {"X": data["X"], "y": data["y"], "other": data["y"], "short": data["y"][1:]}
            arrays = {name: given[name] for name in names}
            with pytest.raises(pac.AugmentationError, match=message):
                pac.fit("cavi", gp=gp, **({"inducing": Z, "data": arrays} | options), **QUIET)

    refused("got 'other'; write other = pm.Data", names=("X", "other"))
    refused("expected arrays of as many rows", names=("X", "y", "short"))
    refused("among data=.*every chunk would count", observed=data["y"][:20])
    refused(
        r"predictor in 'seen' of a row.*changes with the other rows",
        lambda X, y, f: {"logit_p": f + X.mean()},
    )
    refused(
        r"'b': expected a prior that does not depend on data",
        lambda X, y, f: {"logit_p": f + pm.Normal("b", X.mean(), 1)},
    )
    refused("potentials", lambda X, y, f: {"logit_p": f + 0 * pm.Potential("p", -(f**2).sum())})
    refused("data: expected method='svi', or 'cavi' or 'vgp' with inducing", inducing=None)
    refused("data: expected a mapping", data=data["X"])
    with sample[0], pytest.raises(pac.AugmentationError, match="client: expected data="):
        pac.fit("cavi", gp=sample[1], inducing=Z, client="x", **QUIET)


def test_several_predictors_are_refused(data):
    with pm.Model():
        X, y = pm.Data("X", data["X"][:20]), pm.Data("y", data["y"][:20])
        gps = [pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)) for _ in range(2)]
        f, g = (gp.prior(name, X=X) for gp, name in zip(gps, "fg", strict=True))
        pm.Normal("seen", f, sigma=pm.math.exp(g), observed=y)
        arrays = {"X": data["X"], "y": data["y"]}
        with pytest.raises(pac.AugmentationError, match="data: expected likelihoods of one pred"):
            pac.fit("vgp", gp=gps, inducing={"f": Z, "g": Z}, data=arrays, **QUIET)
