"""The same results wherever work is done, and nothing left when it ends early."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

import pymc_augconj as pac
from pymc_augconj.parallel.client import executor_of
from pymc_augconj.parallel.executor import Executor, Threads

PARTS = np.array_split(np.random.default_rng(0).lognormal(sigma=4.0, size=1000), 37)


def part_of(values, shared):
    return values.sum() * shared["factor"]


def add(values):
    return sum(values[1:], values[0])


def total(run):
    with run:
        factor = run.share({"factor": 1.1})
        return run.reduce(add, run.map(part_of, PARTS, factor))


# Forked, since another process would have to import everything first.
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_sums_are_the_same_numbers_everywhere():
    here = total(Executor())
    with ThreadPoolExecutor(2) as threads:
        assert total(executor_of(threads)) == here
    assert total(Threads(3)) == here
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as processes:
        run = executor_of(processes)
        assert total(run) == here
        assert run.submit(os.getpid).result() != os.getpid()
    # Another tree is another rounding: the equality above is no matter of course.
    assert add([part_of(p, {"factor": 1.1}) for p in PARTS]) != here
    assert here == pytest.approx(1.1 * np.concatenate(PARTS).sum(), rel=1e-10)


def test_the_calling_thread_works_along():
    release, seen = threading.Event(), []

    def work(i):
        elsewhere = threading.current_thread() is not threading.main_thread()
        seen.append((i, elsewhere))
        if elsewhere:
            release.wait(10)
        elif i == 1:
            release.set()  # all that is left has been done here
        with np.errstate(divide="raise"):
            return i

    with Threads(2) as run:
        tasks = run.map(work, range(5))
        while not seen:
            time.sleep(0.001)
        assert run.gather(tasks) == [0, 1, 2, 3, 4]
    assert seen == [(0, 1), (4, 0), (3, 0), (2, 0), (1, 0)]


def test_errors_come_back_and_nothing_keeps_running():
    done = []

    def work(i):
        if i == 0:
            raise ZeroDivisionError
        time.sleep(0.05)
        done.append(i)

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), Threads(2) as run:  # noqa: PT012
        tasks = run.map(work, range(20))
        tasks[0].result()
    assert len(done) < 3
    assert threading.active_count() == before


def test_other_clients_are_refused():
    with pytest.raises(pac.AugmentationError, match=r"client: expected a distributed.Client.*'x'"):
        executor_of("x")
