"""GPflow in an environment of its own: made when first needed, and how its scripts are run.

GPflow needs TensorFlow, which does not install beside PyMC. The environment is ``.venv-gpflow`` in
the repository, or whatever ``GPFLOW_PYTHON`` names the interpreter of.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import CORES

FOLDER = Path(__file__).parents[1] / ".venv-gpflow"
REQUIREMENTS = Path(__file__).with_name("gpflow_requirements.txt")
# The newest version first: later ones have no wheels of what GPflow needs.
VERSIONS = ("3.12", "3.11", "3.10")
# Further places of interpreters that are not on the path, as globs below the home folder.
ELSEWHERE = (".pyenv/versions/{}.*/bin/python", ".local/share/uv/python/*-{}.*/bin/python")


@functools.cache
def interpreter() -> tuple[str | None, str]:
    """Return an interpreter that has GPflow, or None and why there is none."""
    named = os.environ.get("GPFLOW_PYTHON")
    if named:
        works, reason = _has_gpflow(named)
        return (named, "") if works else (None, f"GPFLOW_PYTHON={named}: {reason}")
    python = FOLDER / "bin" / "python"
    if python.exists() and _has_gpflow(str(python))[0]:
        return str(python), ""
    reason = f"expected Python {', '.join(VERSIONS)} with its venv module, found none"
    print(f"Installing GPflow with CPU TensorFlow into {FOLDER} (minutes, once) …", flush=True)
    for candidate in _candidates():
        reason = _install(candidate, python) or _has_gpflow(str(python))[1]
        if not reason:
            return str(python), ""
    shutil.rmtree(FOLDER, ignore_errors=True)
    return None, reason


def _candidates() -> Iterator[str]:
    for version in VERSIONS:
        home = Path.home()
        known = [f"python{version}"]
        for pattern in ELSEWHERE:
            known += sorted(map(str, home.glob(pattern.format(version))))
        for python in known:
            # May be a shim without a version behind it.
            command = [
                python,
                "-c",
                f"import sys, ensurepip; assert sys.version[:4] == '{version}'",
            ]
            try:
                works = subprocess.run(command, capture_output=True).returncode == 0
            except OSError:
                works = False
            if works:
                yield python
                break


def _install(candidate: str, python: Path) -> str:
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in (
        [candidate, "-m", "venv", "--clear", str(FOLDER)],
        [*pip, "--requirement", str(REQUIREMENTS)],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return _last_line(done)
    return ""


def _has_gpflow(python: str) -> tuple[bool, str]:
    command = [python, "-W", "ignore", "-c", "import gpflow"]
    try:
        done = subprocess.run(command, env=_environment(), capture_output=True, text=True)
    except OSError as error:
        return False, str(error)
    return done.returncode == 0, "" if done.returncode == 0 else _last_line(done)


def _environment() -> dict[str, str]:
    # PYTHONPATH would put this environment's packages before GPflow's.
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return kept | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}


def _last_line(done: subprocess.CompletedProcess) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit status {done.returncode}"


def run_script(script: str, problem: dict[str, Any], *arguments: Any) -> dict[str, Any]:
    """Run a script of this folder by GPflow's interpreter on ``CORES`` cores.

    Parameters
    ----------
    script : str
        Its file name. It is given the path of an ``.npz`` file and the arguments, and prints JSON.
    problem : dict
        Arrays and scalars for that file.

    Returns
    -------
    dict
        What it printed; only ``{"missing": reason}`` where GPflow cannot be had.
    """
    python, reason = interpreter()
    if python is None:
        return {"missing": reason}
    with tempfile.TemporaryDirectory(prefix="augconj-gpflow-") as folder:
        path = Path(folder) / "problem.npz"
        np.savez(path, **problem)
        command = [python, "-W", "ignore", str(Path(__file__).with_name(script)), str(path)]
        done = subprocess.run(
            [*command, *map(str, arguments)],
            env=_environment(),
            preexec_fn=_hold_to_cores,
            capture_output=True,
            text=True,
        )
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        done.check_returncode()
    return json.loads(done.stdout.splitlines()[-1])


def _hold_to_cores() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-CORES:])
