"""GPy's EP on one problem, run by an interpreter that has GPy and nothing of this package.

python gpy_ep.py problem.npz parallel|sequential max_iters repeats
"""

from __future__ import annotations

import json
import sys
import time

import GPy
import numpy as np
from paramz import ObsAr


def main() -> None:
    """Print evidence and the least time of several runs, as JSON."""
    problem, updates = np.load(sys.argv[1]), sys.argv[2]
    X, y = problem["X"], ObsAr(problem["y"][:, None])
    kernel = GPy.kern.RBF(X.shape[1], variance=float(problem["variance"]))
    kernel.lengthscale[:] = float(problem["lengthscale"])
    seconds = []
    for _ in range(int(sys.argv[4])):
        inference = GPy.inference.latent_function_inference.EP(
            parallel_updates=updates == "parallel", max_iters=int(sys.argv[3])
        )
        K = kernel.K(X)
        start = time.perf_counter()
        evidence = inference.inference(kernel, X, GPy.likelihoods.Bernoulli(), y, K=K)[1]
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"evidence": float(evidence), "seconds": min(seconds)}))


if __name__ == "__main__":
    main()
