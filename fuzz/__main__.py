"""Compare random models with PyMC: ``python -m fuzz --models 2000 --seed 0``.

Model i has the seed ``--seed`` + i, so that ``--models 1 --seed S`` repeats one. Exits with 1 where
a reading differs from PyMC, an error is not the package's own, or (``--chains``) a chain comes
where no exact one does.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial

from .chains import sample_chain
from .comparison import Outcome, compare_densities, guarded
from .grammar import random_model
from .moments import compare_moments
from .native import compare_steps

_PRINTED = 3
_SECONDS, _CHAIN_SECONDS = 60.0, 30.0
_BY_SENTENCE = ("refused", "unverified", "unsupported", "stopped", "misread", "warned")

# Graphs are many small objects that live as long as a model: looked through seldom, a quarter of
# the time is saved.
_GARBAGE_THRESHOLDS = (50_000, 20, 100)


def main(arguments: list[str] | None = None) -> int:
    """Run the models and print what was found."""
    options = _parse(arguments)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)  # of rewrites that PyTensor gives up
    gc.set_threshold(*_GARBAGE_THRESHOLDS)
    found: dict[int, Outcome] = {}
    start = time.perf_counter()
    for seed in range(options.seed, options.seed + options.models):
        text = random_model(seed, tiny=options.small or options.moments, wild=options.chains)
        check = partial(_check_of(options), seed=seed)
        found[seed] = guarded(text, check, _CHAIN_SECONDS if options.chains else _SECONDS)
        outcome = found[seed]
        if options.show or outcome.is_failure:
            failures = sum(other.is_failure for other in found.values())
            shown = options.show or failures <= _PRINTED
            print(f"\n== seed {seed}: {outcome.kind}: {outcome.detail}", flush=True)
            mode = " --chains" if options.chains else ""
            repeat = f"   its program: --models 1 --seed {seed} --show{mode}"
            print(text if shown else repeat, flush=True)
        if options.seconds and time.perf_counter() - start > options.seconds:
            break
    print_counts(found, time.perf_counter() - start)
    return int(any(outcome.is_failure for outcome in found.values()))


def print_counts(found: dict[int, Outcome], seconds: float) -> None:
    """Print how many models ended how, refusals by their sentence."""
    kinds = Counter(outcome.kind for outcome in found.values())
    print(f"\n{len(found)} models, seeds {min(found)} to {max(found)}, {seconds:.0f} s")
    for kind, count in kinds.most_common():
        seeds = [seed for seed, outcome in found.items() if outcome.kind == kind]
        listed = f": seeds {seeds}" if found[seeds[0]].is_failure else ""
        print(f"{count:6d} {kind}{listed}")
        if kind in _BY_SENTENCE:
            details = defaultdict(list)
            for seed in seeds:
                details[found[seed].detail].append(seed)
            for detail, members in sorted(details.items(), key=lambda item: -len(item[1])):
                print(f"       {len(members):6d} (seed {members[0]}) {detail}")


def _check_of(options: argparse.Namespace) -> Callable[..., Outcome]:
    if options.chains:
        return partial(sample_chain, steps=options.steps)
    if options.native:
        return compare_steps
    return compare_moments if options.moments else compare_densities


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--models", type=int, default=100, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="at most three free scalars")
    parser.add_argument("--moments", action="store_true", help="sample small models")
    parser.add_argument("--native", action="store_true", help="steps of both kinds, same numbers")
    parser.add_argument("--chains", action="store_true", help="sample models of wild scales")
    parser.add_argument("--steps", type=int, default=300, help="of each chain, half of them tuning")
    parser.add_argument("--show", action="store_true", help="print every program")
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no model after these")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
