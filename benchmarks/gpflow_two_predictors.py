"""GPflow's SVGP with noise that varies, on folds; run by an interpreter that has GPflow.

python gpflow_two_predictors.py problem.npz inducing steps

HeteroskedasticTFPConditional with the logarithm of the standard deviation as second process, as in
GPflow's notebook on it: natural gradients of 0.1 for q(u), Adam of 0.01 for the kernels, here
Matérn 5/2, and the inducing inputs; all the data at each step. A fold ends where the loss has
fallen by less than ``STILL`` in the last ``WINDOW`` steps. The clock runs while a model is built
and steps are taken, of which the first traces.
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

WINDOW, STILL = 100, 0.02


def build(X, inducing: int) -> gpflow.models.SVGP:
    """Return the model at its start."""
    likelihood = gpflow.likelihoods.HeteroskedasticTFPConditional(
        distribution_class=tfp.distributions.Normal, scale_transform=tfp.bijectors.Exp()
    )
    kernel = gpflow.kernels.SeparateIndependent([gpflow.kernels.Matern52() for _ in range(2)])
    Z = np.linspace(X.min(), X.max(), inducing)[:, None]
    points = [gpflow.inducing_variables.InducingPoints(Z.copy()) for _ in range(2)]
    model = gpflow.models.SVGP(
        kernel=kernel,
        likelihood=likelihood,
        inducing_variable=gpflow.inducing_variables.SeparateIndependentInducingVariables(points),
        num_latent_gps=likelihood.latent_dim,
    )
    gpflow.set_trainable(model.q_mu, False)
    gpflow.set_trainable(model.q_sqrt, False)
    return model


def fit(X, y, X_test, y_test, inducing: int, steps: int) -> dict:
    """Return losses, seconds, and log densities of what was left out."""
    start, cpu = time.perf_counter(), time.process_time()
    model = build(X, inducing)
    loss = model.training_loss_closure((tf.constant(X), tf.constant(y)))
    natural = gpflow.optimizers.NaturalGradient(gamma=0.1)
    adam = tf.optimizers.Adam(0.01)
    parameters = model.trainable_variables
    if hasattr(adam, "build"):
        adam.build(parameters)

    @tf.function
    def step():
        natural.minimize(loss, [(model.q_mu, model.q_sqrt)])
        with tf.GradientTape() as tape:
            value = loss()
        adam.apply_gradients(zip(tape.gradient(value, parameters), parameters, strict=True))
        return value

    spent, losses, first = time.perf_counter() - start, [], 0.0
    while len(losses) < steps:
        start = time.perf_counter()
        losses.append(float(step()))
        spent += time.perf_counter() - start
        if len(losses) == 1:
            first = spent
        done = len(losses) % WINDOW == 0 and len(losses) > WINDOW
        if done and np.mean(losses[-2 * WINDOW : -WINDOW]) - np.mean(losses[-WINDOW:]) < STILL:
            break
    cpu = time.process_time() - cpu
    density = model.predict_log_density((X_test, y_test)).numpy().ravel()
    return {
        "seconds": spent,
        "cpu_seconds": cpu,
        "first_seconds": first,
        "steps": len(losses),
        "loss": losses[-1],
        "log_density": density.tolist(),
    }


def main() -> None:
    """Print what was found in each fold, and the sums, as JSON."""
    with np.load(sys.argv[1]) as file:
        X, y, fold = file["X"], file["y"][:, None], file["fold"]
        folds = int(file["folds"])
    inducing, steps = (int(a) for a in sys.argv[2:4])
    # The first operation that TensorFlow executes sets it up: no part of a fit.
    tf.linalg.cholesky(tf.eye(2, dtype=tf.float64))
    found = []
    for k in range(folds):
        out = fold == k
        found.append(fit(X[~out], y[~out], X[out], y[out], inducing, steps))
    print(
        json.dumps(
            {
                "log_density": float(np.mean(np.concatenate([f["log_density"] for f in found]))),
                "seconds": sum(f["seconds"] for f in found),
                "cpu_seconds": sum(f["cpu_seconds"] for f in found),
                "without_tracing": sum(f["seconds"] - f["first_seconds"] for f in found),
                "steps": [f["steps"] for f in found],
                "losses": [f["loss"] for f in found],
                "versions": {"gpflow": gpflow.__version__, "tensorflow": tf.__version__},
            }
        )
    )


if __name__ == "__main__":
    main()
