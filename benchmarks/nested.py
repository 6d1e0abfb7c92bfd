"""Nested fits beside exact draws, evidences and leave-one-out beside quadrature, and updates.

``python -m benchmarks.nested evidence|loo [first last]`` prints a row a model, in seconds of CPU
time; ``draws FOLDER first last enough limit``, ``marginals FOLDER first last`` and
``update KERNEL n draws`` are the functions below.
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
from scipy import stats
from scipy.integrate import cumulative_trapezoid
from scipy.special import logsumexp

import pymc_augconj as pac

QUIET = {"progressbar": False}
# Hyperparameters of the models of :func:`models`.
THETA = {"ls", "eta", "sigma", "alpha", "phi", "s", "mu", "psi", "shape", "sd", "sv", "tau",
         "s0", "s1", "s2"}  # fmt: skip
FAMILIES = ("bernoulli", "poisson", "binomial", "negative_binomial", "student_t")
# Prior scale of τ, and the intercept.
SCALE, LEVEL = 1.5, 0.5


# -- groups: one hyperparameter, everything by quadrature -----------------------------------------


def draw_groups(family: str, seed: int, groups: int, each: int) -> np.ndarray:
    """Return data of shape (groups, each)."""
    rng = np.random.default_rng(seed)
    eta = LEVEL + rng.normal(0, 0.9, (groups, 1)) + np.zeros((groups, each))
    if family == "bernoulli":
        return rng.binomial(1, 1 / (1 + np.exp(-eta)))
    if family == "binomial":
        return rng.binomial(8, 1 / (1 + np.exp(-eta)))
    if family == "poisson":
        return rng.poisson(np.exp(eta))
    if family == "negative_binomial":
        return rng.negative_binomial(3, 3 / (3 + np.exp(eta)))
    return eta + 0.5 * rng.standard_t(4, eta.shape)


def log_density(family: str, y: np.ndarray, eta: np.ndarray) -> np.ndarray:
    """Return log p(y | η)."""
    p = 1 / (1 + np.exp(-eta))
    return {
        "bernoulli": lambda: stats.bernoulli.logpmf(y, p),
        "binomial": lambda: stats.binom.logpmf(y, 8, p),
        "poisson": lambda: stats.poisson.logpmf(y, np.exp(eta)),
        "negative_binomial": lambda: stats.nbinom.logpmf(y, 3, 3 / (3 + np.exp(eta))),
        "student_t": lambda: stats.t.logpdf(y, 4, eta, 0.5),
    }[family]()


def group_model(family: str, y: np.ndarray) -> pm.Model:
    """Return the model of τ ~ HalfNormal, a ~ N(0, τ)."""
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", SCALE)
        eta = LEVEL + pm.Normal("a", 0, tau, shape=len(y))[np.repeat(np.arange(len(y)), y.shape[1])]
        flat = y.ravel()
        if family == "bernoulli":
            pm.Bernoulli("y", logit_p=eta, observed=flat)
        elif family == "binomial":
            pm.Binomial("y", n=8, logit_p=eta, observed=flat)
        elif family == "poisson":
            pm.Poisson("y", pm.math.exp(eta), observed=flat)
        elif family == "negative_binomial":
            pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=3.0, observed=flat)
        else:
            pm.StudentT("y", nu=4, mu=eta, sigma=0.5, observed=flat)
    return model


def log_evidences(family: str, y: np.ndarray) -> np.ndarray:
    """Return log p(y), and log p(y) without each group, by quadrature."""
    x, w = np.polynomial.hermite_e.hermegauss(160)
    log_tau = np.linspace(-12, 2.5, 500)
    eta = LEVEL + np.exp(log_tau)[:, None, None, None] * x
    with np.errstate(all="ignore"):
        each = np.sum(
            [log_density(family, y[None, :, [j]], eta[:, 0]) for j in range(y.shape[1])], 0
        )
    each = logsumexp(np.nan_to_num(each, nan=-np.inf), b=w / w.sum(), axis=-1)
    prior = stats.halfnorm.logpdf(np.exp(log_tau), scale=SCALE) + log_tau
    total = prior + each.sum(axis=1)
    every = [total, *(total - column for column in each.T)]
    return np.array([logsumexp(v) + np.log(log_tau[1] - log_tau[0]) for v in every])


def evidence(first: int, last: int) -> None:
    """Thirty models: five families, six data sets each."""
    print("model, exact, estimate, standard error, error/se, k, cpu")
    cases = [(family, seed) for seed in range(6) for family in FAMILIES]
    for family, seed in cases[first:last]:
        y = draw_groups(family, seed, 6 + 4 * seed, 1 + seed % 3)
        exact, start = log_evidences(family, y)[0], time.process_time()
        found = pac.log_evidence(group_model(family, y), random_seed=seed)
        z = (found.value - exact) / found.standard_error
        print(f"{family} {y.shape}, {exact:.4f}, {found.value:.4f}, {found.standard_error:.4f}, "
              f"{z:+.2f}, {found.pareto_k:.2f}, {time.process_time() - start:.1f}",
              flush=True)  # fmt: skip


def loo(first: int, last: int) -> None:
    """Six data sets with an observation a group: all are left out in turn by quadrature."""
    print("model, worst error where k < 0.7, worst error, PSIS: worst error, high k")
    cases = [("poisson", 1), ("poisson", 2), ("binomial", 1), ("negative_binomial", 1),
             ("student_t", 1), ("bernoulli", 1)]  # fmt: skip
    for family, seed in cases[first:last]:
        y = draw_groups(family, 10 + seed, 12, 1)
        known = log_evidences(family, y)
        exact = known[0] - known[1:]
        fit = pac.fit("nested", model=group_model(family, y), random_seed=1, **QUIET)
        found = fit.loo()
        error, good = np.abs(found.elpd_i.values - exact), found.pareto_k.values < 0.7
        draws = az.loo(fit.to_datatree(), pointwise=True)
        psis = np.abs(draws.elpd_i.values - exact)
        high = int((draws.pareto_k.values > 0.7).sum())
        print(f"{family}, {error[good].max():.4f}, {error.max():.4f} ({(~good).sum()} high), "
              f"{psis.max():.4f}, {high}", flush=True)  # fmt: skip


# -- marginals ------------------------------------------------------------------------------------


def models() -> dict[str, pm.Model]:
    """Return twenty models, each made when asked for."""
    found = {}

    def add(name, make):
        found[name] = make

    def process(likelihood, n, kernel, seed):
        rng = np.random.default_rng(seed)
        X = np.sort(rng.uniform(0, 10, n))[:, None]
        f = np.sin(X[:, 0])
        with pm.Model() as model:
            ls, eta = pm.InverseGamma("ls", 3, 4), pm.HalfNormal("eta", 1)
            gp = pm.gp.Latent(cov_func=eta**2 * kernel(1, ls=ls))
            g = gp.prior("f", X=X)
            if likelihood == "bernoulli":
                pm.Bernoulli("y", logit_p=g, observed=rng.binomial(1, 1 / (1 + np.exp(-f))))
            elif likelihood == "poisson":
                pm.Poisson("y", pm.math.exp(g), observed=rng.poisson(np.exp(f)))
            elif likelihood == "student_t":
                s = pm.HalfNormal("sigma", 1)
                y = f + 0.3 * rng.standard_t(4, n)
                pm.StudentT("y", nu=4, mu=g, sigma=s, observed=y)
            elif likelihood == "negative_binomial":
                alpha = pm.Gamma("alpha", 2, 0.5)
                y = rng.negative_binomial(2, 2 / (2 + np.exp(1 + f)))
                pm.NegativeBinomial("y", mu=pm.math.exp(1 + g), alpha=alpha, observed=y)
        return model

    M52, M32, RBF = pm.gp.cov.Matern52, pm.gp.cov.Matern32, pm.gp.cov.ExpQuad
    add("process, Bernoulli, 50", lambda: process("bernoulli", 50, M52, 1))
    add("process, Poisson, 500", lambda: process("poisson", 500, M32, 2))
    add("process, Student-t, 200", lambda: process("student_t", 200, RBF, 3))
    add("process, negative binomial, 60", lambda: process("negative_binomial", 60, M52, 4))
    add("process, Bernoulli, 100", lambda: process("bernoulli", 100, RBF, 5))

    def series(kind, n, seed):
        rng = np.random.default_rng(seed)
        h = np.cumsum(0.2 * rng.standard_normal(n))
        with pm.Model() as model:
            if kind == "volatility":
                phi, s = pm.Beta("phi", 20, 1.5), pm.HalfNormal("s", 0.5)
                mu = pm.Normal("mu", 0, 2)
                path = pm.AR("h", rho=[phi], sigma=s, init_dist=pm.Normal.dist(0, 1), shape=n)
                returns = np.exp(0.5 * (h - h.mean())) * rng.standard_normal(n)
                pm.Normal("y", 0, pm.math.exp(0.5 * (mu + path)), observed=returns)
            else:
                s = pm.HalfNormal("s", 0.5)
                start = pm.Normal.dist(0, 2)
                path = pm.GaussianRandomWalk("h", sigma=s, init_dist=start, shape=n)
                pm.Poisson("y", pm.math.exp(path), observed=rng.poisson(np.exp(h)))
        return model

    add("stochastic volatility, 150", lambda: series("volatility", 150, 6))
    add("walk, Poisson, 120", lambda: series("walk", 120, 7))

    def groups(likelihood, sizes, n, seed):
        rng = np.random.default_rng(seed)
        index = [rng.integers(0, k, n) for k in sizes]
        true = sum(rng.normal(0, 0.6, k)[i] for k, i in zip(sizes, index, strict=True))
        x = rng.standard_normal(n)
        with pm.Model() as model:
            eta = pm.Normal("b", 0, 2) + pm.Normal("slope", 0, 1) * x
            for j, (k, i) in enumerate(zip(sizes, index, strict=True)):
                eta += pm.Normal(f"a{j}", 0, pm.HalfNormal(f"s{j}", 1), shape=k)[i]
            true = true + 0.5 * x
            if likelihood == "bernoulli":
                pm.Bernoulli("y", logit_p=eta, observed=rng.binomial(1, 1 / (1 + np.exp(-true))))
            elif likelihood == "poisson":
                pm.Poisson("y", pm.math.exp(eta), observed=rng.poisson(np.exp(true)))
            elif likelihood == "negative_binomial":
                y = rng.negative_binomial(2, 2 / (2 + np.exp(1 + true)))
                alpha = pm.Gamma("alpha", 2, 0.5)
                pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=alpha, observed=y)
            elif likelihood == "weibull":
                times = np.exp(true / 1.5) * rng.weibull(1.5, n)
                shape = pm.Gamma("shape", 4, 3)
                weibull = pm.Weibull.dist(shape, pm.math.exp(eta / shape))
                pm.Censored("y", weibull, lower=None, upper=3.0, observed=np.minimum(times, 3.0))
            elif likelihood == "zero_inflated":
                psi = pm.Beta("psi", 4, 2)
                y = rng.poisson(np.exp(1 + true)) * rng.binomial(1, 0.7, n)
                pm.ZeroInflatedPoisson("y", psi, pm.math.exp(eta), observed=y)
            else:
                s = pm.HalfNormal("sigma", 1)
                pm.Normal("y", eta, s, observed=true + 0.5 * rng.standard_normal(n))
        return model

    add("logistic, three groups", lambda: groups("bernoulli", (10, 8, 6), 300, 8))
    add("logistic, one group", lambda: groups("bernoulli", (20,), 200, 9))
    add("Poisson, two groups", lambda: groups("poisson", (15, 8), 150, 10))
    add("Poisson, overdispersed", lambda: groups("poisson", (100, 10), 100, 11))
    add("negative binomial, one group", lambda: groups("negative_binomial", (12,), 200, 12))
    add(
        "negative binomial, three groups", lambda: groups("negative_binomial", (12, 8, 10), 200, 13)
    )
    add("Weibull survival, censored", lambda: groups("weibull", (15,), 200, 14))
    add("zero-inflated Poisson", lambda: groups("zero_inflated", (12,), 200, 15))
    add("normal, two groups", lambda: groups("normal", (12, 10), 150, 16))

    def areas(side, likelihood, seed):
        rng = np.random.default_rng(seed)
        row, column = (a.ravel() for a in np.mgrid[:side, :side])
        W = (np.abs(row[:, None] - row) + np.abs(column[:, None] - column) == 1).astype(int)
        E = rng.uniform(3, 12, side**2)
        with pm.Model() as model:
            sd, sv = pm.HalfNormal("sd", 1), pm.HalfNormal("sv", 1)
            eta = pm.Normal("b0", 0, 2) + pm.ICAR("s", W=W, sigma=sd)
            eta += pm.Normal("v", 0, sv, shape=side**2)
            true = 0.4 * np.sin(row) + 0.2 * rng.standard_normal(side**2)
            if likelihood == "poisson":
                pm.Poisson("y", E * pm.math.exp(eta), observed=rng.poisson(E * np.exp(true)))
            else:
                p = 1 / (1 + np.exp(-true))
                pm.Binomial("y", n=20, logit_p=eta, observed=rng.binomial(20, p))
        return model

    add("BYM, Poisson, 49 areas", lambda: areas(7, "poisson", 17))
    add("BYM, binomial, 36 areas", lambda: areas(6, "binomial", 18))

    def regression(likelihood, n, k, seed):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((n, k))
        true = X @ rng.normal(0, 0.4, k)
        with pm.Model() as model:
            beta = pm.Normal("beta", 0, pm.HalfNormal("tau", 1), shape=k)
            eta = pm.Normal("b0", 0, 2) + pm.math.dot(X, beta)
            if likelihood == "probit":
                y = (true + rng.standard_normal(n) > 0).astype(int)
                pm.Bernoulli("y", p=pm.math.invprobit(eta), observed=y)
            else:
                s = pm.HalfNormal("sigma", 1)
                pm.Laplace("y", eta, s, observed=true + rng.laplace(0, 0.5, n))
        return model

    add("ridge, probit", lambda: regression("probit", 150, 12, 19))
    add("ridge, Laplace noise", lambda: regression("laplace", 120, 10, 20))
    return found


def _least_ess(x: np.ndarray) -> np.ndarray:
    """Return effective sizes of a variable's entries at draws (chains, draws, …)."""
    return np.ravel(az.ess(az.from_dict({"posterior": {"x": x}}), method="mean")["x"].values)


