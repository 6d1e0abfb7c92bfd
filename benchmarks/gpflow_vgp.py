"""GPflow's VGP on one problem, run by an interpreter that has GPflow and nothing of this package.

python gpflow_vgp.py problem.npz fixed|learned gamma learning_rate max_iterations [target]

The clock runs while steps are taken (the first of which traces) and stops for the bound, which
is read after every step. A run ends where the bound stands still or reaches the target.
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

# Bounds that differ by less for this many steps in a row are the converged one.
STILL, STILL_STEPS = 1e-8, 3


def build(problem) -> gpflow.models.VGP:
    """Return the model at its start."""
    kernel = gpflow.kernels.SquaredExponential(
        variance=float(problem["variance"]), lengthscales=float(problem["lengthscale"])
    )
    if str(problem["noise"]) == "logit":
        likelihood = gpflow.likelihoods.Bernoulli(invlink=tf.sigmoid)
    else:
        likelihood = gpflow.likelihoods.StudentT(scale=1.0, df=3.0)
        gpflow.set_trainable(likelihood, False)
    data = problem["X"], problem["y"][:, None]
    model = gpflow.models.VGP(data, kernel, likelihood)
    gpflow.set_trainable(model.q_mu, False)
    gpflow.set_trainable(model.q_sqrt, False)
    return model


def make_step(model: gpflow.models.VGP, learned: bool, gamma: float, learning_rate: float):
    """Return one iteration: a natural-gradient step, then one of Adam if the kernel is learned."""
    natural = gpflow.optimizers.NaturalGradient(gamma=gamma)
    loss, variational = model.training_loss, [(model.q_mu, model.q_sqrt)]
    if not learned:
        return tf.function(lambda: natural.minimize(loss, variational))
    adam = tf.optimizers.Adam(learning_rate)
    parameters = model.kernel.trainable_variables

    def step():
        natural.minimize(loss, variational)
        with tf.GradientTape() as tape:
            value = loss()
        adam.apply_gradients(zip(tape.gradient(value, parameters), parameters, strict=True))

    if hasattr(adam, "build"):
        adam.build(parameters)
    return tf.function(step)


def run(step, bound, limit: int, target: float = np.inf) -> tuple[list[float], list[float], str]:
    """Step until the bound stands still; return seconds and bounds after every step."""
    seconds, bounds, spent, still = [], [], 0.0, 0
    for _ in range(limit):
        start = time.perf_counter()
        try:
            step()
        except tf.errors.InvalidArgumentError:
            return seconds, bounds, "a Cholesky factorisation failed"
        spent += time.perf_counter() - start
        seconds.append(spent)
        bounds.append(float(bound()))
        if not np.isfinite(bounds[-1]):
            return seconds, bounds, "the bound is not finite"
        if bounds[-1] >= target:
            return seconds, bounds, "reached the target"
        still = still + 1 if len(bounds) > 1 and abs(bounds[-1] - bounds[-2]) < STILL else 0
        if still == STILL_STEPS:
            return seconds, bounds, "converged"
    return seconds, bounds, "stopped"


def main() -> None:
    """Print the history of a run that traces, and of one from the start with what was traced."""
    problem, learned = np.load(sys.argv[1]), sys.argv[2] == "learned"
    gamma, learning_rate, limit = float(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
    target = float(sys.argv[6]) if len(sys.argv) > 6 else np.inf
    # The first operation that TensorFlow executes sets it up: no part of a fit.
    tf.linalg.cholesky(tf.eye(2, dtype=tf.float64))
    start = time.perf_counter()
    model = build(problem)
    step, bound = make_step(model, learned, gamma, learning_rate), tf.function(model.elbo)
    built = time.perf_counter() - start
    initial = model.q_mu.numpy(), model.q_sqrt.numpy()
    seconds, bounds, message = run(step, bound, limit, target)
    result = {
        "built_seconds": built,
        "seconds": [built + s for s in seconds],
        "bounds": bounds,
        "message": message,
        "versions": {"gpflow": gpflow.__version__, "tensorflow": tf.__version__},
        "variance": float(model.kernel.variance.numpy()),
        "lengthscale": float(model.kernel.lengthscales.numpy()),
    }
    if not learned and message == "converged":
        model.q_mu.assign(initial[0])
        model.q_sqrt.assign(initial[1])
        result["traced_seconds"] = run(step, bound, limit)[0]
    elif learned and len(seconds) > 1:
        # Adam keeps its moments: only the time of a step is worth having.
        result["traced_seconds"] = [s - seconds[0] for s in seconds[1:]]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
