"""GPy's EP on one problem, run by an interpreter that has GPy and nothing of this package.

python gpy_ep.py problem.npz fixed|learned max_iters repeats
"""

from __future__ import annotations

import json
import sys
import time

import GPy
import numpy as np
from paramz import ObsAr


def make_inference(max_iters: int, **options):
    """Return GPy's EP with parallel updates."""
    return GPy.inference.latent_function_inference.EP(
        parallel_updates=True, max_iters=max_iters, **options
    )


def fixed(kernel, X, y, max_iters: int):
    """Run EP once; return the evidence and the seconds, the covariance matrix's left out."""
    K, y = kernel.K(X), ObsAr(y)
    inference = make_inference(max_iters)
    start = time.perf_counter()
    evidence = inference.inference(kernel, X, GPy.likelihoods.Bernoulli(), y, K=K)[1]
    return float(evidence), time.perf_counter() - start, {}


def learned(kernel, X, y, max_iters: int):
    """Maximise the evidence over the kernel from where it stands; return as ``fixed``."""
    inference = make_inference(max_iters, ep_mode="nested")
    start = time.perf_counter()
    model = GPy.models.GPClassification(X, y, kernel=kernel, inference_method=inference)
    model.optimize()
    seconds = time.perf_counter() - start
    run = model.optimization_runs[-1]
    end = {
        "lengthscale": float(kernel.lengthscale[0]),
        "variance": float(kernel.variance[0]),
        "status": str(run.status),
        "evaluations": int(run.funct_eval),
    }
    return float(model.log_likelihood()), seconds, end


def main() -> None:
    """Print evidence and the least time of several runs, as JSON."""
    problem, how = np.load(sys.argv[1]), {"fixed": fixed, "learned": learned}[sys.argv[2]]
    X, y = problem["X"], problem["y"][:, None]
    seconds = []
    for _ in range(int(sys.argv[4])):
        kernel = GPy.kern.RBF(
            X.shape[1],
            variance=float(problem["variance"]),
            lengthscale=float(problem["lengthscale"]),
        )
        evidence, once, end = how(kernel, X, y, int(sys.argv[3]))
        seconds.append(once)
    print(json.dumps({"evidence": evidence, "seconds": min(seconds), **end}))


if __name__ == "__main__":
    main()
