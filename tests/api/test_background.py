"""``pac.sample(…, blocking=False)``."""

from __future__ import annotations

import threading

import numpy as np
import pymc as pm
import pytest

import pymc_augconj as pac

QUIET = {"quiet": True, "compute_convergence_checks": False, "random_seed": 5, "cores": 1}


@pytest.fixture
def model():
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=pm.Normal("b", shape=3), observed=[0, 1, 1])
    return model


def test_the_draws_are_the_same(model):
    options = {"draws": 6, "tune": 2, "chains": 2, **QUIET}
    with model:
        run = pac.sample(blocking=False, **options)
    # The context is left before the end.
    found = run.result()
    expected = pac.sample(model=model, **options)
    np.testing.assert_array_equal(found.posterior["b"], expected.posterior["b"])
    assert run.progress() == {0: 1.0, 1: 1.0}
    assert repr(run) == "<pac.sample, ended: chain 0 100%, chain 1 100%>"


def test_progress_and_abort(model):
    reached, free = threading.Event(), threading.Event()

    def wait(trace, draw):
        if draw.draw_idx == 4:
            reached.set()
            free.wait(60)

    run = pac.sample(18, tune=2, chains=2, model=model, blocking=False, callback=wait, **QUIET)
    assert reached.wait(60)
    assert run.progress() == {0: 0.25}
    with pytest.raises(TimeoutError, match=r"found <pac.sample, running: chain 0 25%>"):
        run.result(timeout=0.0)
    run.abort()
    threading.Timer(0.1, free.set).start()
    with pytest.warns(UserWarning, match="interrupted after 3 draws of chain 0"):
        found = run.result()
    assert dict(found.posterior.sizes) == {"chain": 1, "draw": 3, "b_dim_0": 3}


def test_errors_are_those_of_sampling(model):
    with pytest.raises(TypeError, match="got 'seed'; did you mean"):
        pac.sample(2, model=model, blocking=False, seed=1).result()
    with pytest.raises(TypeError, match="expected no 'client' with blocking=False"):
        pac.sample(2, model=model, blocking=False, client=object())
    run = pac.sample(2, tune=5, model=model, blocking=False, chains=1, **QUIET)
    run.abort()
    with pytest.raises(RuntimeError, match="aborted before the first draw after tuning"):
        run.result()
