"""The quantile propagation paper's experiment in the small: EP, QP and the VGP on held-out data.

Classification: ten-fold cross-validation, probit likelihood, squared exponential kernel with one
length scale and one variance, learned on every fold's training part: by EP on its evidence, whose
optimum QP keeps, and by the VGP on its bound. (A wide half-normal prior on both keeps them finite
where classes are separable.) Learning starts at the optimum of the fold before. Test error, and
minus the mean log predictive density of the test part.

Counts: the coal mining disasters in bins, each event thrown into the training or the test part by a
fair coin, Poisson with a square link, several throws.

References
----------
Zhang, R., Walder, C., Bonilla, E., Rizoiu, M.-A. & Xie, L. (2020). Quantile propagation for
Wasserstein-approximate Gaussian processes. NeurIPS 33: tables 1 and 2.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.harness import Row, Settings, measure

METHODS = ("ep", "qp", "vgp")
DATA_SETS = ("ionosphere", "sonar", "heart", "breast cancer", "wine 1-2", "wine 1-3", "wine 2-3")
# EP's test error in per cent and −log p in 1e-3, as printed. (Two other rows of the table are on
# data that repeat rows or have the row's number as a feature.)
PAPER = {"ionosphere": (7.9, 215.9), "sonar": (14.0, 306.7)}
FOLDS, QUICK_FOLDS = 10, 2
# How much worse than EP's QP's −log p may be, in 1e-3.
QP_BAR = 0.5
# Their folds are not known: another throw of the folds moves these by some per cent.
PAPER_BAR = 1.15
WIDE = 20.0

COAL_BINS, COAL_THROWS, QUICK_THROWS = 50, 5, 1
HERMITE_NODES = 64


def load(data: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return standardised features and y ∈ {0, 1}."""
    if name.startswith("wine"):
        from sklearn.datasets import load_wine

        first, second = (int(part) - 1 for part in name.removeprefix("wine ").split("-"))
        X, label = load_wine(return_X_y=True)
        chosen = (label == first) | (label == second)
        X, y = X[chosen], (label[chosen] == second) * 1.0
    elif name == "breast cancer":
        from sklearn.datasets import load_breast_cancer

        X, y = load_breast_cancer(return_X_y=True)
    else:
        table = np.loadtxt(Path(data) / f"{name}.csv", delimiter=",")
        X, y = table[:, 1:], (table[:, 0] > 0) * 1.0
    X = X[:, X.std(axis=0) > 0.0]
    return (X - X.mean(axis=0)) / X.std(axis=0), np.asarray(y, dtype=float)


def classify(*, data: str, name: str, folds: int) -> dict[str, Any]:
    """Cross-validate; for :func:`benchmarks.harness.measure`."""
    from scipy.special import log_ndtr

    X, y = load(data, name)
    fold = np.random.default_rng(0).permutation(np.arange(y.size) % folds)
    found: dict[str, dict[str, list]] = {
        method: {"wrong": [], "loss": [], "var": [], "seconds": [], "theta": [], "converged": []}
        for method in METHODS
    }
    starts: dict[str, dict] = {}
    for k in range(folds):
        train, test = fold != k, fold == k
        for method, fit, (mean, var) in _fits(X[train], y[train], X[test], starts):
            sign, z = np.where(y[test] > 0, 1.0, -1.0), mean / np.sqrt(1.0 + var)
            into = found[method]
            into["wrong"] += (sign * z < 0.0).tolist()
            # The exact predictive of a probit under f* ~ N(mean, var).
            into["loss"] += (-log_ndtr(sign * z)).tolist()
            into["var"] += var.tolist()
            into["seconds"].append(fit.timings["total"])
            into["theta"].append({key: float(value) for key, value in fit.theta.items()})
            into["converged"].append(fit.converged)
    return found


def _fits(X, y, Xnew, starts: dict[str, dict]) -> Iterator[tuple]:
    """Yield every method's fit and prediction; ``starts`` holds where learning begins."""
    import pymc as pm

    import pymc_augconj as pac

    with pm.Model() as model:
        ls, eta = pm.HalfNormal("ls", WIDE), pm.HalfNormal("eta", WIDE)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(X.shape[1], ls=ls))
        pm.Bernoulli("y", p=pm.math.invprobit(gp.prior("f", X=X)), observed=y)
    default = {"ls": np.sqrt(X.shape[1]), "eta": 3.0}
    for method in METHODS:
        if method == "qp":
            arguments = {"hyper": "fixed", "start": starts["ep"]}
        else:
            arguments = {"hyper": "map", "start": starts.get(method, default)}
        fit = pac.fit(method, model=model, progressbar=False, **arguments)
        starts[method] = {key: float(value) for key, value in fit.theta.items()}
        tree = pac.predict(fit, gp, Xnew, model=model).predictions
        yield method, fit, (tree["f_mean"].values, tree["f_std"].values ** 2)