def _quantile(x: np.ndarray, density: np.ndarray, level: float) -> np.ndarray:
    """Return the quantile of one density, shape ()."""
    mass = cumulative_trapezoid(density, x, initial=0.0)
    return np.interp(level * mass[-1], mass, x)


class Exact:
    """Draws of :func:`pymc_augconj.sample`, kept in a folder, round after round.

    A round is of two chains of their own, of ``DRAWS`` draws each.
    """

    DRAWS = 5000

    def __init__(self, folder: Path, name: str) -> None:
        self.stem = folder / "".join(c if c.isalnum() else "-" for c in name)
        rounds = [np.load(f"{self.stem}.{i}.npz") for i in range(len(self.paths))]
        names = [n for n in rounds[0].files if n != "seconds"] if rounds else []
        self.draws = {n: np.concatenate([r[n] for r in rounds]) for n in names}
        self.seconds = float(sum(r["seconds"] for r in rounds))

    @property
    def paths(self) -> list[Path]:
        return list(self.stem.parent.glob(f"{self.stem.name}.*.npz"))

    def ess(self, theta: list[str]) -> float:
        """Return the least effective size of some variables."""
        return min((_least_ess(self.draws[n]).min() for n in theta), default=0.0)

    def add(self, model: pm.Model, names: list[str]) -> None:
        """Run two more chains."""
        start, number = time.process_time(), len(self.paths)
        tree = pac.sample(self.DRAWS, model=model, chains=2, cores=1, random_seed=100 + number,
                          quiet=True, compute_convergence_checks=False, **QUIET)  # fmt: skip
        draws = {n: tree.posterior[n].values.astype(np.float32) for n in names}
        np.savez(f"{self.stem}.{number}.npz", seconds=time.process_time() - start, **draws)


