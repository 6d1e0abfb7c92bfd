"""Each peer's solution, run by the interpreter of its own environment.

python solve.py peer problem data.json result.json
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

Answer = tuple[np.ndarray, np.ndarray | None]

# Least effective sample size at which a sampler may stop: Monte Carlo errors of means are then at
# most a twentieth of the posterior standard deviation.
ENOUGH = 400
NUTS_ALONE = ("nutpie", "numpyro", "blackjax")


def cpu_seconds() -> float:
    """Return the processor time of this process and of those that it waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def draw(peer: str, problem: str, data: dict[str, np.ndarray]) -> dict[str, Any]:
    """Run a sampler of PyMC models until every quantity and hyperparameter has ``ENOUGH``."""
    import arviz as az
    import pymc as pm
    from problems import PROBLEMS

    if peer == "pymc-augconj":
        import pymc_augconj as pac
    else:
        __import__(peer)
    of = PROBLEMS[problem]
    model = of.build(data)
    options = {"chains": 2, "cores": 1, "random_seed": 1, "progressbar": False, "model": model}
    for draws in (500, 1000, 2000, 4000, 8000):
        start = cpu_seconds()
        if peer == "pymc-augconj":
            idata = pac.sample(draws, **options)
        else:
            # PyMC's default, a device for each chain, fails with BlackJAX on one device.
            method = {"nuts_sampler_kwargs": {"chain_method": "vectorized"}}
            idata = pm.sample(
                draws, nuts_sampler=peer, **options, **(method if peer == "blackjax" else {})
            )
        seconds = cpu_seconds() - start
        posterior = {name: values.values for name, values in idata.posterior.items()}
        compared = of.compared(posterior, data)
        scalars = [values[..., None] for values in posterior.values() if values.ndim == 2]
        watched = np.concatenate([compared, *scalars], axis=-1)
        ess = min(
            float(az.ess(watched[..., k], chain_axis=0, draw_axis=1))
            for k in range(watched.shape[-1])
        )
        if ess >= ENOUGH:
            break
    return {
        "mean": compared.mean((0, 1)).tolist(),
        "sd": compared.std((0, 1)).tolist(),
        "seconds": seconds,
        "ess": ess,
        "draws": draws,
    }


