"""The problems: simulated data, the PyMC model of them, and the quantities that are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Data = dict[str, np.ndarray]


@dataclass(frozen=True)
class Problem:
    """A problem.

    Attributes
    ----------
    title : str
        For the table.
    simulate : callable
        From a random generator to arrays.
    build : callable
        From these arrays to a PyMC model.
    compared : callable
        From draws by name, each of shape (chain, draw, …), to the quantities (chain, draw, k).
    """

    title: str
    simulate: Callable[[np.random.Generator], Data]
    build: Callable[[Data], Any]
    compared: Callable[[dict[str, np.ndarray], Data], np.ndarray]


def rows(data: Data) -> np.ndarray:
    """Return the twenty observations whose predictors are compared."""
    return np.linspace(0, len(data["y"]) - 1, 20).astype(int)


def _curve(rng: np.random.Generator, n: int, end: float = 10.0) -> tuple[np.ndarray, np.ndarray]:
    x = np.sort(rng.uniform(0.0, end, n))
    return x[:, None], np.sin(x) + 0.5 * np.cos(2.3 * x)


def gp_normal(rng: np.random.Generator, n: int = 150, end: float = 10.0) -> Data:
    X, f = _curve(rng, n, end)
    return {"X": X, "y": f + 0.4 * rng.standard_normal(n)}


def long_series(rng: np.random.Generator) -> Data:
    return gp_normal(rng, 3000, 200.0)


def gp_student(rng: np.random.Generator) -> Data:
    X, f = _curve(rng, 150)
    return {"X": X, "y": f + 0.3 * rng.standard_t(4.0, 150)}


def gp_poisson(rng: np.random.Generator) -> Data:
    X, f = _curve(rng, 150)
    return {"X": X, "y": rng.poisson(np.exp(f))}


def gp_probit(rng: np.random.Generator) -> Data:
    X = rng.uniform(-2.0, 2.0, (150, 2))
    f = 2.0 * np.sin(2.0 * X[:, 0]) * np.cos(X[:, 1])
    return {"X": X, "y": (f + rng.standard_normal(150) > 0).astype(int)}


def process(data: Data, kernel: str, likelihood: Callable[[Any, Data], Any]) -> Any:
    """Return the model of one process."""
    import pymc as pm

    with pm.Model() as model:
        ls, eta = pm.InverseGamma("ls", 3.0, 4.0), pm.HalfNormal("eta", 2.0)
        covariance = getattr(pm.gp.cov, kernel)(data["X"].shape[1], ls=ls)
        f = pm.gp.Latent(cov_func=eta**2 * covariance).prior("f", X=data["X"])
        likelihood(f, data)
    return model


def _normal(f: Any, data: Data) -> None:
    import pymc as pm

    pm.Normal("y", f, pm.HalfNormal("sigma", 1.0), observed=data["y"])


def _student(f: Any, data: Data) -> None:
    import pymc as pm

    pm.StudentT("y", nu=4.0, mu=f, sigma=pm.HalfNormal("sigma", 1.0), observed=data["y"])


def _poisson(f: Any, data: Data) -> None:
    import pymc as pm

    pm.Poisson("y", pm.math.exp(f), observed=data["y"])


def _probit(f: Any, data: Data) -> None:
    import pymc as pm

    pm.Bernoulli("y", p=pm.math.invprobit(f), observed=data["y"])


def _process(title: str, simulate: Callable, kernel: str, likelihood: Callable) -> Problem:
    return Problem(
        title,
        simulate,
        lambda data: process(data, kernel, likelihood),
        lambda draws, data: draws["f"][..., rows(data)],
    )


def local_level(rng: np.random.Generator) -> Data:
    level = np.cumsum(0.3 * rng.standard_normal(300))
    return {"y": level + 0.8 * rng.standard_normal(300)}


def local_level_model(data: Data) -> Any:
    import pymc as pm

    with pm.Model() as model:
        drift, noise = pm.HalfNormal("drift", 1.0), pm.HalfNormal("noise", 2.0)
        first = pm.Normal.dist(0.0, 10.0)
        f = pm.GaussianRandomWalk("f", sigma=drift, init_dist=first, shape=len(data["y"]))
        pm.Normal("y", f, noise, observed=data["y"])
    return model


def linear_mixed(rng: np.random.Generator, groups: int = 60, rows: int = 1200) -> Data:
    g, x = rng.integers(groups, size=rows), rng.standard_normal(rows)
    a, b = 0.7 * rng.standard_normal(groups), 0.4 * rng.standard_normal(groups)
    return {
        "y": 1.0 + a[g] + (0.5 + b[g]) * x + 0.8 * rng.standard_normal(rows),
        "x": x,
        "g": g,
    }


def linear_mixed_model(data: Data) -> Any:
    import pymc as pm

    g, x = data["g"], data["x"]
    with pm.Model() as model:
        fixed = pm.Normal("fixed", 0.0, 5.0, shape=2)
        a = pm.Normal("a", 0.0, pm.HalfNormal("sd_a", 2.0), shape=int(g.max()) + 1)
        b = pm.Normal("b", 0.0, pm.HalfNormal("sd_b", 2.0), shape=int(g.max()) + 1)
        sigma = pm.HalfNormal("sigma", 2.0)
        pm.Normal("y", fixed[0] + a[g] + (fixed[1] + b[g]) * x, sigma, observed=data["y"])
    return model


def _effects(draws: dict[str, np.ndarray], data: Data) -> np.ndarray:
    parts = [draws["fixed"]] + [draws[name][..., :10] for name in ("a", "b") if name in draws]
    return np.concatenate(parts, axis=-1)


def logit_crossed(rng: np.random.Generator) -> Data:
    g, h = rng.integers(50, size=2000), rng.integers(30, size=2000)
    eta = 0.3 + 0.8 * rng.standard_normal(50)[g] + 0.6 * rng.standard_normal(30)[h]
    return {"y": (rng.random(2000) < 1.0 / (1.0 + np.exp(-eta))).astype(int), "g": g, "h": h}


def logit_crossed_model(data: Data) -> Any:
    import pymc as pm

    g, h = data["g"], data["h"]
    with pm.Model() as model:
        fixed = pm.Normal("fixed", 0.0, 5.0, shape=1)
        a = pm.Normal("a", 0.0, pm.HalfNormal("sd_a", 2.0), shape=int(g.max()) + 1)
        b = pm.Normal("b", 0.0, pm.HalfNormal("sd_b", 2.0), shape=int(h.max()) + 1)
        pm.Bernoulli("y", logit_p=fixed[0] + a[g] + b[h], observed=data["y"])
    return model


def negbin_groups(rng: np.random.Generator) -> Data:
    g, x = rng.integers(40, size=800), rng.standard_normal(800)
    mean = np.exp(1.0 + 0.6 * rng.standard_normal(40)[g] + 0.4 * x)
    return {"y": rng.poisson(mean * rng.gamma(3.0, 1.0 / 3.0, 800)), "x": x, "g": g}


def negbin_groups_model(data: Data) -> Any:
    import pymc as pm

    g, x = data["g"], data["x"]
    with pm.Model() as model:
        fixed = pm.Normal("fixed", 0.0, 5.0, shape=2)
        a = pm.Normal("a", 0.0, pm.HalfNormal("sd_a", 2.0), shape=int(g.max()) + 1)
        mean = pm.math.exp(fixed[0] + a[g] + fixed[1] * x)
        pm.NegativeBinomial("y", mu=mean, alpha=pm.HalfNormal("alpha", 10.0), observed=data["y"])
    return model


def additive_poisson(rng: np.random.Generator) -> Data:
    x = rng.uniform(-1.0, 1.0, (500, 2))
    eta = 1.0 + np.sin(3.0 * x[:, 0]) + x[:, 1] ** 2
    return {"y": rng.poisson(np.exp(eta)), "x1": x[:, 0], "x2": x[:, 1]}


def additive_poisson_model(data: Data) -> Any:
    import pymc as pm

    with pm.Model() as model:
        eta = pm.Normal("b0", 0.0, 5.0)
        for name in ("x1", "x2"):
            ls, scale = pm.InverseGamma(f"ls_{name}", 3.0, 2.0), pm.HalfNormal(f"eta_{name}", 2.0)
            covariance = scale**2 * pm.gp.cov.Matern52(1, ls=ls)
            gp = pm.gp.HSGP(m=[20], c=2.0, cov_func=covariance)
            eta = eta + gp.prior(f"f_{name}", X=data[name][:, None])
        pm.Poisson("y", pm.math.exp(eta), observed=data["y"])
    return model


def _additive(draws: dict[str, np.ndarray], data: Data) -> np.ndarray:
    at = rows(data)
    return draws["b0"][..., None] + draws["f_x1"][..., at] + draws["f_x2"][..., at]


def logit_regression(rng: np.random.Generator) -> Data:
    X = rng.standard_normal((2000, 20))
    eta = X @ (0.4 * rng.standard_normal(20))
    return {"X": X, "y": (rng.random(2000) < 1.0 / (1.0 + np.exp(-eta))).astype(int)}


def logit_regression_model(data: Data) -> Any:
    import pymc as pm

    with pm.Model() as model:
        fixed = pm.Normal("fixed", 0.0, 5.0, shape=20)
        pm.Bernoulli("y", logit_p=data["X"] @ fixed, observed=data["y"])
    return model


PROBLEMS = {
    "gp_normal": _process("Gaussian process, normal noise", gp_normal, "Matern32", _normal),
    "long_series": _process("series of 3000 values", long_series, "Matern32", _normal),
    "gp_student": _process("Gaussian process, Student-t noise", gp_student, "Matern32", _student),
    "gp_poisson": _process("Gaussian process, counts", gp_poisson, "Matern32", _poisson),
    "gp_probit": _process("Gaussian process, two classes", gp_probit, "ExpQuad", _probit),
    "local_level": Problem(
        "local level, 300 values",
        local_level,
        local_level_model,
        lambda draws, data: draws["f"][..., rows(data)],
    ),
    "linear_mixed": Problem(
        "intercepts and slopes of 60 groups", linear_mixed, linear_mixed_model, _effects
    ),
    "logit_crossed": Problem(
        "crossed effects, two classes", logit_crossed, logit_crossed_model, _effects
    ),
    "negbin_groups": Problem(
        "groups, overdispersed counts", negbin_groups, negbin_groups_model, _effects
    ),
    "additive_poisson": Problem(
        "two smooth terms, counts", additive_poisson, additive_poisson_model, _additive
    ),
    "logit_regression": Problem(
        "logistic regression, 20 columns", logit_regression, logit_regression_model, _effects
    ),
}