def draws(folder: str, first: str, last: str, enough: str, limit: str) -> None:
    """Run rounds of chains of each model until θ has ``enough`` effective draws.

    No round begins after ``limit`` CPU seconds.
    """
    for name, make in list(models().items())[int(first) : int(last)]:
        model = make()
        hyper = [v.name for v in model.free_RVs if v.name in THETA]
        names = [v.name for v in model.free_RVs if not v.name.endswith("_rotated_")]
        names += [v.name for v in model.deterministics]
        while True:
            exact = Exact(Path(folder), name)
            ess = exact.ess(hyper) if exact.draws else 0.0
            print(f"{name}: {ess:.0f}, {exact.seconds:.0f} s", flush=True)
            if ess >= float(enough) or exact.seconds > float(limit):
                break
            exact.add(model, names)


def marginals(folder: str, first: str, last: str) -> None:
    """Compare means, deviations and quantiles with the draws of :func:`draws`.

    Beside each largest difference is the largest one that is left after three Monte Carlo standard
    errors of the draws.
    """
    print("model, k, points, mean (beyond noise), sd (…), quantiles of θ (…), ess of θ, of latents,"
          " cpu nested, cpu draws")  # fmt: skip
    for name, make in list(models().items())[int(first) : int(last)]:
        exact = Exact(Path(folder), name)
        if not exact.draws:
            continue
        start = time.process_time()
        fit = pac.fit("nested", model=make(), random_seed=1, **QUIET)
        seconds, rows, sizes = time.process_time() - start, [], {True: [], False: []}
        for var in fit.mean:
            x, is_theta = exact.draws[var].astype(float), var in fit.theta
            std, ess = np.ravel(x.std(axis=(0, 1))), _least_ess(x)
            sizes[is_theta].append(ess.min())
            mean = np.abs(np.ravel(fit.mean[var].values - x.mean(axis=(0, 1)))) / std
            sd = np.abs(np.ravel(fit.std[var].values) / std - 1)
            # The deviation's error: of squares, by their own effective size and kurtosis.
            squares = (x - x.mean(axis=(0, 1))) ** 2
            relative = np.ravel(squares.std(axis=(0, 1)) / squares.mean(axis=(0, 1)))
            sd_noise = 0.5 * relative / np.sqrt(_least_ess(squares))
            rows.append([mean.max(), (mean - 3 / np.sqrt(ess)).max(), sd.max(),
                         (sd - 3 * sd_noise).max(), 0.0, 0.0])  # fmt: skip
            for level in (0.05, 0.25, 0.5, 0.75, 0.95) if is_theta else ():
                both = [np.quantile(x, level, axis=(0, 1)), _quantile(*fit.marginal(var), level)]
                away = np.abs(np.ravel(both[0] - both[1])) / std
                # Of indicators, over the density at the quantile.
                step = 0.02
                ends = [np.ravel(np.quantile(x, level + e, axis=(0, 1))) for e in (-step, step)]
                slope = (ends[1] - ends[0]) / (2 * step) / std
                own = _least_ess((x <= both[0]).astype(float))
                noise = slope * np.sqrt(level * (1 - level) / own)
                rows[-1][4] = max(rows[-1][4], away.max())
                rows[-1][5] = max(rows[-1][5], (away - 3 * noise).max())
        m = np.max(rows, axis=0)
        cells = [f"{a:.3f} ({max(b, 0.0):.3f})" for a, b in m.reshape(3, 2)]
        print(f"{name}, {fit.pareto_k:.2f}, {fit.diagnostics['points']}, {', '.join(cells)}, "
              f"{min(sizes[True]):.0f}, {min(sizes[False]):.0f}, {seconds:.1f}, "
              f"{exact.seconds:.0f}", flush=True)  # fmt: skip