def reference(problem: str, data: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return posterior means and deviations from a long exact run, and its Monte Carlo error."""
    import arviz as az
    from problems import PROBLEMS

    import pymc_augconj as pac

    idata = pac.sample(
        4000,
        tune=500,
        chains=2,
        cores=1,
        random_seed=100,
        progressbar=False,
        model=PROBLEMS[problem].build(data),
    )
    posterior = {name: values.values for name, values in idata.posterior.items()}
    compared = PROBLEMS[problem].compared(posterior, data)
    columns = [compared[..., k] for k in range(compared.shape[-1])]
    axes = {"chain_axis": 0, "draw_axis": 1}
    return {
        "mean": compared.mean((0, 1)).tolist(),
        "sd": compared.std((0, 1)).tolist(),
        "ess": min(float(az.ess(column, **axes)) for column in columns),
        "r_hat": max(float(az.rhat(column, **axes)) for column in columns),
    }


def nested(problem: str, data: dict[str, np.ndarray]) -> Answer:
    from problems import PROBLEMS

    import pymc_augconj as pac

    fit = pac.fit("nested", model=PROBLEMS[problem].build(data), random_seed=1, progressbar=False)
    idata = fit.sample(4000, random_seed=1)
    posterior = {name: values.values for name, values in idata.posterior.items()}
    compared = PROBLEMS[problem].compared(posterior, data)
    return compared.mean((0, 1)), compared.std((0, 1))


def gpflow(problem: str, data: dict[str, np.ndarray]) -> Answer:
    import gpflow as gp

    X, y = data["X"], data["y"][:, None].astype(float)
    kernel = gp.kernels.SquaredExponential() if problem == "gp_probit" else gp.kernels.Matern32()
    if problem == "gp_normal":
        model = gp.models.GPR((X, y), kernel)
    else:
        of = {
            "gp_student": lambda: gp.likelihoods.StudentT(df=4.0),
            "gp_poisson": gp.likelihoods.Poisson,
            "gp_probit": gp.likelihoods.Bernoulli,
        }
        model = gp.models.VGP((X, y), kernel, of[problem]())
    gp.optimizers.Scipy().minimize(
        model.training_loss, model.trainable_variables, options={"maxiter": 1000}
    )
    mean, variance = model.predict_f(X[rows(y)])
    return mean.numpy()[:, 0], np.sqrt(variance.numpy()[:, 0])


def gpytorch(problem: str, data: dict[str, np.ndarray]) -> Answer:
    import gpytorch as gp
    import torch

    torch.set_default_dtype(torch.float64)
    X, y = torch.tensor(data["X"]), torch.tensor(data["y"].astype(float))
    normal = problem == "gp_normal"
    kernel = gp.kernels.RBFKernel() if problem == "gp_probit" else gp.kernels.MaternKernel(nu=1.5)

    class Exact(gp.models.ExactGP):
        def __init__(self, likelihood: Any) -> None:
            super().__init__(X, y, likelihood)
            self.mean_module, self.kernel = gp.means.ZeroMean(), gp.kernels.ScaleKernel(kernel)

        def forward(self, x: Any) -> Any:
            return gp.distributions.MultivariateNormal(self.mean_module(x), self.kernel(x))

    class Variational(gp.models.ApproximateGP):
        def __init__(self) -> None:
            q = gp.variational.CholeskyVariationalDistribution(len(X))
            super().__init__(
                gp.variational.UnwhitenedVariationalStrategy(
                    self, X, q, learn_inducing_locations=False
                )
            )
            self.mean_module, self.kernel = gp.means.ZeroMean(), gp.kernels.ScaleKernel(kernel)

        forward = Exact.forward

    if normal:
        likelihood = gp.likelihoods.GaussianLikelihood()
        model = Exact(likelihood)
        bound = gp.mlls.ExactMarginalLogLikelihood(likelihood, model)
    else:
        likelihood = {
            "gp_probit": gp.likelihoods.BernoulliLikelihood,
            "gp_student": lambda: _fixed_student(gp),
        }[problem]()
        model = Variational()
        bound = gp.mlls.VariationalELBO(likelihood, model, len(y))
    model.train()
    likelihood.train()
    parameters = {*model.parameters(), *likelihood.parameters()}
    optimizer = torch.optim.Adam([p for p in parameters if p.requires_grad], lr=0.05)
    for _ in range(200 if normal else 500):
        optimizer.zero_grad()
        loss = -bound(model(X), y)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        f = model(X[rows(y)])
    return f.mean.numpy(), f.variance.sqrt().numpy()


def _fixed_student(gp: Any) -> Any:
    likelihood = gp.likelihoods.StudentTLikelihood()
    likelihood.deg_free = 4.0
    likelihood.raw_deg_free.requires_grad_(False)
    return likelihood


def gpy(problem: str, data: dict[str, np.ndarray]) -> Answer:
    import GPy

    X, y = data["X"], data["y"][:, None].astype(float)
    kernel = (GPy.kern.RBF if problem == "gp_probit" else GPy.kern.Matern32)(X.shape[1])
    if problem == "gp_normal":
        model = GPy.models.GPRegression(X, y, kernel)
    elif problem == "gp_probit":
        model = GPy.models.GPClassification(X, y, kernel=kernel)
    else:
        likelihood = {
            "gp_student": lambda: GPy.likelihoods.StudentT(deg_free=4.0, sigma2=0.1),
            "gp_poisson": GPy.likelihoods.Poisson,
        }[problem]()
        laplace = GPy.inference.latent_function_inference.Laplace()
        model = GPy.core.GP(X, y, kernel, likelihood, inference_method=laplace)
        if problem == "gp_student":
            model["Student_T.deg_free"].fix()
    model.optimize()
    mean, variance = model.predict_noiseless(X[rows(y)])
    return mean[:, 0], np.sqrt(variance[:, 0])


def tinygp(problem: str, data: dict[str, np.ndarray]) -> Answer:
    import jax
    import tinygp as gp
    from scipy.optimize import minimize

    jax.config.update("jax_enable_x64", True)
    x, y = data["X"][:, 0], data["y"]
    kernels = gp.kernels.quasisep if problem == "long_series" else gp.kernels

    def process(theta: Any) -> Any:
        scale, amplitude, noise = jax.numpy.exp(theta)
        return gp.GaussianProcess(amplitude**2 * kernels.Matern32(scale), x, diag=noise**2)

    loss = jax.jit(jax.value_and_grad(lambda theta: -process(theta).log_probability(y)))
    found = minimize(loss, np.zeros(3), jac=True, method="L-BFGS-B")

    @jax.jit
    def predict(theta: Any) -> Any:
        f = process(theta).condition(y).gp
        return f.mean, f.variance

    mean, variance = predict(found.x)
    at = rows(y)
    return np.asarray(mean)[at], np.sqrt(np.asarray(variance)[at])


def celerite2(problem: str, data: dict[str, np.ndarray]) -> Answer:
    import celerite2 as gp
    from scipy.optimize import minimize

    x, y = data["X"][:, 0], data["y"]

    def process(theta: np.ndarray) -> Any:
        scale, amplitude, noise = np.exp(theta)
        found = gp.GaussianProcess(gp.terms.Matern32Term(sigma=amplitude, rho=scale))
        found.compute(x, yerr=noise * np.ones(len(x)))
        return found

    found = minimize(lambda theta: -process(theta).log_likelihood(y), np.zeros(3))
    mean, variance = process(found.x).predict(y, t=x[rows(y)], return_var=True)
    return mean, np.sqrt(variance)


def gpboost(problem: str, data: dict[str, np.ndarray]) -> Answer:
    import gpboost as gp

    y = data["y"].astype(float)
    if problem.startswith("gp_"):
        likelihood = {
            "gp_normal": "gaussian",
            "gp_student": "t_fix_df",
            "gp_poisson": "poisson",
            "gp_probit": "bernoulli_probit",
        }[problem]
        shape = (
            {"cov_function": "gaussian"}
            if problem == "gp_probit"
            else {"cov_function": "matern", "cov_fct_shape": 1.5}
        )
        if problem == "gp_student":
            shape["likelihood_additional_param"] = 4.0
        model = gp.GPModel(gp_coords=data["X"], likelihood=likelihood, **shape)
        model.fit(y=y)
        found = model.predict(
            gp_coords_pred=data["X"][rows(y)], predict_var=True, predict_response=False
        )
        return found["mu"], np.sqrt(found["var"])
    g, one = data["g"], np.ones((len(y), 1))
    exact = {"matrix_inversion_method": "cholesky"}  # deviations of effects need it
    if problem == "logit_crossed":
        groups, X = np.column_stack([g, data["h"]]), one
        model = gp.GPModel(group_data=groups, likelihood="bernoulli_logit", **exact)
    elif problem == "negbin_groups":
        X = np.column_stack([one, data["x"]])
        model = gp.GPModel(group_data=g, likelihood="negative_binomial", **exact)
    else:
        X = np.column_stack([one, data["x"]])
        model = gp.GPModel(
            group_data=g,
            group_rand_coef_data=data["x"],
            ind_effect_group_rand_coef=[1],
            likelihood="gaussian",
            **exact,
        )
    model.fit(y=y, X=X)
    fixed = np.asarray(model.get_coef(std_err=True))
    if fixed.shape[0] != 2:
        fixed = fixed.T
    effects = model.predict_training_data_random_effects(predict_var=True)
    mean, sd = [fixed[0]], [fixed[1]]
    by = [g, data["h"]] if problem == "logit_crossed" else [g] * (effects.shape[1] // 2)
    for k, group in enumerate(by):
        first = np.array([np.flatnonzero(group == level)[0] for level in range(10)])
        mean.append(effects.iloc[first, k].to_numpy())
        sd.append(np.sqrt(effects.iloc[first, k + len(by)].to_numpy()))
    return np.concatenate(mean), np.concatenate(sd)


def statsmodels(problem: str, data: dict[str, np.ndarray]) -> Answer:
    import pandas as pd
    import statsmodels.api as sm
    from statsmodels.genmod.bayes_mixed_glm import BinomialBayesMixedGLM

    y = data["y"]
    if problem == "logit_regression":
        found = sm.Logit(y, data["X"]).fit(disp=False)
        return found.params, found.bse
    if problem == "local_level":
        found = sm.tsa.UnobservedComponents(y, "local level").fit(disp=False)
        at = rows(y)
        variance = found.smoothed_state_cov[0, 0]
        return found.smoothed_state[0][at], np.sqrt(variance[at])
    frame = pd.DataFrame(data)
    if problem == "linear_mixed":
        model = sm.MixedLM.from_formula("y ~ x", frame, groups="g", re_formula="x")
        # Intercept and slope of a group are independent, as in the others' models.
        free = sm.regression.mixed_linear_model.MixedLMParams.from_components(np.ones(2), np.eye(2))
        found = model.fit(free=free)
        effects = [found.random_effects[k].to_numpy() for k in range(10)]
        spread = [np.sqrt(np.diag(found.random_effects_cov[k])) for k in range(10)]
        mean = [found.fe_params.to_numpy(), *np.array(effects).T]
        return np.concatenate(mean), np.concatenate([found.bse_fe.to_numpy(), *np.array(spread).T])
    terms = {"a": "0 + C(g)", "b": "0 + C(h)"}
    found = BinomialBayesMixedGLM.from_formula("y ~ 1", terms, frame, fe_p=5.0).fit_vb()
    groups = data["g"].max() + 1
    at = np.r_[np.arange(10), groups + np.arange(10)]
    return np.r_[found.fe_mean, found.vc_mean[at]], np.r_[found.fe_sd, found.vc_sd[at]]


def rows(y: np.ndarray) -> np.ndarray:
    """Return the twenty observations whose predictors are compared."""
    return np.linspace(0, len(y) - 1, 20).astype(int)


PEERS: dict[str, Callable[[str, dict[str, np.ndarray]], Answer]] = {
    "pymc-augconj, nested": nested,
    "GPflow": gpflow,
    "GPyTorch": gpytorch,
    "GPy": gpy,
    "tinygp": tinygp,
    "celerite2": celerite2,
    "gpboost": gpboost,
    "statsmodels": statsmodels,
}
# Imported before the clock starts.
MODULES = {"pymc-augconj, nested": "pymc_augconj", "GPy": "GPy", "statsmodels": "statsmodels.api"}


def main() -> None:
    """Write means, standard deviations and processor seconds of one peer on one problem."""
    peer, problem, source, target = sys.argv[1:]
    data = {k: np.array(v) for k, v in json.loads(Path(source).read_text()).items()}
    if peer == "reference":
        answer = reference(problem, data)
    elif peer in ("pymc-augconj", *NUTS_ALONE):
        answer = draw(peer, problem, data)
    else:
        __import__(MODULES.get(peer, peer.lower()))
        start = cpu_seconds()
        mean, sd = PEERS[peer](problem, data)
        answer = {
            "mean": np.asarray(mean).tolist(),
            "sd": np.asarray(sd).tolist(),
            "seconds": cpu_seconds() - start,
        }
    package = "pymc-augconj" if peer == "reference" else peer.split(",")[0].lower()
    Path(target).write_text(json.dumps(answer | {"version": version(package)}))


if __name__ == "__main__":
    main()
