"""``pac.warm_up``: compiling the kernels before they are needed."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pymc as pm

from .sample import sample

__all__ = ["warm_up"]

# Enough steps for the loop, see :mod:`.native_step`.
_DRAWS, _TUNE = 300, 200


def warm_up() -> float:
    """Compile the kernels of ``pac.sample``, which Numba keeps on disk, and return the seconds.

    They do not depend on the model, and are otherwise compiled by the first call of
    :func:`~pymc_augconj.sample` on a machine. So an image of a container, or a job of continuous
    integration, has them beforehand: ``python -m pymc_augconj`` calls this. They are kept beside
    the package, or in the directory ``NUMBA_CACHE_DIR``, until the package is installed anew.

    Returns
    -------
    float
        Up to a minute of a core the first time, a few seconds later.
    """
    begin = time.perf_counter()
    x = np.arange(12) % 3
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1.0)
        a, b = pm.Normal("a", 0.0, tau, shape=3), pm.Normal("b", 0.0, 1.0)
        pm.Poisson("y", pm.math.exp(a[x] + b), observed=x)
        pm.Binomial("k", n=50, logit_p=b + a, observed=[1, 20, 3])
        pm.Normal("z", a, 1.0, observed=[0.0, 0.5, 1.0])
    with pm.Model() as fixed:
        pm.Poisson("y", pm.math.exp(pm.Normal("b", 0.0, 1.0, shape=2)), observed=[1, 2])
    options: dict[str, Any] = {
        "chains": 1,
        "cores": 1,
        "progressbar": False,
        "quiet": True,
        "random_seed": 1,
    }
    for each in (model, fixed):
        sample(_DRAWS, model=each, tune=_TUNE, compute_convergence_checks=False, **options)
    return time.perf_counter() - begin
