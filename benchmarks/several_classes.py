"""Iris, wine and digits: classes through a process each, beside scikit-learn's and GPflow's.

Folds are the same for all. Iris and wine are fitted with all their inputs, digits through 200
inducing inputs, those of GPflow. GPflow's is an SVGP with the robust-max likelihood of its
documentation, until its loss stands still; scikit-learn's the dense Laplace approximation of one
class against the rest, with a kernel for each class. Kernels maximise the evidence, or its bound,
in all of them: of digits scikit-learn's that of a part of the data, because an evaluation takes
seconds and a fold more than half an hour. Ours have one kernel for all classes, as GPflow's, or
("own kernels") one for each, as scikit-learn's. Seconds are those of a fit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pymc as pm
from scipy.cluster.vq import kmeans2

import pymc_augconj as pac
from benchmarks.gpflow_environment import run_script
from benchmarks.harness import Row, Settings, measure
from benchmarks.sampling import against_nuts, timed

FOLDS = 5
INDUCING = {"digits": 200}
# Points that scikit-learn learns its kernels from; it conditions on all.
LEARNED_ON = {"digits": 300}
EPSILON = 1e-3
STEPS = 3000
# Of ours: all the data until the sites stand still, in standard deviations of thousands of them
# together, or so many minibatches.
TOLERANCE, SVI_STEPS = 1e-3, 350
SPEED_UP = 5.0
# Accuracy that a fit may be below scikit-learn's dense one.
LEEWAY = 0.005
PLANS = {
    "iris": (("softmax", "vgp"), ("logistic-softmax", "cavi"), ("robust-max", "vgp")),
    "wine": (("softmax", "vgp"), ("logistic-softmax", "cavi"), ("robust-max", "vgp")),
    "digits": (
        ("softmax", "vgp"),
        ("softmax", "svi"),
        ("logistic-softmax", "cavi"),
        ("logistic-softmax", "svi"),
        # Not vgp, which takes minutes a fold.
        ("robust-max", "svi"),
        ("robust-max, own kernels", "svi"),
    ),
}
LIMIT = 400.0


def load_fold(name: str, fold: int) -> dict[str, np.ndarray]:
    """Return inputs and labels of a fold, what is left out, and inducing inputs."""
    from sklearn import datasets

    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    # The pixels of a digit have one scale; the others' columns are measured in different units.
    X = X / 16.0 if name == "digits" else (X - X.mean(axis=0)) / X.std(axis=0)
    out = np.random.default_rng(0).permutation(len(y)) % FOLDS == fold
    found = {"X": X[~out], "y": y[~out], "X_test": X[out], "y_test": y[out]}
    if name in INDUCING:
        rng = np.random.default_rng(fold)
        found["Z"], _ = kmeans2(found["X"], INDUCING[name], minit="++", iter=10, rng=rng)
    else:
        found["Z"] = found["X"]
    return found


def write(likelihood: str, X: np.ndarray, y: np.ndarray) -> tuple[pm.Model, list[Any]]:
    """Return a model of classes, and its process or processes."""
    K = int(y.max()) + 1
    with pm.Model() as model:
        if "own kernels" in likelihood:
            gps, values = zip(*[_process(f"F_{k}", X) for k in range(K)], strict=True)
            F = pm.math.stack(values)
        else:
            gp, F = _process("F", X, n_outputs=K)
            gps = (gp,)
        match likelihood.partition(",")[0]:
            case "softmax":
                pm.Categorical("y", logit_p=F.T, observed=y)
            case "logistic-softmax":
                pac.LogisticSoftmax("y", F.T, observed=y)
            case _:
                pac.RobustMax("y", F.T, epsilon=EPSILON, observed=y)
    return model, list(gps)


def _process(name: str, X: np.ndarray, **n_outputs: int) -> tuple[Any, Any]:
    end = name.removeprefix("F")
    ls, eta = pm.InverseGamma(f"ls{end}", 3, 6), pm.HalfNormal(f"eta{end}", 5)
    gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(X.shape[1], ls=ls))
    return gp, gp.prior(name, X=X, **n_outputs)


def held_out(*, name: str, likelihood: str, method: str, fold: int) -> dict[str, Any]:
    """Fit a fold; return accuracy, log density a point, and seconds of fit and prediction."""
    data = load_fold(name, fold)
    model, gps = write(likelihood, data["X"], data["y"])
    options: dict[str, Any] = {"max_iter": SVI_STEPS} if method == "svi" else {"tol": TOLERANCE}
    if name in INDUCING:
        names = [gp.f.name for gp in gps]
        options |= {"gp": gps, "inducing": dict.fromkeys(names, data["Z"])}
    elif method == "vgp":
        options |= {"structure": "factorised"}
    start, cpu = time.perf_counter(), time.process_time()
    with model:
        fit = pac.fit(method, **options, hyper="ml", random_seed=0, progressbar=False)
    fitted, cpu = time.perf_counter(), time.process_time() - cpu
    with model:
        found = pac.predict(
            fit, gps, data["X_test"], kind="y", ynew=data["y_test"], random_seed=0
        ).predictions
    probabilities = found["y_probability"].values
    return {
        **_scores(probabilities, data["y_test"]),
        "seconds": fitted - start,
        "cpu_seconds": cpu,
        "prediction_seconds": time.perf_counter() - fitted,
        "converged": bool(fit.converged),
        "iterations": len(fit.history),
        "bound": float(fit.log_evidence),
        "theta": {key: float(value) for key, value in fit.theta.items()},
    }


def scikit_learn(*, name: str, fold: int) -> dict[str, Any]:
    """Fit scikit-learn's classifier to a fold, one class against the rest."""
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    data = load_fold(name, fold)
    X, y = data["X"], data["y"]
    part = np.random.default_rng(0).permutation(len(y))[: LEARNED_ON.get(name)]
    start, cpu = time.perf_counter(), time.process_time()
    positive = []
    for k in range(y.max() + 1):
        # From RBF(1.0), nearer to no input than any, the search for a kernel for digits is lost.
        learner = GaussianProcessClassifier(ConstantKernel(10.0) * RBF(3.0), random_state=0)
        found = learner.fit(X[part], y[part] == k)
        if name in LEARNED_ON:
            found = GaussianProcessClassifier(found.kernel_, optimizer=None).fit(X, y == k)
        positive.append(found.predict_proba(data["X_test"])[:, 1])
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    probabilities = np.transpose(positive) / np.sum(positive, axis=0)[:, None]
    scores = _scores(probabilities, data["y_test"])
    return scores | {"seconds": seconds, "cpu_seconds": cpu}


