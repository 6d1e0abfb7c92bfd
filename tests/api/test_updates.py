"""Slices of all entries of a vector at once leave the distribution of each as it is."""

from __future__ import annotations

import numpy as np
from scipy import stats

from pymc_augconj.api.updates import EntrywiseSliceUpdate

SIZE = 6000
# Every third entry is normal, log-gamma and Cauchy distributed, which need different intervals.
KINDS = [stats.norm(1.0, 0.1), stats.loggamma(0.5), stats.cauchy(0.0, 5.0)]


def log_density(x):
    return np.concatenate([kind.logpdf(x[k::3]) for k, kind in enumerate(KINDS)])[ORDER]


ORDER = np.argsort(np.concatenate([np.arange(k, SIZE, 3) for k in range(3)]))


def after(target, steps=3):
    rng = np.random.default_rng(1)
    x = np.empty(SIZE)
    for k, kind in enumerate(KINDS):
        x[k::3] = kind.rvs(SIZE // 3, random_state=rng)
    update = EntrywiseSliceUpdate(SIZE)
    start = x
    for _ in range(steps):
        x = update(target, x, rng, True)
    return start, x


def smallest_p(x):
    return min(stats.kstest(x[k::3], kind.cdf).pvalue for k, kind in enumerate(KINDS))


def test_exact_draws_stay_exact_draws():
    """Entries are independent, so that the test needs no effective sample size."""
    start, x = after(log_density)
    assert smallest_p(x) > 1e-4
    for k in range(3):
        assert abs(stats.spearmanr(start[k::3], x[k::3]).statistic) < 0.5
    # Negative control: another density.
    assert smallest_p(after(lambda x: 1.2 * log_density(x))[1]) < 1e-4


def test_intervals_are_learned():
    update, rng, x = EntrywiseSliceUpdate(SIZE), np.random.default_rng(2), np.ones(SIZE)
    for _ in range(30):
        x = update(log_density, x, rng, True)
    widths = [np.median(update.state["widths"][k::3]) for k in range(3)]
    assert widths[0] < 1.0 < widths[2]
