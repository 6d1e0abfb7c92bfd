"""Settings of the process are, after calls that overlap in several threads, what they were."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pymc as pm
import pytensor
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import pymc_augconj as pac
from pymc_augconj.parallel.executor import ProcessSetting, blas_limit
from pymc_augconj.python_mode import untraced, without_compilation

TIMEOUT = 600.0  # of a deadlock: a busy machine takes its time


def state():
    config = pytensor.config
    pools = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    return config.mode, config.cxx, config.traceback__limit, pools


@pytest.mark.parametrize("first_out", [0, 1])
@pytest.mark.parametrize("setting", [without_compilation, untraced, lambda: blas_limit(1)])
def test_overlapping_uses_leave_the_setting_as_it_was(setting, first_out, compiled):
    with compiled(), threadpool_limits(2, user_api="blas"):
        before = state()
        calls = [ExitStack(), ExitStack()]
        for call in calls:
            call.enter_context(setting())
        within = state()
        calls[first_out].close()
        assert state()[1:] == within[1:] != before[1:]
        calls[1 - first_out].close()
        assert state() == before


def test_the_last_of_several_values_counts():
    value = [0]

    def change(new):
        old, value[0] = value[0], new
        return lambda: value.__setitem__(0, old)

    setting = ProcessSetting(change)
    first, second = setting.acquire(1), setting.acquire(2)
    assert value == [2]
    second()
    assert value == [1]
    second = setting.acquire(3)
    first()
    assert value == [3]
    second()
    assert value == [0]


def test_an_error_releases_the_setting():
    before = state()
    with pytest.raises(ZeroDivisionError), without_compilation():
        1 / 0  # noqa: B018
    assert state() == before


def test_chains_sampled_in_two_threads():
    """The first call to begin is the first to end, as where each restored what it had found."""
    first_runs, second_runs, first_ended = (threading.Event() for _ in range(3))

    def sample(running, awaited):
        with pm.Model() as model:
            pm.Bernoulli("y", logit_p=pm.Normal("b", 0, 1), observed=np.ones(3, dtype=int))

        def wait(trace, draw):
            running.set()
            assert awaited.wait(TIMEOUT)

        return pac.sample(
            2,
            tune=1,
            chains=1,
            cores=1,
            model=model,
            callback=wait,
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        )

    with threadpool_limits(2, user_api="blas"), ThreadPoolExecutor(2) as threads:
        before = state()
        first = threads.submit(sample, first_runs, second_runs)
        assert first_runs.wait(TIMEOUT)
        second = threads.submit(sample, second_runs, first_ended)
        first.result(TIMEOUT)
        first_ended.set()
        second.result(TIMEOUT)
        assert state() == before
