"""Draws at new inputs: the textbook formula, whichever way and by however many threads."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.prediction.moments import draw_conditional, draw_groups

N_OLD, N_NEW, JITTER = 12, 5, 1e-6


def parts_of(lengthscale, old, new, joint):
    def kernel(a, b):
        return 1.7 * np.exp(-0.5 * ((a[:, None] - b) / lengthscale) ** 2)

    found = {"old": kernel(old, old), "cross": kernel(new, old)}
    found |= {"mean_old": 0.3 * old, "mean_new": 0.3 * new}
    return found | (
        {"new": kernel(new, new)} if joint else {"new_diagonal": np.full(len(new), 1.7)}
    )


@pytest.fixture
def inputs():
    return np.linspace(-3.0, 3.0, N_OLD), np.array([-2.9, -0.4, 0.1, 1.3, 5.0])


def textbook(f, noise, parts, joint):
    K = parts["old"] + JITTER * np.eye(N_OLD)
    A = np.linalg.solve(K, parts["cross"].T)
    mean = parts["mean_new"] + (f - parts["mean_old"]) @ A
    if not joint:
        var = parts["new_diagonal"] - np.einsum("ij,ji->i", parts["cross"], A)
        return mean + np.sqrt(var) * noise
    cov = parts["new"] - parts["cross"] @ A + 1e-10 * 1.7 * np.eye(N_NEW)
    return mean + noise @ np.linalg.cholesky(cov).T


@pytest.mark.parametrize("joint", [True, False])
# One and two are further rows of the factorisation, thirty are solved for.
@pytest.mark.parametrize("draws", [1, 2, 30])
def test_is_the_textbook_formula(inputs, joint, draws):
    rng = np.random.default_rng(0)
    f, noise = rng.standard_normal((draws, N_OLD)), rng.standard_normal((draws, N_NEW))
    parts = parts_of(0.6, *inputs, joint)
    found = draw_conditional(f, noise, parts, jitter=JITTER, joint=joint)
    np.testing.assert_allclose(found, textbook(f, noise, parts, joint), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("joint", [True, False])
def test_does_not_depend_on_the_number_of_threads(inputs, joint):
    rng = np.random.default_rng(1)
    scales = rng.uniform(0.4, 0.9, 7)
    groups = [np.array([0, 7]), *(np.array([i]) for i in range(1, 7))]
    f, noise = rng.standard_normal((8, N_OLD)), rng.standard_normal((8, N_NEW))

    def evaluate(draw):
        return parts_of(scales[draw], *inputs, joint)

    results = [
        draw_groups(groups, f, noise, evaluate, jitter=JITTER, joint=joint, threads=threads)
        for threads in (1, 3)
    ]
    np.testing.assert_array_equal(*results)
    expected = textbook(f[3:4], noise[3:4], evaluate(3), joint)
    np.testing.assert_allclose(results[0][3:4], expected, rtol=1e-7, atol=1e-7)


def test_repeated_inputs_repeat_their_values(inputs):
    # Without any jitter K is singular to working precision: the ladder of jitters takes over.
    old = np.repeat(inputs[0], 2)
    new = inputs[0][:3]
    parts = parts_of(2.0, old, new, True)
    f = np.repeat(np.sin(inputs[0]), 2)[None]
    noise = np.zeros((1, 3))
    found = draw_conditional(f, noise, parts, jitter=0.0, joint=True)
    np.testing.assert_allclose(found[0], np.sin(new), atol=1e-3)
    # What an earlier use, or nobody, wrote into the work array does not matter.
    for garbage in (np.nan, 1e300):
        size = len(old) + len(new) + 1
        scratch = [np.full((size, size), garbage)]
        again = draw_conditional(f, noise, parts, jitter=0.0, joint=True, scratch=scratch)
        np.testing.assert_array_equal(again, found)


def test_a_covariance_that_is_not_finite_is_refused(inputs):
    parts = parts_of(1.0, *inputs, True)
    parts["old"][3, 2] = np.nan
    with pytest.raises(NotPositiveDefiniteError, match="at the old and new inputs"):
        draw_conditional(np.zeros((1, N_OLD)), np.zeros((1, N_NEW)), parts, jitter=0.0, joint=True)