def count(*, data: str, throws: int) -> dict[str, Any]:
    """Thin the disasters and predict the other half of them, by every method.

    Returns the reason instead, where this likelihood is not supported.
    """
    import pymc as pm

    import pymc_augconj as pac

    dates = np.loadtxt(Path(data) / "coal_dates.txt")
    edges = np.linspace(dates.min(), dates.max(), COAL_BINS + 1)
    width = edges[1] - edges[0]
    x = (0.5 * (edges[1:] + edges[:-1]) - edges.mean())[:, None] / 10.0
    found: dict[str, dict[str, list]] = {
        method: {"loss": [], "seconds": [], "var": []} for method in METHODS
    }
    for throw in range(throws):
        heads = np.random.default_rng(throw).random(dates.size) < 0.5
        y, other = (np.histogram(dates[part], edges)[0] for part in (heads, ~heads))
        theta = None
        with pm.Model():
            ls, eta = pm.InverseGamma("ls", 3, 6), pm.HalfNormal("eta", 1)
            # Not zero: the posterior would have two modes, f and −f.
            level = pm.gp.mean.Constant(np.sqrt(y.mean() / width))
            gp = pm.gp.Latent(mean_func=level, cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=ls))
            f = gp.prior("f", X=x)
            pm.Poisson("y", mu=f**2 * width, observed=y)
            for method in METHODS:
                arguments = {"hyper": "fixed", "start": theta} if method == "qp" else {}
                try:
                    fit = pac.fit(method, progressbar=False, **arguments)
                except pac.AugmentationError as error:
                    return {"reason": str(error)}
                theta = fit.theta
                mean, std = fit.mean["f"].values, fit.std["f"].values
                found[method]["loss"] += _count_loss(other, mean, std, width).tolist()
                found[method]["var"] += (std**2).tolist()
                found[method]["seconds"].append(fit.timings["total"])
    return found


def _count_loss(y, mean, std, width) -> np.ndarray:
    """Return −log ∫ Poisson(y | f² width) N(f | mean, std²) df."""
    from scipy.special import logsumexp
    from scipy.stats import poisson

    nodes, weights = np.polynomial.hermite_e.hermegauss(HERMITE_NODES)
    f = mean[:, None] + std[:, None] * nodes
    log_p = poisson.logpmf(y[:, None], np.maximum(f**2 * width, 1e-300))
    return -logsumexp(log_p + np.log(weights / weights.sum()), axis=1)


def rows(settings: Settings) -> Iterator[Row]:
    """Yield QP's loss against EP's for every data set, and EP's against the paper's."""
    data, start = str(settings.data.resolve()), time.perf_counter()
    folds = QUICK_FOLDS if settings.quick else FOLDS
    studied = {}
    for name in DATA_SETS[:2] if settings.quick else DATA_SETS:
        found = measure("benchmarks.qp_study:classify", data=data, name=name, folds=folds)
        studied[name] = found
        yield _qp_against_ep(name, found)
        if name in PAPER:
            yield from _against_the_paper(name, found)
    throws = QUICK_THROWS if settings.quick else COAL_THROWS
    found = measure("benchmarks.qp_study:count", data=data, throws=throws)
    label = "coal mining, Poisson with square link"
    if "reason" in found:
        yield Row(f"{label}; not measured", np.nan, None, "1e-3", QP_BAR, "at most", found)
    else:
        studied["coal mining"] = found
        yield _qp_against_ep(label, found)
    print_study(studied)
    path = settings.output / "qp_study.png"
    plot_variances(studied, path)
    print(f"{time.perf_counter() - start:.0f} s; predictive variances in {path}", flush=True)


def _loss(found: dict[str, Any]) -> float:
    return 1e3 * float(np.mean(found["loss"]))


def _error(found: dict[str, Any]) -> float:
    return 100.0 * float(np.mean(found["wrong"]))


def _qp_against_ep(name: str, found: dict[str, Any]) -> Row:
    label = f"{name}: QP's −log p on test data, less EP's"
    summary = {
        method: {
            key: float(np.mean(value)) for key, value in found[method].items() if key != "theta"
        }
        for method in METHODS
    }
    difference = _loss(found["qp"]) - _loss(found["ep"])
    return Row(label, difference, None, "1e-3", QP_BAR, "at most", summary | {"raw": found})


def _against_the_paper(name: str, found: dict[str, Any]) -> Iterator[Row]:
    error, loss = PAPER[name]
    label = f"{name}: EP's {{}} against the paper's"
    ours = found["ep"]
    yield Row(label.format("test error"), _error(ours), error, "%", PAPER_BAR, "at most")
    yield Row(label.format("−log p"), _loss(ours), loss, "1e-3", PAPER_BAR, "at most")


def print_study(studied: dict[str, dict[str, Any]]) -> None:
    """Print every method's numbers beside the paper's."""
    table = Table("data", title="held-out data: test error in %, and −log p in 1e-3")
    for method in METHODS:
        table.add_column(f"{method.upper()} error", justify="right")
        table.add_column("−log p", justify="right")
    table.add_column("paper's EP", justify="right")
    for name, found in studied.items():
        cells = []
        for method in METHODS:
            one = found[method]
            cells += [f"{_error(one):.1f}" if "wrong" in one else "–", f"{_loss(one):.1f}"]
        paper = "{} / {}".format(*PAPER[name]) if name in PAPER else "–"
        table.add_row(name, *cells, paper)
    Console(width=120).print(table)


def plot_variances(studied: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw QP's predictive variances of f against EP's, a panel a data set."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import NullFormatter

    columns = 4
    lines = -(-len(studied) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(3.2 * columns, 3.0 * lines), squeeze=False)
    for ax in axes.flat[len(studied) :]:
        ax.set_axis_off()
    for ax, (name, found) in zip(axes.flat, studied.items(), strict=False):
        ep, qp = np.array(found["ep"]["var"]), np.array(found["qp"]["var"])
        ax.loglog(ep, qp, ".", markersize=3, alpha=0.6)
        ends = np.array([min(ep.min(), qp.min()), max(ep.max(), qp.max())])
        ax.loglog(ends, ends, "k-", linewidth=0.6)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_minor_formatter(NullFormatter())
        ax.set(title=name, xlabel="variance by EP", ylabel="variance by QP")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
