"""What every benchmark needs: a row, a table, a JSON file, and a fresh process to measure in."""

from __future__ import annotations

import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

CORES = 2
PACKAGES = ("pymc-augconj", "pymc", "pytensor", "nutpie", "numba", "numpy", "scipy", "arviz")
THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


@dataclass(frozen=True)
class Settings:
    """What the command line chose.

    Attributes
    ----------
    data : Path
        Folder with ``housing.csv`` and ``heart.csv``.
    quick : bool
        Few draws: shows that everything runs; its ratios are noise.
    nuts_draws : int, optional
        Tuning steps and draws of NUTS where the kernel is learned, instead of each data set's own.
    output : Path
        Folder for figures and the JSON file.
    """

    data: Path
    quick: bool = False
    nuts_draws: int | None = None
    output: Path = Path("benchmark-output")


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes
    ----------
    benchmark : str
        A description of what was measured.
    ours, floor : float
        The two measurements, in ``unit``; ``floor`` is None where the bar is on ``ours`` itself.
    unit : str
        Unit of both.
    bar : float
        What ``score`` is compared with.
    bar_is : {"at least", "at most"}
        On which side of the bar the score has to lie.
    details : dict
        Everything else worth keeping, for the JSON file.
    """

    benchmark: str
    ours: float
    floor: float | None
    unit: str
    bar: float
    bar_is: Literal["at least", "at most"]
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Ours over theirs, or None without theirs."""
        if self.floor is None:
            return None
        return self.ours / self.floor if self.floor else float("inf")

    @property
    def score(self) -> float:
        """The number that the bar is about."""
        return self.ours if self.ratio is None else self.ratio

    @property
    def met(self) -> bool:
        """Whether the bar is met; never for NaN."""
        return self.score >= self.bar if self.bar_is == "at least" else self.score <= self.bar


def compile_kernels(folder: Path) -> float:
    """Compile the kernels of the package into an empty Numba cache; return the seconds."""
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, "1")
    environment["NUMBA_CACHE_DIR"] = str(folder)
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "pymc_augconj"],
        env=environment,
        cwd=Path(__file__).parents[1],
        stdout=sys.stderr,
        check=True,
    )
    return time.perf_counter() - start


def measure(
    function: str,
    *,
    cores: int = CORES,
    limit: float | None = None,
    kernels: Path | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """Call ``"module:function"`` in a fresh process with empty caches; return what it returns.

    Arguments and result travel as JSON. On Linux the process is held to ``cores`` cores. After
    ``limit`` seconds it is killed, and :class:`subprocess.TimeoutExpired` raised. ``kernels`` is a
    Numba cache to begin with instead of an empty one, see :func:`compile_kernels`.
    """
    with tempfile.TemporaryDirectory(prefix="augconj-bench-") as folder:
        result = Path(folder) / "result.json"
        environment = os.environ | dict.fromkeys(THREAD_VARIABLES, "1")
        environment["PYTENSOR_FLAGS"] = f"base_compiledir={folder}/pytensor"
        environment["NUMBA_CACHE_DIR"] = f"{folder}/numba"
        if kernels is not None:
            shutil.copytree(kernels, f"{folder}/numba")
        call = {"function": function, "arguments": arguments, "result": str(result), "cores": cores}
        command = [sys.executable, "-m", "benchmarks.harness", json.dumps(call)]
        subprocess.run(
            command,
            env=environment,
            cwd=Path(__file__).parents[1],
            stdout=sys.stderr,
            check=True,
            timeout=limit,
        )
        return json.loads(result.read_text())


def _answer(call: dict[str, Any]) -> None:
    """Be the fresh process: make the call and write down its result."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-call["cores"] :])
    module, name = call["function"].split(":")
    start = time.perf_counter()
    function = getattr(importlib.import_module(module), name)
    imported = time.perf_counter() - start
    answer = function(**call["arguments"]) | {"import_seconds": imported}
    Path(call["result"]).write_text(json.dumps(answer))


def describe_machine() -> dict[str, Any]:
    """Return processor, system, load and package versions, for the JSON file."""
    processor = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if "model name" in line]
        processor = names[0].split(":")[1].strip() if names else processor
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "processor": processor,
        "cores": os.cpu_count(),
        "cores_used": CORES,
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def print_table(rows: Sequence[Row]) -> None:
    """Print the one table; a missed bar stands out."""
    table = Table("benchmark", title="pymc-augconj against peers and floors")
    for column in ("ours", "theirs/floor", "ratio", "bar"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("met?")
    signs = {"at least": "≥", "at most": "≤"}
    for row in rows:
        is_bar_absolute = row.floor is None
        table.add_row(
            row.benchmark,
            f"{row.ours:.3g} {row.unit}",
            "–" if is_bar_absolute else f"{row.floor:.3g} {row.unit}",
            "–" if is_bar_absolute else f"{row.ratio:.2f}",
            f"{signs[row.bar_is]} {row.bar:g}{' ' + row.unit if is_bar_absolute else ''}",
            "yes" if row.met else "[bold red]NO[/]",
        )
    # Wide enough for every column also where the output is a file.
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def write_json(rows: Sequence[Row], settings: Settings, path: Path) -> None:
    """Write the rows with all their details and what machine they are from."""
    record = {
        "machine": describe_machine(),
        "settings": {
            key: str(v) if isinstance(v, Path) else v for key, v in asdict(settings).items()
        },
        "rows": [
            asdict(row) | {"ratio": row.ratio, "score": row.score, "met": row.met} for row in rows
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2))


if __name__ == "__main__":
    _answer(json.loads(sys.argv[1]))