def update(kernel: str, n: str, draws: str) -> None:
    """One per cent more data beside sampling again, by a chain of ``draws`` after as many others.

    The time of a refit is that chain's, without what was compiled for the data before, scaled to
    the 4 × 1 200 steps that are the default of :func:`pymc_augconj.sample`.
    """
    size, new, steps = int(n), max(1, int(n) // 100), int(draws)
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, size + new)[:, None]
    y = rng.binomial(1, 1 / (1 + np.exp(-2 * np.sin(X[:, 0]))))
    with pm.Model():
        Xd, yd = pm.Data("X", X[:size]), pm.Data("ones", y[:size])
        ls, eta = pm.InverseGamma("ls", 3, 3), pm.HalfNormal("eta", 2)
        gp = pm.gp.Latent(cov_func=eta**2 * getattr(pm.gp.cov, kernel)(1, ls=ls))
        pm.Bernoulli("y", logit_p=gp.prior("f", X=Xd), observed=yd)
        options = {"chains": 1, "quiet": True, "compute_convergence_checks": False, **QUIET}
        pac.sample(2, tune=2, random_seed=1, **options)
        old = pac.fit("nested", random_seed=1, **QUIET).sample(1000)
        start = time.process_time()
        found = pac.update(old, {"X": X, "ones": y}, random_seed=2)
        seconds, start = time.process_time() - start, time.process_time()
        again = pac.sample(steps, tune=steps, random_seed=3, **options)
        refit = (time.process_time() - start) * 2400 / steps
    share = found.posterior.attrs["effective_share"]
    print(f"{kernel} {n}: effective share {share:.2f}, cpu {seconds:.1f} and {refit:.0f}: "
          f"{seconds / refit:.3f}", flush=True)  # fmt: skip
    for name in ("ls", "eta", "f"):
        a, b = (t.posterior[name].values.reshape(-1, *t.posterior[name].shape[2:])
                for t in (found, again))  # fmt: skip
        ess = _least_ess(again.posterior[name].values).min()
        errors = np.abs(a.mean(0) - b.mean(0)) / b.std(0), np.abs(a.std(0) / b.std(0) - 1)
        print(f"  {name}: mean {errors[0].mean():.3f} (largest {errors[0].max():.3f}), sd "
              f"{errors[1].mean():.3f}; ess of the refit {ess:.0f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    which, *ends = sys.argv[1:]
    whole = which in ("marginals", "draws", "update")
    globals()[which](*(ends if whole else [int(end) for end in ends] or [0, 100]))
