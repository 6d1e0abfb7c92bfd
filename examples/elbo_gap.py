"""What the augmentation costs: CAVI's bound and predictions beside VGP's, over lengthscales.

Both fit a Gaussian to the same posterior. VGP finds the closest one; CAVI, whose steps are in
closed form, bounds the evidence of the augmented model, which is looser. The study of section 5.2
of Galy-Fajou et al. (2020): kernel fixed, lengthscales from 10⁻² to 10² times the root of the
number of features; bound and held-out log-likelihood per observation.

Data: scikit-learn's breast cancer (malignant or benign) with a logit, and diabetes (progression
after a year) with Student-t noise. Run ``python examples/elbo_gap.py``, half a minute; the figure
goes to ``demo-output/``, or to the file named as the argument.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pymc as pm
from matplotlib import pyplot as plt
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm
from scipy.stats import t as student_t
from sklearn.datasets import load_breast_cancer, load_diabetes

import pymc_augconj as pac

N_TRAIN = 150
LENGTHSCALES = np.logspace(-2, 2, 13)
NU, SCALE = 3.0, 0.6
METHODS = {"cavi": "augmented (CAVI)", "vgp": "not augmented (VGP)"}


def split(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return standardised training and test inputs, and the targets of both."""
    order = np.random.default_rng(0).permutation(len(y))[: 2 * N_TRAIN]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    X, y = X[order], y[order].astype(float)
    return X[:N_TRAIN], X[N_TRAIN:], y[:N_TRAIN], y[N_TRAIN:]


def logit(f, y):
    """Write the classification likelihood."""
    pm.Bernoulli("y", logit_p=f, observed=y)


def robust(f, y):
    """Write the robust regression likelihood."""
    pm.StudentT("y", nu=NU, mu=f, sigma=SCALE, observed=y)


def study(X, X_test, y, y_test, observe: Callable) -> dict[str, np.ndarray]:
    """Return bound and held-out log-likelihood per observation, (lengthscales, 2), by method."""
    found = {method: np.empty((len(LENGTHSCALES), 2)) for method in METHODS}
    for i, lengthscale in enumerate(LENGTHSCALES):
        with pm.Model() as model:
            ls = lengthscale * np.sqrt(X.shape[1])
            gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(X.shape[1], ls=ls))
            observe(gp.prior("f", X=X), y)
        for method, values in found.items():
            vi = pac.fit(method, model=model, progressbar=False)
            assert vi.converged
            p = pac.predict(vi, gp, X_test, "y", model=model, ynew=y_test).predictions
            values[i] = vi.log_evidence / len(y), float(p["y_log_density"].mean())
    return found


def evidence_of_independent(y: np.ndarray, density: Callable) -> float:
    """Return log p(y) per observation where all latents are independent N(0, 1), by quadrature."""
    terms = {
        value: np.log(quad(lambda f, v=value: density(v, f) * norm.pdf(f), -12, 12, limit=200)[0])
        for value in np.unique(y)
    }
    return float(np.mean([terms[value] for value in y]))


def draw(studies: dict[str, dict[str, np.ndarray]], figure: Path) -> None:
    """Save the figure: a column for each data set."""
    fig, axes = plt.subplots(2, 2, figsize=(8, 5.2), sharex=True, layout="constrained")
    for column, (title, found) in zip(axes.T, studies.items(), strict=True):
        for (method, values), style in zip(found.items(), ("C0-", "C1--"), strict=True):
            for ax, line in zip(column, values.T, strict=True):
                ax.semilogx(LENGTHSCALES, line, style, label=METHODS[method])
        column[0].set_title(title)
        column[1].set_xlabel("lengthscale / √features")
    axes[0, 0].set_ylabel("bound per observation")
    axes[1, 0].set_ylabel("held-out log-likelihood\nper observation")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.parent.mkdir(exist_ok=True)
    fig.savefig(figure, dpi=80)
    print(f"figure: {figure}")


def main(figure: Path) -> None:
    """Fit, print, draw, check."""
    mpl.use("agg")
    cancer, diabetes = load_breast_cancer(), load_diabetes()
    progression = (diabetes.target - diabetes.target.mean()) / diabetes.target.std()
    problems = {
        "breast cancer, logit": (
            split(cancer.data, cancer.target),
            logit,
            lambda y, f: expit((2.0 * y - 1.0) * f),
        ),
        "diabetes, Student-t": (
            split(diabetes.data, progression),
            robust,
            lambda y, f: student_t.pdf((y - f) / SCALE, NU) / SCALE,
        ),
    }
    studies = {}
    for title, (data, observe, density) in problems.items():
        studies[title] = found = study(*data, observe)
        gap = found["vgp"] - found["cavi"]
        print(f"{title}\n  lengthscale   bound, CAVI    gap   held-out, CAVI    gap")
        for ls, (bound, held_out), gaps in zip(LENGTHSCALES, found["cavi"], gap, strict=True):
            print(f"  {ls:11.3g} {bound:13.4f} {gaps[0]:6.4f} {held_out:16.4f} {gaps[1]:6.4f}")
        # At the shortest lengthscale latents are independent, and the evidence a product.
        exact = evidence_of_independent(data[2], density)
        print(f"  evidence of independent latents, by quadrature: {exact:.4f}")
        assert found["cavi"][0, 0] < found["vgp"][0, 0] < exact
        # VGP's bound is the tighter one everywhere, most where every latent has one observation;
        # at the best lengthscale the gap is small beside what the kernel decides,
        best = {method: int(np.argmax(values[:, 0])) for method, values in found.items()}
        assert (gap[:, 0] > -1e-6).all()
        assert gap[best["vgp"], 0] < 0.1 * np.ptp(found["vgp"][:, 0])
        # so that both choose the same lengthscale, to a step of the grid, and predict alike.
        assert abs(best["cavi"] - best["vgp"]) <= 1
        assert np.abs(gap[:, 1]).max() < 0.02
    draw(studies, figure)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output/elbo_gap.png"))
