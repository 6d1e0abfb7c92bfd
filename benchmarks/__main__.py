"""Run the benchmarks: ``python -m benchmarks --data ../shared/data``."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.harness import CORES, Row, Settings, print_table, write_json

TOPICS = (
    "step_time",
    "cold_start",
    "fixed_kernel",
    "learned_kernel",
    "small_models",
    "priors",
    "held_sites",
    "sparse_sampling",
    "structured",
    "crossed",
    "heteroscedastic",
    "several_classes",
    "table2",
    "gpflow_dense",
    "gpflow_sparse",
    "million",
    "chunks",
    "prediction",
    "ep",
    "ep_peer",
    "qp_study",
)
FILES = ("housing.csv", "heart.csv")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the CSV files")
    parser.add_argument("--output", type=Path, default=Path("benchmark-output"))
    parser.add_argument("--only", nargs="+", choices=TOPICS, default=TOPICS, metavar="TOPIC")
    parser.add_argument("--quick", action="store_true", help="few draws; the ratios are noise")
    parser.add_argument("--nuts-draws", type=int, help="draws of NUTS where the kernel is learned")
    return parser.parse_args(arguments)


def main() -> int:
    """Run the chosen topics, print one table, write one JSON file."""
    options = parse()
    missing = [name for name in FILES if not (options.data / name).exists()]
    if missing:
        print(
            f"--data: expected {' and '.join(FILES)} in {options.data}, found no "
            f"{' and no '.join(missing)}",
            file=sys.stderr,
        )
        return 2
    settings = Settings(options.data, options.quick, options.nuts_draws, options.output)
    print(
        f"{CORES} cores, BLAS on one thread, every measurement in a fresh process with empty "
        "PyTensor and Numba caches;\nwall time from the call, compilation included.",
        flush=True,
    )
    rows: list[Row] = []
    failed: list[str] = []
    start = time.perf_counter()
    path = options.output / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    for topic in options.only:
        print(f"{topic} …", flush=True)
        try:
            # One by one: what has been measured is kept when a later measurement breaks, or the
            # run is stopped.
            for row in importlib.import_module(f"benchmarks.{topic}").rows(settings):
                rows.append(row)
                write_json(rows, settings, path)
        except subprocess.CalledProcessError as error:
            failed.append(topic)
            print(f"{topic} broke off: {error}", file=sys.stderr)
    print_table(rows)
    if options.quick:
        print("--quick: these ratios show that everything runs, and nothing else.")
    missed = [row.benchmark for row in rows if not row.met]
    print(
        f"{len(rows) - len(missed)} of {len(rows)} bars met in "
        f"{time.perf_counter() - start:.0f} s; details in {path}"
    )
    if failed:
        print(f"not measured to the end: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