def _scores(probabilities: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    right = probabilities.argmax(axis=1) == y
    own = np.log(probabilities[np.arange(y.size), y])
    return {
        "accuracy": float(right.mean()),
        "log_density": float(own.mean()),
        "log_densities": own.tolist(),
        "size": y.size,
    }


def sample_iris(
    *, sampler: str, data: str, likelihood: str, draws: int, tune: int | None
) -> dict[str, Any]:
    """Sample the posterior of all of iris; see :func:`benchmarks.sampling.timed`."""
    from sklearn.datasets import load_iris

    X, y = load_iris(return_X_y=True)
    model, _ = write(likelihood, (X - X.mean(axis=0)) / X.std(axis=0), y)
    return timed(model, ["F", "ls", "eta"], sampler=sampler, draws=draws, tune=tune)


def gpflow(name: str, fold: int, steps: int = STEPS) -> dict[str, Any]:
    """Fit GPflow's SVGP to a fold."""
    batch = 0 if name not in INDUCING else 256
    return run_script("gpflow_classes.py", load_fold(name, fold), EPSILON, batch, steps)


def rows(settings: Settings) -> Iterator[Row]:
    """Yield rows for accuracy, held-out density and time of each fit."""
    for name, plans in PLANS.items():
        yield from _compare(settings, name, plans)
    for likelihood in ("softmax", "logistic-softmax"):
        few = settings.quick
        yield against_nuts(
            settings,
            f"iris, {likelihood}, learned kernel: least ESS/s",
            20.0,
            gibbs={"draws": 100 if few else 1000, "tune": None},
            nuts={"draws": 50 if few else 300, "tune": 50 if few else 300},
            limit=LIMIT,
            function="benchmarks.several_classes:sample_iris",
            likelihood=likelihood,
        )


def _compare(settings: Settings, name: str, plans: tuple[tuple[str, str], ...]) -> Iterator[Row]:
    folds = range(1 if settings.quick else FOLDS)
    theirs = [gpflow(name, fold, 200 if settings.quick else STEPS) for fold in folds]
    missing = theirs[0].get("missing")
    suffix = f" (GPflow could not be installed: {missing})" if missing else ""
    module = "benchmarks.several_classes"
    peers = {
        "scikit-learn": [
            measure(f"{module}:scikit_learn", cores=1, name=name, fold=fold) for fold in folds
        ]
    }
    if not missing:
        peers["GPflow"] = theirs
    points = {rival: _points(runs) for rival, runs in peers.items()}
    rivals = {rival: _mean(runs) for rival, runs in peers.items()}
    for rival, found in rivals.items():
        print(f"  {name}, {rival}: {found}", flush=True)
    for likelihood, method in plans:
        runs = [
            measure(
                f"{module}:held_out",
                cores=1,
                name=name,
                likelihood=likelihood,
                method=method,
                fold=fold,
            )
            for fold in folds
        ]
        own, ours = _points(runs), _mean(runs)
        print(f"  {name}, {likelihood}, {method}: {ours}", flush=True)
        label = f"{name}, {likelihood}, {method}"
        details = {"ours": runs, "rivals": rivals, "theirs": theirs}
        for rival, found in rivals.items():
            above = ours["accuracy"] - found["accuracy"]
            least = 0.0 if rival == "GPflow" else -LEEWAY
            yield Row(
                f"{label}: accuracy above {rival}'s",
                above, None, "", least, "at least", details,
            )  # fmt: skip
            above = own - points[rival]
            error = float(above.std() / np.sqrt(above.size))
            yield Row(
                f"{label}: held-out log density above {rival}'s",
                float(above.mean()), None, "nats a point", 0.0, "at least",
                details | {"standard_error": error},
            )  # fmt: skip
        yield Row(
            f"{label}: seconds of a fit beside GPflow's{suffix}",
            ours["seconds"], rivals.get("GPflow", {}).get("seconds", np.nan), "s",
            1.0 / SPEED_UP, "at most", details,
        )  # fmt: skip


def _points(runs: list[dict[str, Any]]) -> np.ndarray:
    """Take the log density of each point that was left out from the runs, and return all."""
    return np.concatenate([run.pop("log_densities") for run in runs])


def _mean(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Return means over folds, of accuracy and density over all that was left out."""
    size = np.array([run["size"] for run in runs])
    return {
        key: float(np.average([run[key] for run in runs], weights=size))
        for key in ("accuracy", "log_density", "seconds", "cpu_seconds")
    }
