"""Crossed effects by programs that give point estimates: ``python -m benchmarks.crossed_peers``.

lme4 and glmmTMB need ``Rscript`` and the package, gpboost a Python that has it, ``--gpboost``; a
peer that is missing, or takes more than ``--limit`` processor seconds, is told so and left out. The
table has seconds of one thread from the data in memory, peak memory, and the deviations of effects,
which the data were simulated with 0.3, 0.4, 0.5. Rows of our own and of nutpie are those of
:mod:`benchmarks.crossed`.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.crossed import COVARIATES, SIZES, simulate
from benchmarks.harness import THREAD_VARIABLES

PEERS = ("lme4", "glmmTMB", "gpboost")
_GPBOOST = """
import sys, time, resource, numpy as np, gpboost
kind, folder = sys.argv[1:]
n, k, p = np.loadtxt(f"{folder}/sizes").astype(int)
read = lambda name: np.fromfile(f"{folder}/{name}")
groups = np.column_stack([read(f"g{i}").astype(int) for i in range(k)])
X = np.column_stack([np.ones(n), *(read(f"x{i}") for i in range(p))])
likelihood = {"Normal": "gaussian", "Bernoulli": "bernoulli_logit", "Poisson": "poisson"}[kind]
start = time.process_time()
model = gpboost.GPModel(group_data=groups, likelihood=likelihood)
model.fit(y=read("y"), X=X)
seconds = time.process_time() - start
found = np.ravel(model.get_cov_pars(format_pandas=False))[-k:]
peak = 1e-6 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
np.savetxt(f"{folder}/result", [seconds, peak, *np.sqrt(found)])
"""


def solve(peer: str, kind: str, size: str, options: argparse.Namespace) -> str:
    """Return a line of the table."""
    command = ["Rscript", str(Path(__file__).with_suffix("").with_name("crossed.R")), peer]
    if peer == "gpboost":
        command = [str(options.gpboost), "-c", _GPBOOST]
    if shutil.which(command[0]) is None:
        return f"not run, as there is no {command[0]}"
    rng = np.random.default_rng(0)
    y, index, X, _ = simulate(rng, kind, *SIZES[size], COVARIATES.get(size, 0))
    with tempfile.TemporaryDirectory(prefix="augconj-peers-") as folder:
        columns = {"y": y, **{f"g{k}": own for k, own in enumerate(index)}}
        columns |= {f"x{k}": x for k, x in enumerate(X.T)}
        for name, values in columns.items():
            values.astype(float).tofile(f"{folder}/{name}")
        np.savetxt(f"{folder}/sizes", [y.size, len(index), X.shape[1]])
        limit = (options.limit, options.limit)
        done = subprocess.run(
            [*command, kind, folder],
            env=os.environ | dict.fromkeys(THREAD_VARIABLES, "1"),
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, limit),
            capture_output=True,
            text=True,
        )
        if not Path(folder, "result").exists():
            if done.returncode < 0:
                return f"not finished in {options.limit} s"
            return f"failed: {done.stderr.strip()[-200:]}"
        seconds, peak, *deviations = np.loadtxt(f"{folder}/result")
    listed = ", ".join(f"{sd:.3f}" for sd in deviations)
    return f"{seconds:.1f} s, {peak:.2f} GB, deviations {listed}"


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crossed_peers", description=__doc__)
    parser.add_argument("--gpboost", type=Path, default=Path(".venv-peers/gpboost/bin/python"))
    parser.add_argument("--limit", type=int, default=180, help="processor seconds of each")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--kinds", nargs="+", default=["Normal", "Bernoulli", "Poisson"])
    options = parser.parse_args()
    for size in options.sizes:
        for kind in options.kinds:
            for peer in options.peers:
                print(f"{kind}, {size}, {peer}: {solve(peer, kind, size, options)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
