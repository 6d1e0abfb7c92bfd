"""GPflow's SVGP with the robust-max likelihood, run by an interpreter that has GPflow.

python gpflow_classes.py problem.npz epsilon batch_size steps

One kernel for all classes, and one set of inducing inputs, which stay. Natural gradients for q(u),
smaller ones at first, and Adam of 0.01 for the kernel; ``batch_size`` 0 is all the data. Of several
rates of the natural gradients the largest is taken with which no factorisation fails; the failures
do not count. It ends where the mean loss has fallen by less than ``STILL`` of itself over
``WINDOW`` steps. The clock runs while the model is built and steps are taken, of which the first
traces.
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

WINDOW, STILL = 100, 1e-3
# Rates of the natural gradients: from a hundredth of one of these to all of it in so many steps.
GAMMAS, RISE = (0.1, 0.02, 0.005), 50


def build(problem, epsilon: float) -> gpflow.models.SVGP:
    """Return the model at its start."""
    K = int(problem["y"].max()) + 1
    likelihood = gpflow.likelihoods.MultiClass(
        K, invlink=gpflow.likelihoods.RobustMax(K, epsilon=epsilon)
    )
    model = gpflow.models.SVGP(
        gpflow.kernels.SquaredExponential(variance=4.0, lengthscales=2.0),
        likelihood,
        problem["Z"].copy(),
        num_latent_gps=K,
        num_data=len(problem["y"]),
    )
    for parameter in (model.q_mu, model.q_sqrt, model.inducing_variable):
        gpflow.set_trainable(parameter, False)
    gpflow.set_trainable(model.likelihood, False)
    return model


def fit(problem, epsilon: float, batch_size: int, steps: int, gamma: float):
    """Return the model, seconds, those of the first step, losses, and seconds of processors."""
    start = time.perf_counter()
    model = build(problem, epsilon)
    X, y = tf.constant(problem["X"]), tf.constant(problem["y"][:, None].astype(float))
    rate = tf.Variable(0.01 * gamma, dtype=tf.float64)
    natural = gpflow.optimizers.NaturalGradient(gamma=rate)
    adam = tf.optimizers.Adam(0.01)
    parameters = model.trainable_variables
    if hasattr(adam, "build"):
        adam.build(parameters)

    @tf.function
    def step(index):
        batch = tf.gather(X, index), tf.gather(y, index)
        natural.minimize(lambda: model.training_loss(batch), [(model.q_mu, model.q_sqrt)])
        with tf.GradientTape() as tape:
            value = model.training_loss(batch)
        adam.apply_gradients(zip(tape.gradient(value, parameters), parameters, strict=True))
        return value

    rng = np.random.default_rng(0)
    n = len(problem["y"])
    spent, losses, first = time.perf_counter() - start, [], 0.0
    cpu = time.process_time()
    while len(losses) < steps:
        index = rng.integers(n, size=batch_size) if batch_size else np.arange(n)
        start = time.perf_counter()
        rate.assign(gamma * 0.01 ** (1.0 - min(len(losses) / RISE, 1.0)))
        losses.append(float(step(tf.constant(index))))
        spent += time.perf_counter() - start
        if len(losses) == 1:
            first = spent
        if len(losses) % WINDOW == 0 and len(losses) > 2 * WINDOW:
            before = np.mean(losses[-2 * WINDOW : -WINDOW])
            if before - np.mean(losses[-WINDOW:]) < STILL * abs(before):
                break
    return model, spent, first, losses, time.process_time() - cpu


def main() -> None:
    """Print accuracy, log density a point and seconds as JSON."""
    with np.load(sys.argv[1]) as file:
        problem = dict(file)
    epsilon, batch_size, steps = float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    # The first operation that TensorFlow executes sets it up: no part of a fit.
    tf.linalg.cholesky(tf.eye(2, dtype=tf.float64))
    for gamma in GAMMAS:
        try:
            model, spent, first, losses, cpu = fit(problem, epsilon, batch_size, steps, gamma)
        except tf.errors.InvalidArgumentError:
            continue
        break
    probabilities, _ = model.predict_y(problem["X_test"])
    probabilities, y_test = probabilities.numpy(), problem["y_test"]
    own = np.log(probabilities[np.arange(len(y_test)), y_test])
    print(
        json.dumps(
            {
                "accuracy": float((probabilities.argmax(axis=1) == y_test).mean()),
                "log_density": float(own.mean()),
                "log_densities": own.tolist(),
                "size": len(y_test),
                "seconds": spent,
                "cpu_seconds": cpu,
                "first_seconds": first,
                "gamma": gamma,
                "steps": len(losses),
                "loss": float(np.mean(losses[-WINDOW:])),
                "variance": float(model.kernel.variance.numpy()),
                "lengthscale": float(model.kernel.lengthscales.numpy()),
            }
        )
    )


if __name__ == "__main__":
    main()
