"""Several predictors through inducing points, with weights that are independent."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac
from pymc_augconj.engines.base import FitProblem, SparseProblem
from pymc_augconj.engines.sparse.fit import _Family
from pymc_augconj.engines.sparse.rows import RowsInMemory, State, Sums, all_slopes
from pymc_augconj.engines.variational.ascent import climb
from pymc_augconj.engines.variational.bound import (
    BoundFamily,
    CoordinateAscent,
    VariationalGaussian,
    bound_gradient,
)
from pymc_augconj.errors import AugmentationError
from pymc_augconj.parallel.executor import Threads
from pymc_augconj.recognition.processes.process import LatentProcess

N, K = 18, 3
X = np.random.default_rng(0).normal(size=(N, 2))
LABELS = np.argmax(np.stack([X[:, 0], X[:, 1], -X.sum(axis=1)]), axis=0)


def process(name, **options):
    ls, eta = pm.InverseGamma(f"ls_{name}", 5, 5), pm.HalfNormal(f"eta_{name}", 2)
    gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=ls))
    return gp, gp.prior(name, X=X, **options)


def softmax():
    """Copies of one process, which share all."""
    gp, F = process("F", n_outputs=K)
    pm.Categorical("y", logit_p=F.T, observed=LABELS)
    return [gp]


def intercepts():
    """Copies of one process, and an intercept of each class; a second observed variable."""
    gp, F = process("F", n_outputs=K)
    b = pm.Normal("b", 0, pm.HalfNormal("tau", 1), shape=K)
    pac.LogisticSoftmax("y", F.T + b, observed=LABELS)
    pm.Bernoulli("z", logit_p=F[1] + b[1], observed=LABELS == 1)
    return [gp]


def heteroscedastic():
    """Two processes, scaled by a hyperparameter, with a mean and an intercept."""
    (gp_f, f), (gp_g, g) = process("f"), process("g")
    tau = pm.Gamma("r", 2, 1) * pm.math.sigmoid(pm.Normal("c", 0, 1) + pm.HalfNormal("s", 1) * g)
    pm.Normal("y", f, tau=tau, observed=np.sin(X[:, 0]))
    return [gp_f, gp_g]


def problem_of(write, inducing=X):
    with pm.Model() as model:
        gps = write()
    found = pac.recognize(model)
    point = {name: np.asarray(value, dtype=float) for name, value in found.start.items()}
    priors = [LatentProcess(model, gp, found.model) for gp in gps]
    sparse = SparseProblem(priors, [inducing] * len(gps), np.random.default_rng(0))
    return FitProblem(found.model, point, found.probes, (), None, 500, 1e-9, sparse=sparse)


CASES = (
    (softmax, VariationalGaussian),
    (intercepts, CoordinateAscent),
    (heteroscedastic, VariationalGaussian),
)


@pytest.mark.parametrize(("write", "rule"), CASES)
def test_inputs_as_inducing_inputs_give_the_dense_bound_and_gradient(write, rule):
    problem = problem_of(write)
    rule = rule(factorised=True) if rule is VariationalGaussian else rule()
    sparse = _Family(problem, rule).at(problem.point)
    dense = BoundFamily(problem.model, rule, [problem.point]).at(problem.point)
    ends = [climb(bound, max_iter=500, tol=1e-9) for bound in (sparse, dense)]
    assert all(end.converged for end in ends)
    ours, theirs = (end.evaluation for end in ends)
    # The jitter of 1e-6 is all that differs.
    assert ours.bound == pytest.approx(theirs.bound, abs=1e-3)
    np.testing.assert_allclose(ours.mean, theirs.mean, atol=1e-4)
    np.testing.assert_allclose(ours.var, theirs.var, atol=1e-4)
    found, expected = sparse.gradient(ours), bound_gradient(dense, theirs)
    assert set(found) == set(expected)
    for name, slope in expected.items():
        np.testing.assert_allclose(found[name], slope, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(("write", "rule"), CASES)
def test_minibatches_sum_to_all_the_data(write, rule):
    problem = problem_of(write, X[:5])
    rule = rule(factorised=True) if rule is VariationalGaussian else rule()
    family = _Family(problem, rule)
    whole = family.at(problem.point)
    rng = np.random.default_rng(1)
    size = problem.model.n_rows
    q = whole.design.posterior(rng.normal(size=size), rng.uniform(0.1, 1.0, size))
    halved = RowsInMemory(family.model, family.sites)
    rows = rng.permutation(family.model.n_observations)
    batches = []
    for some in (slice(None), np.sort(rows[:7]), np.sort(rows[7:])):
        batch = halved.start(problem.point, family.inducing, some, lambda: q)
        batch.wait()
        state, sums = State(problem.point, family.inducing, q), batch.sums
        natural = sums.gram, sums.linear
        batches.append((sums, all_slopes(family.model, state, batch.begin_slopes(), natural)))
    (full, slopes), *parts = batches
    assert full.count == sum(part.count for part, _ in parts) == family.model.n_observations
    assert full.value == pytest.approx(sum(part.value for part, _ in parts))
    np.testing.assert_allclose(full.gram, sum(part.gram for part, _ in parts), atol=1e-9)
    np.testing.assert_allclose(full.linear, sum(part.linear for part, _ in parts), atol=1e-9)
    for name, slope in slopes.items():
        np.testing.assert_allclose(slope, sum(part[name] for _, part in parts), atol=1e-8)


def test_copies_of_a_process_are_what_processes_of_their_own_are():
    problem = problem_of(softmax, X[:6])
    family = _Family(problem, VariationalGaussian(factorised=True))
    model = family.model
    assert model.twins == [0] * K
    design = family.at(problem.point).design
    rng = np.random.default_rng(2)
    h, lam = rng.normal(size=N * K), rng.uniform(0.1, 1.0, N * K)
    q = design.posterior(h, lam)
    mean, _, halves = design.moments(q)

    def slopes():
        copies = [half.copy(order="F") for half in halves]
        rest = Sums(slopes=design.slopes(q, copies, h, lam, mean))
        state = State(problem.point, family.inducing, q)
        return all_slopes(model, state, lambda: rest, design.natural(h, lam))

    together = slopes()
    model.twins = list(range(K))
    apart = slopes()
    for name, slope in together.items():
        np.testing.assert_allclose(slope, apart[name], rtol=1e-9)


def test_a_predictor_without_a_process_is_evaluated_on_threads():
    """Precisions of groups beside a process: a component of its own, without inducing points."""

    def write():
        gp, f = process("f")
        a = pm.Normal("a", 0, 1, shape=3)
        pm.Normal("y", f, tau=2 * pm.math.sigmoid(a[LABELS]), observed=np.sin(X[:, 0]))
        return [gp]

    problem = problem_of(write, X[:5])
    family = _Family(problem, VariationalGaussian(factorised=True))
    whole, model = family.at(problem.point).design, family.model
    assert [part.processes for part in model.parts] == [(0,), ()]
    for prior in model.parts[0].priors:
        prior.compile()

    def design(rows):
        return model.design(problem.point, family.inducing, rows)

    with Threads(3) as run:
        parts = run.gather(run.map(design, np.split(np.arange(N), 6)))
    for c, expected in enumerate(whole.parts):
        found = np.concatenate([part.parts[c].Phi for part in parts], axis=1)
        np.testing.assert_allclose(found, expected.Phi, rtol=1e-12, atol=1e-14)


def test_fit_and_predict_through_inducing_points(tmp_path):
    """K classes of one process: the fit's moments at its inputs, its draws, its predictions."""
    with pm.Model():
        (gp,) = softmax()
        options = {"hyper": "fixed", "progressbar": False, "random_seed": 1}
        dense = pac.fit("vgp", structure="factorised", **options)
        fit = pac.fit("vgp", gp=gp, inducing=X, **options)
        found = [
            pac.predict(one, gp, X[:4] + 0.1, kind="y", random_seed=2).predictions["y_probability"]
            for one in (fit, dense)
        ]
    assert fit.log_evidence == pytest.approx(dense.log_evidence, abs=1e-3)
    for name in ("mean", "std"):
        ours, theirs = getattr(fit, name)["F"], getattr(dense, name)["F"]
        np.testing.assert_allclose(ours, theirs, atol=1e-3)
    fit.save(tmp_path / "fit.npz")
    kept = pac.Approximation.load(tmp_path / "fit.npz").mean["F_u"]
    np.testing.assert_array_equal(kept, fit.mean["F_u"])
    draws = fit.sample(2000).posterior["F"].values[0]
    error = fit.std["F"].values / np.sqrt(2000)
    assert (np.abs(draws.mean(axis=0) - fit.mean["F"].values) < 5.0 * error).all()
    # Means over 1000 draws of numbers between 0 and 1.
    np.testing.assert_allclose(found[0], found[1], atol=5.0 * np.sqrt(2.0 * 0.25 / 1000))
    np.testing.assert_allclose(found[0].sum(axis=-1), 1.0)


def test_stochastic_steps_reach_the_bound_of_all_the_data():
    with pm.Model():
        (gp,) = softmax()
        options = {"gp": gp, "inducing": X[:6], "hyper": "fixed", "progressbar": False}
        whole = pac.fit("vgp", **options)
        fit = pac.fit("svi", batch_size=N, max_iter=60, rate=0.5, **options)
    assert fit.log_evidence == pytest.approx(whole.log_evidence, abs=1e-3)


def test_refusals():
    with pm.Model():
        gp, F = process("F", n_outputs=K)
        common = pm.Normal("common", 0, 1)
        pm.Categorical("y", logit_p=F.T + common * np.arange(K), observed=LABELS)
        with pytest.raises(AugmentationError, match=r"one predictor .*without inducing points"):
            pac.fit("vgp", gp=gp, inducing=X[:4], progressbar=False)
    with pm.Model():
        (gp,) = softmax()
        with pytest.raises(AugmentationError, match="'factorised'"):
            pac.fit("vgp", gp=gp, inducing=X[:4], structure="full", progressbar=False)
