"""Use the installed package once: read a model, sample, fit, predict, save and load.

``make dist`` runs this in an environment that has the wheel and nothing else, outside the
checkout, where a missing file or an undeclared dependency cannot hide.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pymc as pm

import pymc_augconj as pac

mpl.use("Agg")  # no display is needed


def main() -> None:
    """Run every part of the front end on twenty observations."""
    package = Path(pac.__file__)
    assert package.is_relative_to(sys.prefix), f"expected the installed package, found {package}"
    assert pac.__version__ == version("pymc-augconj")
    assert package.with_name("py.typed").exists()

    rng = np.random.default_rng(1)
    X = np.linspace(0.0, 3.0, 20)[:, None]
    y = rng.uniform(size=20) < 1.0 / (1.0 + np.exp(-3.0 * np.sin(2.0 * X[:, 0])))
    with pm.Model():
        ls = pm.InverseGamma("ls", 5, 5)
        gp = pm.gp.Latent(cov_func=4.0 * pm.gp.cov.ExpQuad(1, ls=ls))
        f = gp.prior("f", X=X)
        pm.Bernoulli("y", logit_p=f, observed=y.astype(int))

        print(pac.recognize())
        draws = pac.sample(draws=100, tune=50, chains=2, cores=2, random_seed=1)
        fit = pac.fit("ep")
        drawn = pac.predict(draws, gp, np.array([[0.75], [2.3]]))
        fitted = pac.predict(fit, gp, np.array([[0.75], [2.3]]))
    assert draws.posterior["f"].shape == (2, 100, 20)
    assert np.isfinite(draws.posterior["ls"]).all()
    assert "predictions" in drawn.children
    assert "predictions" in fitted.children

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fit.npz"
        fit.save(path)
        np.testing.assert_array_equal(pac.Approximation.load(path).mean["f"], fit.mean["f"])
    print(pac.compare({"gibbs": draws, "ep": fit}, var_names=["f"]))
    pac.plot_compare({"gibbs": draws, "ep": fit}, var_names=["f"])
    print(f"pymc-augconj {pac.__version__} works")


if __name__ == "__main__":
    main()
