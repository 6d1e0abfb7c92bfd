"""Is a tumour benign? Gaussian process classification, exactly, and NUTS on the same model.

Data: 569 tumours, 30 measured features (Wolberg, Street & Mangasarian 1995), as shipped with
scikit-learn; 250 to learn from, 319 to check the prediction on.

Run ``make demo``, or ``python examples/breast_cancer.py`` where the package and its ``demo``
extra are installed. A figure, the draws and the comparison table go to ``demo-output/``.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import arviz as az
import matplotlib as mpl
import numpy as np
import nutpie
import pandas as pd
import pymc as pm
from scipy.special import expit
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits
from xarray import DataTree

import pymc_augconj as pac

OUTPUT = Path("demo-output")
SEED = 20240607
CHAINS = 4
DRAWS = 1200
SUMMARIZED = ["ls", "eta", "b0"]

# NUTS compiles for about a minute where nothing is cached, and is then given this long to sample:
# two chains with a short tuning phase, and as many draws as it makes in time.
NUTS_SECONDS = 30
NUTS_CHAINS = 2
NUTS_TUNE = 50
FEWEST_NUTS_DRAWS = 10

# Thinning of the posterior draws for the prediction.
PREDICTION_THINNING = 30

LARGEST_R_HAT = 1.01
SMALLEST_ACCURACY = 0.94


@dataclass(frozen=True)
class Data:
    """Standardised features (n, d) and labels (n,), 1 for benign."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def load() -> Data:
    """Split and standardise, with the mean and standard deviation of the training part only."""
    X, y = load_breast_cancer(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, train_size=250, stratify=y, random_state=0)
    center, scale = X.mean(axis=0), X.std(axis=0)
    return Data((X - center) / scale, y, (X_test - center) / scale, y_test)


def build(data: Data) -> tuple[pm.Model, pm.gp.Latent]:
    """Write the model as for any sampler: nothing here knows how it will be sampled."""
    d = data.X.shape[1]
    with pm.Model() as model:
        # Two standardised points are sqrt(2 d) apart on average, and so is the length scale.
        ls = pm.InverseGamma("ls", 5, 5 * np.sqrt(2 * d))
        eta = pm.HalfNormal("eta", 2)
        b0 = pm.Normal("b0", 0, 2)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(d, ls=ls))
        f = gp.prior("f", X=data.X)
        pm.Bernoulli("y", logit_p=b0 + f, observed=data.y)
    return model, gp


def run_nuts(model: pm.Model) -> tuple[DataTree | None, float]:
    """Sample with nutpie until the time is up; return the draws made by then and the seconds.

    The draws of all chains are cut to the shortest; None if a chain made hardly any.
    """
    start = time.perf_counter()
    compiled = nutpie.compile_pymc_model(model)
    print(f"compiled in {time.perf_counter() - start:.0f} s; sampling …", flush=True)
    sampler = nutpie.sample(
        compiled,
        tune=NUTS_TUNE,
        draws=DRAWS,
        chains=NUTS_CHAINS,
        cores=NUTS_CHAINS,
        seed=SEED,
        blocking=False,
        progress_bar=False,
    )
    try:
        idata = sampler.wait(timeout=NUTS_SECONDS)
    except TimeoutError:
        idata = sampler.abort()
    seconds = time.perf_counter() - start
    if "posterior" not in idata.children:
        return None, seconds
    # Where a chain has been cut short, its remaining entries are NaN.
    finished = int(np.isfinite(idata["posterior"]["ls"].values).all(axis=0).sum())
    made = idata["posterior"].sizes["chain"]
    print(f"made {finished} of {DRAWS} draws in each of {made} chains by {seconds:.0f} s")
    if finished < FEWEST_NUTS_DRAWS or made < NUTS_CHAINS:
        return None, seconds
    return idata.sel(draw=slice(0, finished - 1)), seconds


def predict(data: Data, model: pm.Model, gp: pm.gp.Latent, idata: DataTree) -> np.ndarray:
    """Return P(benign) for each test tumour, averaged over the posterior, shape (n_test,)."""
    thinned = idata.isel(draw=slice(None, None, PREDICTION_THINNING))
    with model:
        gp.conditional("f_test", data.X_test, jitter=1e-6)
        predictive = pm.sample_posterior_predictive(
            thinned,
            var_names=["f_test"],
            random_seed=SEED,
            progressbar=False,
            compile_kwargs={"mode": "FAST_COMPILE"},  # so few draws do not repay compiling
        )
    f_test = predictive["posterior_predictive"]["f_test"]
    return expit(f_test + thinned["posterior"]["b0"]).mean(("chain", "draw")).values


def heading(text: str) -> None:
    """Print a title over what follows."""
    print(f"\n── {text} ".ljust(100, "─"), flush=True)


def main() -> None:
    """Run the demonstration from data to comparison, and check what came out."""
    mpl.use("agg")
    pd.set_option("display.width", 100)
    OUTPUT.mkdir(exist_ok=True)
    data = load()
    model, gp = build(data)

    heading("what was recognised")
    with model:
        print(pac.recognize())

    heading(f"exact Gibbs sampling, {CHAINS} chains of {DRAWS} draws")
    with model:
        start = time.perf_counter()
        # The same as pm.sample(DRAWS, step=pac.AugmentedGibbs(), …), ready sooner.
        idata = pac.sample(DRAWS, chains=CHAINS, random_seed=SEED)
        gibbs_seconds = time.perf_counter() - start
    summary = az.summary(idata, var_names=SUMMARIZED)
    print(summary)
    store = OUTPUT / "gibbs.zarr"
    shutil.rmtree(store, ignore_errors=True)
    idata.to_zarr(store, consolidated=False)

    heading(f"NUTS on the same model (nutpie, whitened): compile, then {NUTS_SECONDS} s")
    nuts, nuts_seconds = run_nuts(model)

    heading("comparison; wall time includes compilation in both")
    fits = {"gibbs": idata}
    seconds = {"gibbs": gibbs_seconds}
    if nuts is None:
        print(f"NUTS made fewer than {FEWEST_NUTS_DRAWS} draws in its time: nothing to compare.")
    else:
        fits["nuts"], seconds["nuts"] = nuts, nuts_seconds
    table = pac.compare(fits, var_names=["f", *SUMMARIZED], wall_time=seconds, reference="gibbs")
    print(table.T.to_string(float_format="{:.4g}".format))
    table.to_csv(OUTPUT / "comparison.csv")
    pac.plot_compare(fits, kind="trace", var_names=SUMMARIZED).savefig(OUTPUT / "comparison.png")

    heading("held-out tumours")
    p = predict(data, model, gp, idata)
    accuracy = np.mean((p > 0.5) == data.y_test)
    r_hat = table.loc["gibbs", "rhat_max"]
    print(f"accuracy {accuracy:.3f} on {p.size} tumours that no sampler has seen")
    print(f"largest R-hat of f, ls, eta and b0: {r_hat:.4f}")
    print(f"see {OUTPUT}/: comparison.png, comparison.csv, gibbs.zarr")

    assert r_hat < LARGEST_R_HAT, f"the chains disagree: largest R-hat {r_hat:.4f}"
    assert accuracy > SMALLEST_ACCURACY, f"held-out accuracy is only {accuracy:.3f}"


if __name__ == "__main__":
    # The chains of either sampler share the cores; with more BLAS threads they would get in each
    # other's way. pac.sample sees to that by itself, NUTS and the prediction do not.
    with threadpool_limits(limits=1, user_api="blas"):
        main()
