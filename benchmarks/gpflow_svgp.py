"""GPflow's SVGP on one problem, run by an interpreter that has GPflow and nothing of this package.

python gpflow_svgp.py problem.npz batch_size iterations every gamma learning_rate

Natural gradients for q(u) and Adam for the kernel, an iteration each on a minibatch; the inducing
inputs stay. The clock runs while iterations are made, the drawing of minibatches included, and
stops for the test set.
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


def build(problem) -> gpflow.models.SVGP:
    """Return the model at its start."""
    kernel = gpflow.kernels.SquaredExponential(
        variance=float(problem["variance"]), lengthscales=float(problem["lengthscale"])
    )
    likelihood = gpflow.likelihoods.Bernoulli(invlink=tf.sigmoid)
    model = gpflow.models.SVGP(kernel, likelihood, problem["Z"], num_data=len(problem["y"]))
    for parameter in (model.q_mu, model.q_sqrt, model.inducing_variable):
        gpflow.set_trainable(parameter, False)
    return model


def test_loss(model: gpflow.models.SVGP, problem) -> float:
    """Return the mean negative log predictive density of the test set."""
    X, y = problem["X_test"], problem["y_test"][:, None]
    parts = [
        model.predict_log_density((X[i : i + 5000], y[i : i + 5000])).numpy().ravel()
        for i in range(0, len(X), 5000)
    ]
    return float(-np.mean(np.concatenate(parts)))


def main() -> None:
    """Print seconds, test losses and the time of an iteration after tracing, as JSON."""
    with np.load(sys.argv[1]) as file:
        problem = dict(file)
    batch_size, iterations, every = (int(a) for a in sys.argv[2:5])
    gamma, learning_rate = (float(a) for a in sys.argv[5:7])
    # The first operation that TensorFlow executes sets it up: no part of a fit.
    tf.linalg.cholesky(tf.eye(2, dtype=tf.float64))
    start = time.perf_counter()
    model = build(problem)
    natural = gpflow.optimizers.NaturalGradient(gamma=gamma)
    adam = tf.optimizers.Adam(learning_rate)
    parameters = model.kernel.trainable_variables
    if hasattr(adam, "build"):
        adam.build(parameters)
    X, y = tf.constant(problem["X"]), tf.constant(problem["y"][:, None])

    @tf.function
    def step(index):
        batch = tf.gather(X, index), tf.gather(y, index)
        natural.minimize(lambda: model.training_loss(batch), [(model.q_mu, model.q_sqrt)])
        with tf.GradientTape() as tape:
            value = model.training_loss(batch)
        adam.apply_gradients(zip(tape.gradient(value, parameters), parameters, strict=True))

    rng = np.random.default_rng(0)
    spent = time.perf_counter() - start
    seconds, losses, first = [], [], 0.0
    for i in range(iterations):
        start = time.perf_counter()
        step(tf.constant(rng.integers(len(problem["y"]), size=batch_size)))
        spent += time.perf_counter() - start
        if i == 0:
            first = spent
        if (i + 1) % every == 0:
            seconds.append(spent)
            losses.append(test_loss(model, problem))
    print(
        json.dumps(
            {
                "seconds": seconds,
                "losses": losses,
                "iteration_seconds": (spent - first) / (iterations - 1),
                "first_seconds": first,
                "variance": float(model.kernel.variance.numpy()),
                "lengthscale": float(model.kernel.lengthscales.numpy()),
                "versions": {"gpflow": gpflow.__version__, "tensorflow": tf.__version__},
            }
        )
    )


if __name__ == "__main__":
    main()
