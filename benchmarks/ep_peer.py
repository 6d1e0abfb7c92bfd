"""Our EP beside GPy's (probit, parallel updates), at a fixed kernel and with the kernel learned.

GPy does not go with PyMC and has an environment of its own, whose interpreter is named by
``GPY_PYTHON``; ``make bench`` makes it. Where it is missing the rows say so and count as missed.

Learned: GPy by ``GPClassification(…).optimize()`` with its EP in the mode "nested", started at the
sites of the last kernel, which is its fastest way to the optimum. (In its default, "alternated", it
keeps the sites of the start and ends elsewhere.) We by ``pac.fit(method="ep", hyper="ml")``, with
the model's recognition and compilation on the clock and, in a row of its own, without recognition.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ep import least_time, load
from benchmarks.harness import Row, Settings, measure

FIXED_BAR, LEARNED_BAR = 1.0 / 3.0, 0.1
# (log lengthscale, log amplitude): the fixed kernel, or where learning it starts.
PROBLEMS = (("heart", (1.5, 1.0)), ("sonar", (1.5, 2.0)), ("ionosphere", (1.0, 1.0)))
# Of EP's sweeps at one kernel; on ionosphere GPy's parallel updates do not converge.
MAX_ITERS = 300
FIXED_REPEATS, LEARNED_REPEATS = 7, 1
LONGEST_SECONDS = 300.0
WIDE = 100.0


def learned(data: str, name: str, log_lengthscale: float, log_amplitude: float) -> dict[str, Any]:
    """Learn the kernel by the public functions; for :func:`benchmarks.harness.measure`."""
    import pymc as pm

    import pymc_augconj as pac

    X, y = load(data, name)
    with pm.Model() as model:
        ls, eta = pm.HalfNormal("ls", WIDE), pm.HalfNormal("eta", WIDE)
        cov = eta**2 * pm.gp.cov.ExpQuad(X.shape[1], ls=ls)
        f = pm.gp.Latent(cov_func=cov).prior("f", X=X)
        pm.Bernoulli("y", p=pm.math.invprobit(f), observed=y)
    start = {"ls": np.exp(log_lengthscale), "eta": np.exp(log_amplitude)}

    def fit():
        return pac.fit("ep", model=model, hyper="ml", start=start, progressbar=False)

    begin = time.perf_counter()
    fit()
    first = time.perf_counter() - begin
    seconds, found = least_time(fit)
    return {
        "seconds": seconds,
        "first_seconds": first,
        "without_recognition": found.timings["optimisation"],
        "evidence": found.log_evidence,
        "converged": found.converged,
        "sweeps": len(found.history),
        "kernels": int(found.history.theta.nunique()),
        "theta": {key: float(value) for key, value in found.theta.items()},
    }


def gpy(python: str, how: str, data: str, name: str, log_lengthscale: float, log_amplitude: float):
    """Run GPy's EP in its own environment; ``how`` is "fixed" or "learned".

    A run that is stopped counts for the time after which it was.
    """
    X, y = load(data, name)
    with tempfile.TemporaryDirectory() as folder:
        problem = Path(folder) / "problem.npz"
        kernel = {"lengthscale": np.exp(log_lengthscale), "variance": np.exp(2.0 * log_amplitude)}
        np.savez(problem, X=X, y=y, **kernel)
        script = Path(__file__).with_name("gpy_ep.py")
        repeats = FIXED_REPEATS if how == "fixed" else LEARNED_REPEATS
        command = [python, "-W", "ignore", str(script), str(problem), how, str(MAX_ITERS)]
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                [*command, str(repeats)], env=environment, capture_output=True, text=True,
                check=True, timeout=LONGEST_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"seconds": LONGEST_SECONDS, "evidence": np.nan, "status": "stopped"}
    return json.loads(done.stdout.splitlines()[-1])


def why_not(python: str | None) -> str:
    """Return why GPy cannot be run, or nothing."""
    if not python:
        return "GPY_PYTHON names no interpreter"
    try:
        done = subprocess.run([python, "-W", "ignore", "-c", "import GPy"], capture_output=True)
    except OSError as error:
        return str(error)
    return "" if done.returncode == 0 else f"{python} cannot import GPy"


def rows(settings: Settings) -> Iterator[Row]:
    """Yield a row for every data set with its kernel fixed, and two with it learned."""
    python = os.environ.get("GPY_PYTHON")
    reason = why_not(python)
    for name, (log_l, log_a) in PROBLEMS:
        kernel = {
            "data": str(settings.data.resolve()),
            "name": name,
            "log_lengthscale": log_l,
            "log_amplitude": log_a,
        }
        yield _fixed(python, reason, kernel)
        yield from _learned(python, reason, kernel)


def _fixed(python: str | None, reason: str, kernel: dict[str, Any]) -> Row:
    label = f"EP against GPy's, {kernel['name']}, probit, kernel fixed"
    exact = measure("benchmarks.ep:evidence", **kernel, tol=1e-8)
    if reason:
        return _missing(label, exact["seconds"], FIXED_BAR, reason)
    theirs = gpy(python, "fixed", **kernel)
    # The loosest of our tolerances whose evidence is at least as good as theirs.
    for tol in (1e-3, 1e-4, 1e-5, 1e-6):
        ours = measure("benchmarks.ep:evidence", **kernel, tol=tol)
        error = abs(ours["evidence"] - exact["evidence"])
        if error <= abs(theirs["evidence"] - exact["evidence"]):
            break
    details = {"ours": ours, "theirs": theirs, "tol": tol, "exact": exact}
    return _row(label, ours["seconds"], theirs["seconds"], FIXED_BAR, details)


def _learned(python: str | None, reason: str, kernel: dict[str, Any]) -> Iterator[Row]:
    ours = measure("benchmarks.ep_peer:learned", **kernel)
    theirs = None if reason else gpy(python, "learned", **kernel)
    for what, key in (("", "seconds"), (", without recognition", "without_recognition")):
        label = f"EP against GPy's, {kernel['name']}, probit, kernel learned{what}"
        if theirs is None:
            yield _missing(label, ours[key], LEARNED_BAR, reason)
        else:
            details = {"ours": ours, "theirs": theirs}
            yield _row(label, ours[key], theirs["seconds"], LEARNED_BAR, details)


def _row(label: str, ours: float, theirs: float, bar: float, details: dict[str, Any]) -> Row:
    return Row(label, 1e3 * ours, 1e3 * theirs, "ms", bar, "at most", details)


def _missing(label: str, ours: float, bar: float, reason: str) -> Row:
    return _row(f"{label}; not measured: {reason}", ours, np.nan, bar, {"reason": reason})
