"""GPflow's SGPMC of a Cox process, by an interpreter that has GPflow and nothing of this package.

python gpflow_sgpmc.py problem.npz draws burn_in

Hamiltonian Monte Carlo as in GPflow's own guide: from the MAP estimate, ten leapfrog steps of a
length that is adapted while burning in. The clock runs from the model's construction on.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

_LEAPFROG_STEPS, _TARGET = 10, 0.75


def build(problem) -> gpflow.models.SGPMC:
    """Return the model with the priors of ``sparse_sampling.cox``."""
    kernel = gpflow.kernels.SquaredExponential(variance=1.2, lengthscales=1.75)
    kernel.lengthscales.prior = tfp.distributions.Gamma(*np.array([1.75, 1.0]))
    kernel.variance.prior = tfp.distributions.Gamma(*np.array([1.2, 1.0]))
    mean = gpflow.functions.Constant(np.zeros(1))
    mean.c.prior = tfp.distributions.Normal(*np.array([0.0, 2.0]))
    likelihood = gpflow.likelihoods.Poisson(binsize=float(problem["exposure"]))
    data = problem["X"], problem["counts"][:, None].astype(float)
    return gpflow.models.SGPMC(data, kernel, likelihood, mean, inducing_variable=problem["Z"])


def main() -> None:
    """Print seconds and draws as JSON."""
    with np.load(sys.argv[1]) as file:
        problem = dict(file)
    draws, burn_in = (int(a) for a in sys.argv[2:4])
    tf.random.set_seed(0)
    tf.linalg.cholesky(tf.eye(2, dtype=tf.float64))
    start = time.perf_counter()
    model = build(problem)
    gpflow.set_trainable(model.inducing_variable, False)
    gpflow.optimizers.Scipy().minimize(model.training_loss, model.trainable_variables)
    helper = gpflow.optimizers.SamplingHelper(
        model.log_posterior_density, model.trainable_parameters
    )
    hmc = tfp.mcmc.HamiltonianMonteCarlo(
        target_log_prob_fn=helper.target_log_prob_fn,
        num_leapfrog_steps=_LEAPFROG_STEPS,
        step_size=np.float64(0.01),
    )
    kernel = tfp.mcmc.SimpleStepSizeAdaptation(
        hmc, num_adaptation_steps=int(0.8 * burn_in), target_accept_prob=np.float64(_TARGET)
    )

    @tf.function
    def run():
        return tfp.mcmc.sample_chain(
            num_results=draws,
            num_burnin_steps=burn_in,
            current_state=helper.current_state,
            kernel=kernel,
            trace_fn=lambda _, results: results.inner_results.is_accepted,
        )

    samples, accepted = run()
    seconds = time.perf_counter() - start
    values = helper.convert_to_constrained_values(samples)
    found = {}
    for parameter, value in zip(model.trainable_parameters, values, strict=True):
        for name, own in (
            ("ls", model.kernel.lengthscales), ("var", model.kernel.variance),
            ("mean", model.mean_function.c), ("v", model.V),
        ):  # fmt: skip
            if parameter is own:
                found[name] = np.asarray(value).reshape(draws, -1).tolist()
    print(
        json.dumps(
            {
                "seconds": seconds,
                "accepted": float(np.mean(accepted)),
                "draws": found,
                "versions": {"gpflow": gpflow.__version__, "tensorflow": tf.__version__},
            }
        )
    )


if __name__ == "__main__":
    main()
