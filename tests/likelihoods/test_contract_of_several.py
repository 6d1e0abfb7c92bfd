"""The contract of likelihoods of several predictors; a new one is one new line in ``CASES``.

Identities are checked as identities, integrals by cubature. Draws of ω are compared with their
density by likelihood ratios, within five Monte Carlo standard errors, with a negative control.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp, softmax

from pymc_augconj.likelihoods.contract import MultiDensity, MultiLikelihood
from pymc_augconj.likelihoods.heteroscedastic import Heteroscedastic, HeteroscedasticLog
from pymc_augconj.likelihoods.laplace import Laplace
from pymc_augconj.likelihoods.logistic_softmax import LogisticSoftmax
from pymc_augconj.likelihoods.mixture import MixtureComponent, MixtureLikelihood
from pymc_augconj.likelihoods.multivariate_normal import MultivariateNormal, MultivariateStudentT
from pymc_augconj.likelihoods.normal import Normal
from pymc_augconj.likelihoods.robust_max import RobustMax
from pymc_augconj.likelihoods.softmax import Categorical, Multinomial
from pymc_augconj.likelihoods.student_t import StudentT
from pymc_augconj.quadrature.expectation import gaussian_cubature

REALS = np.array([-2.5, 0.4, 3.1])


class Case(NamedTuple):
    """One likelihood: observations, of which the last axis is N, and parameters."""

    build: Callable[[], MultiDensity]
    y: np.ndarray
    params: Mapping[str, np.ndarray] = MappingProxyType({})
    #: Whether E log p is that of a cubature of smooth functions.
    smooth: bool = True


LABELS = np.array([0.0, 1.0, 2.0])
MISTAKES = {"epsilon": np.array(0.05)}
# The last observation has no trials.
COUNTS = {"entry_0": np.array([2.0, 0.0, 0.0]), "entry_1": np.array([1.0, 4.0, 0.0])}
COUNTS |= {"entry_2": np.array([0.0, 3.0, 0.0]), "n": np.array([3.0, 7.0, 0.0])}

# Vectors of three entries, of which y is the sum; Σ differs between them.
VECTORS = {
    f"entry_{p}": row for p, row in enumerate(np.array([[0.3, -2, 1], [4, 0, 1], [1, 2, 3]]))
}
SUMS = sum(VECTORS.values())
VECTORS |= {
    "cov_0_0": np.array(1.3),
    "cov_1_0": np.array([-0.4, 0.9, 0.0]),
    "cov_1_1": np.array(2.0),
}
VECTORS |= {"cov_2_0": np.array(0.2), "cov_2_1": np.array(0.7), "cov_2_2": np.array(0.9)}
# One Σ of all.
PAIRS = {"entry_0": REALS, "entry_1": REALS[::-1], "nu": np.array(3.5)}
PAIRS |= {"cov_0_0": np.array(2.0), "cov_1_0": np.array(-1.1), "cov_1_1": np.array(0.9)}

# Weights differ between observations; the last component has no predictor.
WEIGHTS = np.log([[0.2, 0.5, 0.1], [0.7, 0.1, 0.3], [0.1, 0.4, 0.6]])
MIXED = {f"log_weight_{k}": row for k, row in enumerate(WEIGHTS)}
MIXED |= {"sigma_0": np.array([0.5, 1.0, 2.0]), "b_1": np.array(0.8), "eta_2": np.array(1.5)}
MIXED |= {"nu_2": np.array(4.0), "sigma_2": np.array(3.0)}


def mixture(*predictors):
    kinds = ((Normal, "sigma"), (Laplace, "b"), (StudentT, "nu", "sigma"))
    return MixtureLikelihood(
        [
            MixtureComponent(kind(), k, own, {name: f"{name}_{k}" for name in names})
            for k, ((kind, *names), own) in enumerate(zip(kinds, predictors, strict=True))
        ]
    )


CASES = {
    "mixture": Case(partial(mixture, 0, 1, None), REALS, MIXED, smooth=False),
    "mixture of one predictor": Case(partial(mixture, 0, 0, None), REALS, MIXED, smooth=False),
    "multivariate normal": Case(partial(MultivariateNormal, 3), SUMS, VECTORS),
    "multivariate normal, one covariance": Case(partial(MultivariateNormal, 2), 2 * REALS, PAIRS),
    "multivariate Student-t": Case(
        partial(MultivariateStudentT, 3), SUMS, {**VECTORS, "nu": np.array([1.0, 4.0, 30.0])}
    ),
    "multivariate Student-t, one scale": Case(partial(MultivariateStudentT, 2), 2 * REALS, PAIRS),
    "heteroscedastic": Case(Heteroscedastic, REALS, {"r": np.array([3.0, 0.4, 1.7])}),
    "heteroscedastic log": Case(HeteroscedasticLog, REALS),
    "categorical": Case(partial(Categorical, 3), LABELS),
    "categorical, reference": Case(partial(Categorical, 2, reference=1), LABELS),
    "logistic-softmax": Case(partial(LogisticSoftmax, 3), LABELS, smooth=False),
    "logistic-softmax of two": Case(partial(LogisticSoftmax, 2), LABELS[:2]),
    "robust-max": Case(partial(RobustMax, 3), LABELS, MISTAKES, smooth=False),
    "robust-max of two": Case(partial(RobustMax, 2), LABELS[:2], MISTAKES, smooth=False),
    "multinomial": Case(partial(Multinomial, 3), COUNTS["n"], COUNTS),
    "multinomial, reference": Case(partial(Multinomial, 2, reference=0), COUNTS["n"], COUNTS),
}
SEVERAL = {type(case.build()) for case in CASES.values()}
over = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
AUGMENTED = {name: case for name, case in CASES.items() if case.build().can_augment}
over_augmented = pytest.mark.parametrize("case", AUGMENTED.values(), ids=AUGMENTED)

DIFFERENTIABLE = {name: case for name, case in CASES.items() if case.build().traits.has_gradient}


def spread(case: Case, rng: np.random.Generator, copies: int, scale: float = 1.5):
    """Return likelihood, y, parameters and predictors of many observations."""
    likelihood = case.build()
    y = np.repeat(case.y, copies, axis=-1)
    params = {k: np.repeat(v, copies, axis=-1) if v.ndim else v for k, v in case.params.items()}
    return likelihood, y, params, scale * rng.normal(size=(likelihood.n_predictors, y.shape[-1]))


def moments(case: Case, rng: np.random.Generator, copies: int = 2):
    """The same with random means and correlated covariances of the predictors."""
    likelihood, y, params, mean = spread(case, rng, copies, 1.0)
    P, N = mean.shape
    root = rng.normal(size=(P, P, N)) / np.sqrt(P)
    return likelihood, y, params, mean, np.einsum("pkn,qkn->pqn", root, root)


def expectation(likelihood, y, mean, cov, params):
    """E log p and its derivatives, by cubature."""

    def log_density(eta, which):
        own = {k: v[..., which, None] if v.ndim else v for k, v in params.items()}
        return likelihood.log_density(y[..., which, None], eta, own)

    return gaussian_cubature(log_density, mean, cov)


@over_augmented
def test_joint_over_conditional_is_the_density_at_every_omega(case):
    rng = np.random.default_rng(1)
    likelihood, y, params, eta = spread(case, rng, 60)
    expected = likelihood.log_density(y, eta, params)
    for group, own in enumerate(likelihood.groups):
        # Drawn at other predictors, so that ω is tried where it is unlikely too.
        omega = likelihood.draw_auxiliary(rng, y, eta + rng.normal(size=eta.shape), params, group)
        moved = eta.copy()
        moved[list(own)] = np.nan
        # Sites and base may not depend on the group's own predictors.
        h, lam = likelihood.sites(y, omega, params, moved, group)
        base = likelihood.log_base(y, omega, params, moved, group)
        at = eta[list(own)]
        assert h.shape == at.shape
        joint = log_site(likelihood, h, lam, at) + base
        ratio = joint - likelihood.log_conditional(omega, y, eta, params, group)
        assert ratio.shape == expected.shape
        np.testing.assert_allclose(ratio, expected, rtol=1e-8, atol=1e-8)


def log_site(likelihood, h, lam, eta):
    product = np.einsum("pqn,qn->pn", lam, eta) if likelihood.traits.coupled else lam * eta
    return np.sum(h * eta - 0.5 * eta * product, axis=0)


def ratios(case, group, wrong=1.0):
    """Return z scores of E[p(ω | y, η′)/p(ω | y, η)] = 1 for ω ~ p(ω | y, η), one each η′.

    By the identity above the ratio is that of sites over that of densities.
    """
    rng, size = np.random.default_rng(2), 4000
    likelihood, y, params, eta = spread(case, rng, 3, 0.8)
    many = {k: np.repeat(v, size, axis=-1) if v.ndim else v for k, v in params.items()}
    ys, etas = np.repeat(y, size, axis=-1), np.repeat(eta, size, axis=-1)
    omega = likelihood.draw_auxiliary(rng, ys, wrong * etas, many, group)
    h, lam = likelihood.sites(ys, omega, many, etas, group)
    own = list(likelihood.groups[group])

    def log_conditional(at):
        return log_site(likelihood, h, lam, at[own]) - likelihood.log_density(ys, at, many)

    found = [0.0]
    for _ in range(4 if omega is not None else 0):
        there = etas.copy()
        there[own] += np.repeat(0.4 * rng.normal(size=eta[own].shape), size, axis=-1)
        log_ratio = log_conditional(there) - log_conditional(etas)
        ratio = np.exp(log_ratio).reshape(-1, size)
        # Without trials ω is a constant, and the ratio one.
        std = np.maximum(ratio.std(axis=1), 1e-12)
        found += list((ratio.mean(axis=1) - 1.0) * np.sqrt(size) / std)
    return np.abs(found)


@over_augmented
def test_draws_follow_the_conditional(case):
    for group in range(len(case.build().groups)):
        assert ratios(case, group).max() < 5.0
    if not case.build().has_auxiliary:
        return
    # Negative control: drawn at predictors half as large.
    assert max(ratios(case, g, 0.5).max() for g in range(len(case.build().groups))) > 5.0


def with_bound(case):
    likelihood = case.build()
    return likelihood.can_augment and likelihood.why_no_bound is None


BOUNDED = {name: case for name, case in CASES.items() if with_bound(case)}
over_bounded = pytest.mark.parametrize("case", BOUNDED.values(), ids=BOUNDED)


def variances(likelihood, cov):
    return cov if likelihood.traits.coupled else np.einsum("ppn->pn", cov)


@over_bounded
def test_expected_sites_are_the_derivatives_of_the_bound(case):
    likelihood, y, params, mean, cov = moments(case, np.random.default_rng(3))
    var = variances(likelihood, cov)
    h, lam = likelihood.expected_sites(y, mean, var, params)
    assert h.shape == mean.shape
    assert lam.shape == var.shape

    def slope(d_mean, d_var, step=1e-3):
        def at(t):
            return likelihood.expected_log_bound(y, mean + t * d_mean, var + t * d_var, params)

        return (8.0 * (at(step) - at(-step)) - at(2 * step) + at(-2 * step)) / (12.0 * step)

    close = np.testing.assert_allclose
    weighted = np.einsum("pqn,qn->pn", lam, mean) if likelihood.traits.coupled else lam * mean
    for p, unit in enumerate(np.eye(len(mean))[:, :, None]):
        close(slope(unit, 0.0), (h - weighted)[p], rtol=1e-7, atol=1e-8)
        if not likelihood.traits.coupled:
            close(slope(0.0, unit * var), (-0.5 * lam * var)[p], rtol=1e-6, atol=1e-8)
    if likelihood.traits.coupled:
        toward = np.einsum("pqn->qpn", var) * np.arange(1.0, 1.0 + len(mean))[:, None, None]
        toward = toward + np.einsum("pqn->qpn", toward)
        expected = -0.5 * np.einsum("pqn,pqn->n", lam, toward)
        close(slope(0.0, toward), expected, rtol=1e-6, atol=1e-8)


@over_bounded
def test_bound_is_the_density_at_a_point_and_below_its_expectation(case):
    likelihood, y, params, mean, cov = moments(case, np.random.default_rng(4))
    var = variances(likelihood, cov)
    at_point = likelihood.expected_log_bound(y, mean, 0.0 * var, params)
    np.testing.assert_allclose(at_point, likelihood.log_density(y, mean, params), atol=1e-12)
    # Independent predictors, as the bound of sites with a diagonal Λ takes them.
    if not likelihood.traits.coupled:
        cov = np.einsum("pq,pn->pqn", np.eye(len(mean)), var)
    expected = expectation(likelihood, y, mean, cov, params)[0]
    assert np.all(likelihood.expected_log_bound(y, mean, var, params) <= expected + 1e-9)


@over
def test_expected_log_density_is_the_cubatures(case):
    likelihood, y, params, mean, cov = moments(case, np.random.default_rng(5))
    if not case.smooth:
        return
    found = likelihood.expected_log_density(y, mean, cov, params)
    if found is None:
        return
    for ours, exact in zip(found, expectation(likelihood, y, mean, cov, params), strict=True):
        assert ours.shape == exact.shape
        np.testing.assert_allclose(ours, exact, rtol=1e-7, atol=1e-7)


def classes_of(likelihood):
    return getattr(likelihood, "n_classes", likelihood.n_predictors)


def outcomes(likelihood):
    """Every y with parameters of its own: the classes, or the counts of three trials."""
    if not isinstance(likelihood, Multinomial):
        return [(float(k), {}) for k in range(classes_of(likelihood))]
    rows = [row for row in product(range(4), repeat=3) if sum(row) == 3]
    return [(3.0, {f"entry_{k}": np.array(float(c)) for k, c in enumerate(row)}) for row in rows]


@over
def test_density_is_normalised(case):
    likelihood, _, params, eta = spread(case, np.random.default_rng(6), 1)
    if likelihood.discrete:
        everything = [
            likelihood.log_density(np.full(eta.shape[1], total), eta, {**params, **counts})
            for total, counts in outcomes(likelihood)
        ]
        np.testing.assert_allclose(logsumexp(everything, axis=0), 0.0, atol=1e-12)
        return
    if isinstance(likelihood, MultivariateNormal | MixtureLikelihood):
        return  # their densities are compared with SciPy's below
    t = np.arange(-40.0, 12.0, 0.02)[:, None]
    centre, log_measure = eta[0], t + np.log(0.02)
    both = [
        likelihood.log_density(centre + sign * np.exp(t), eta[:, None], params) + log_measure
        for sign in (-1.0, 1.0)
    ]
    np.testing.assert_allclose(logsumexp(np.concatenate(both), axis=0), 0.0, atol=1e-9)


def test_density_and_moments_of_a_mixture_are_scipys():
    eta, w = np.array([[0.3, -1.0, 2.0], [1.0, 0.5, -2.0]]), np.exp(WEIGHTS)
    kinds = (
        stats.norm(eta[0], MIXED["sigma_0"]), stats.laplace(eta[1], 0.8), stats.t(4.0, 1.5, 3.0)
    )  # fmt: skip
    found = mixture(0, 1, None)
    expected = sum(weight * kind.pdf(REALS) for weight, kind in zip(w, kinds, strict=True))
    np.testing.assert_allclose(np.exp(found.log_density(REALS, eta, MIXED)), expected, rtol=1e-12)
    expected = sum(weight * kind.cdf(REALS) for weight, kind in zip(w, kinds, strict=True))
    np.testing.assert_allclose(found.cdf(REALS, eta, MIXED), expected, rtol=1e-12)
    mean = sum(weight * kind.mean() for weight, kind in zip(w, kinds, strict=True))
    square = sum(w * (kind.var() + kind.mean() ** 2) for w, kind in zip(w, kinds, strict=True))
    np.testing.assert_allclose(found.moments(eta, MIXED), [mean, square - mean**2], rtol=1e-12)


@over
def test_check_accepts_what_can_be_observed(case):
    likelihood = case.build()
    assert likelihood.check(case.y, case.params) is None
    bad = np.array(case.y)
    bad[..., -1] = np.nan
    sentence = likelihood.check(bad, case.params)
    assert sentence is not None
    assert sentence.startswith("expected ")
    assert f"found nan at position {case.y.shape[-1] - 1}" in sentence


@over_augmented
def test_extreme_values_stay_finite(case):
    likelihood, rng = case.build(), np.random.default_rng(7)
    assert isinstance(likelihood, MultiLikelihood)
    P, N = likelihood.n_predictors, case.y.shape[-1]
    for size in (30.0, 300.0):
        for _ in range(5):
            eta = size * rng.choice([-1.0, 0.0, 1.0], size=(P, N))
            assert np.isfinite(likelihood.log_density(case.y, eta, case.params)).all()
            for group in range(len(likelihood.groups)):
                omega = likelihood.draw_auxiliary(rng, case.y, eta, case.params, group)
                h, lam = likelihood.sites(case.y, omega, case.params, eta, group)
                assert np.isfinite(h).all()
                assert np.isfinite(lam).all()
                diagonal = np.einsum("ppn->pn", lam) if likelihood.traits.coupled else lam
                assert (diagonal >= 0.0).all()
            for var in (1e-8, 1e4) if with_bound(case) else ():
                cov = var * np.eye(P)[:, :, None] * np.ones(N)
                own = variances(likelihood, cov)
                h, lam = likelihood.expected_sites(case.y, eta, own, case.params)
                assert np.isfinite(h).all()
                assert np.isfinite(lam).all()
                assert likelihood.traits.coupled or (lam >= 0.0).all()


@pytest.mark.parametrize("reference", [None, 0, 2])
def test_softmax_is_scipys(reference):
    rng = np.random.default_rng(8)
    eta = rng.normal(size=(3 - (reference is not None), 3))
    logits = eta if reference is None else np.insert(eta, reference, 0.0, axis=0)
    p = softmax(logits, axis=0)
    found = Categorical(len(eta), reference).log_density(LABELS, eta, {})
    np.testing.assert_allclose(found, np.log(np.diagonal(p)), rtol=1e-12)
    counts = np.stack([COUNTS[f"entry_{k}"] for k in range(3)])
    found = Multinomial(len(eta), reference).log_density(COUNTS["n"], eta, COUNTS)
    expected = [
        stats.multinomial.logpmf(c, int(c.sum()), q) for c, q in zip(counts.T, p.T, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("multivariate")])
def test_multivariate_densities_are_scipys(name):
    case = CASES[name]
    likelihood = case.build()
    P, N = likelihood.n_predictors, case.y.size
    eta = np.random.default_rng(10).normal(size=(P, N))
    params = {key: np.broadcast_to(value, N) for key, value in case.params.items()}
    found = likelihood.log_density(case.y, eta, case.params)
    for n in range(N):
        at = {key: value[n] for key, value in params.items()}
        cov = [[at[f"cov_{max(i, j)}_{min(i, j)}"] for j in range(P)] for i in range(P)]
        y = [at[f"entry_{p}"] for p in range(P)]
        if isinstance(likelihood, MultivariateStudentT):
            expected = stats.multivariate_t.logpdf(y, eta[:, n], cov, df=at["nu"])
        else:
            expected = stats.multivariate_normal.logpdf(y, eta[:, n], cov)
        np.testing.assert_allclose(found[n], expected, rtol=1e-12)


def test_counts_that_do_not_sum_are_refused():
    likelihood = Multinomial(3)
    sentence = likelihood.check(COUNTS["n"], {**COUNTS, "n": np.array([3.0, 8.0, 0.0])})
    assert sentence == "expected counts that sum to n, found 7 at position 1"
    sentence = likelihood.check(COUNTS["n"], {**COUNTS, "entry_1": np.array([1.0, -4.0, 0.0])})
    assert sentence == "expected non-negative integer counts, found -4 at position 1"
    assert Categorical(3).check(np.array([2.0, 3.0]), {}).startswith("expected a class from 0 to 2")


@pytest.mark.parametrize(
    ("likelihood", "params"),
    [
        (Categorical(6), {}),
        (Categorical(5, reference=2), {}),
        (LogisticSoftmax(3), {}),
        (RobustMax(5), {"epsilon": np.array(0.05)}),
        (RobustMax(2), {"epsilon": np.array(0.05)}),
    ],
    ids=lambda one: type(one).__name__,
)
def test_expected_log_density_of_many_classes(likelihood, params):
    """Its derivatives are its own, and its value is within the error of fixed points."""
    rng, P = np.random.default_rng(9), likelihood.n_predictors
    y = np.array([0.0, 1.0, P - 1.0, P - 1.0])
    mean, root = rng.normal(size=(P, y.size)), rng.normal(size=(P, P, y.size)) / np.sqrt(P)
    by_mean, by_cov = rng.normal(size=mean.shape), rng.normal(size=root.shape)
    by_cov = by_cov + np.swapaxes(by_cov, 0, 1)
    if likelihood.traits.factorises:
        root, by_cov = (np.eye(P)[:, :, None] * part for part in (0.5 + root**2, by_cov))
    cov = np.einsum("pkn,qkn->pqn", root, root)
    value, d_mean, d_cov = likelihood.expected_log_density(y, mean, cov, params)
    z = rng.normal(size=(P, 40_000))
    for i in range(y.size):
        eta = mean[:, i, None] + root[:, :, i] @ z
        draws = likelihood.log_density(np.full(z.shape[1], y[i]), eta, params)
        assert abs(value[i] - draws.mean()) < 3e-3 + 5.0 * draws.std() / np.sqrt(draws.size)

    def at(t):
        return likelihood.expected_log_density(y, mean + t * by_mean, cov + t * by_cov, params)[0]

    slope = (8.0 * (at(1e-4) - at(-1e-4)) - at(2e-4) + at(-2e-4)) / 12e-4
    expected = np.sum(by_mean * d_mean, axis=0) + np.sum(by_cov * d_cov, axis=(0, 1))
    np.testing.assert_allclose(slope, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("case", DIFFERENTIABLE.values(), ids=DIFFERENTIABLE)
def test_gradient_is_the_derivative(case):
    likelihood, y, params, eta = spread(case, np.random.default_rng(3), 4)
    value, gradient = likelihood.log_density_and_gradient(y, eta, params)
    np.testing.assert_allclose(value, likelihood.log_density(y, eta, params), rtol=1e-12)
    for p, step in enumerate(1e-5 * np.eye(len(eta))):
        above, below = (
            likelihood.log_density(y, eta + sign * step[:, None], params) for sign in (1.0, -1.0)
        )
        np.testing.assert_allclose(gradient[p], (above - below) / 2e-5, rtol=1e-6, atol=1e-6)
