"""Solve the standard problems by every peer that can be had: ``python -m benchmarks.peers``.

Each peer runs in an environment of its own, on one thread. Those in R need ``Rscript`` and the
package; where a peer cannot be installed, the table says so. Results are added to a JSON file, from
which ``docs/performance.py`` makes the table.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import THREAD_VARIABLES, describe_machine

from .problems import PROBLEMS

HERE = Path(__file__).parent
PROCESSES = ["gp_normal", "gp_student", "gp_poisson", "gp_probit"]
GROUPS = ["linear_mixed", "logit_crossed", "negbin_groups"]
ALL = list(PROBLEMS)

#: What each peer needs from PyPI (None: this environment, or R), and the problems it is for.
PEERS: dict[str, tuple[list[str] | None, list[str]]] = {
    "pymc-augconj": (None, ALL),
    "pymc-augconj, nested": (None, ALL),
    "nutpie": (["pymc>=6.4,<7", "nutpie"], ALL),
    "numpyro": (["pymc>=6.4,<7", "numpyro"], ALL),
    "blackjax": (["pymc>=6.4,<7", "blackjax"], ALL),
    "GPflow": (["--requirement", str(HERE.parent / "gpflow_requirements.txt")], PROCESSES),
    "GPyTorch": (["gpytorch"], ["gp_normal", "gp_student", "gp_probit"]),
    "GPy": (["GPy"], PROCESSES),
    "tinygp": (["tinygp", "scipy"], ["gp_normal", "long_series"]),
    "celerite2": (["celerite2", "scipy"], ["gp_normal", "long_series"]),
    "gpboost": (["gpboost"], [*PROCESSES, *GROUPS]),
    "statsmodels": (
        ["statsmodels"],
        ["local_level", "linear_mixed", "logit_crossed", "logit_regression"],
    ),
    "lme4": (None, GROUPS),
    "glmmTMB": (None, GROUPS),
    "mgcv": (None, [*GROUPS, "additive_poisson"]),
}
IN_R = ("lme4", "glmmTMB", "mgcv")


def command_of(peer: str, environments: Path) -> list[str]:
    """Return the start of the peer's command, its environment made if there is none yet."""
    needs = PEERS[peer][0] if peer in PEERS else None
    if peer in IN_R:
        return ["Rscript", str(HERE / "solve.R")]
    if needs is None:
        return [sys.executable, str(HERE / "solve.py")]
    folder = environments / peer.lower()
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"Installing {peer} into {folder} …", flush=True)
        base = os.environ.get("PEERS_PYTHON", sys.executable)
        subprocess.run([base, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *needs], check=True)
    return [str(python), str(HERE / "solve.py")]


def solve(peer: str, problem: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the peer's answer, or why there is none."""
    data = PROBLEMS[problem].simulate(np.random.default_rng(1))
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, "1")
    environment |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if (PEERS[peer][0] if peer in PEERS else None) is not None:
        environment.pop("PYTHONPATH", None)
    limit = options.limit if peer in PEERS else 20 * options.limit

    def hold() -> None:
        os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))

    with tempfile.TemporaryDirectory(prefix="augconj-peers-") as folder:
        source, target = Path(folder) / "data.json", Path(folder) / "result.json"
        source.write_text(json.dumps({name: v.tolist() for name, v in data.items()}))
        try:
            start = command_of(peer, options.environments)
            done = subprocess.run(
                [*start, peer, problem, str(source), str(target)],
                env=environment,
                cwd=HERE,
                preexec_fn=hold,
                capture_output=True,
                text=True,
            )
        except (OSError, subprocess.CalledProcessError) as error:
            return {"missing": str(error)}
        if target.exists():
            return json.loads(target.read_text())
    if done.returncode < 0:
        return {"missing": f"more than {limit} s"}
    errors = re.findall(r"^[\w.]*Error\b.*$", done.stderr, re.MULTILINE)
    return {"missing": errors[-1] if errors else f"exit status {done.returncode}"}


def main() -> None:
    """Run what was asked for; write the JSON file after each answer."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("benchmark-output/peers.json"))
    parser.add_argument("--environments", type=Path, default=Path(".venv-peers"))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--problems", nargs="+", choices=ALL, default=ALL)
    parser.add_argument("--limit", type=int, default=120, help="processor seconds of one solution")
    options = parser.parse_args()
    options.environments = options.environments.resolve()
    record: dict[str, Any] = {"answers": {}}
    if options.output.exists():
        record = json.loads(options.output.read_text())
    for problem in options.problems:
        answers = record["answers"].setdefault(problem, {})
        if "mean" not in answers.get("reference", {}):
            answers["reference"] = solve("reference", problem, options)
        for peer in options.peers:
            if problem not in PEERS[peer][1]:
                continue
            answers[peer] = solve(peer, problem, options)
            answers[peer]["limit"] = options.limit
            told = answers[peer].get("missing") or f"{answers[peer]['seconds']:.2f} s"
            print(f"{problem}, {peer}: {told}", flush=True)
            record["machine"] = describe_machine()
            record["titles"] = {name: PROBLEMS[name].title for name in ALL}
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
