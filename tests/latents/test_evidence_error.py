"""A log evidence knows its rounding error: against 60 digits, over conditions from 1 to 1e18."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import mpmath
import numpy as np
import pytest

from pymc_augconj.block import LatentBlock
from pymc_augconj.engines.gibbs.moves.latents import check_log_evidence
from pymc_augconj.errors import (
    AugmentationError,
    NotPositiveDefiniteError,
    UncertainEvidenceError,
)
from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.latents.by_observations import ObservationSolver
from pymc_augconj.latents.by_precision import PrecisionSolver
from pymc_augconj.latents.by_weights import WeightSolver
from pymc_augconj.latents.choice import CertifiedSolver
from pymc_augconj.latents.joint import LatentPrior, block_prior
from pymc_augconj.latents.rows import MergedSites, RowGroups, SiteSum
from pymc_augconj.linalg.dense import LARGEST_ERROR, SMALL_ERROR
from pymc_augconj.linalg.linear_map import DenseMap, RowSelection

N_PROBLEMS = 40
RNG = np.random.default_rng(5)
KINDS = ("process", "wide intercept", "walk", "autoregression", "columns", "correlated")


def block(name, kind, array, entries=None, size=None):
    size = len(array) if size is None else size
    record = LatentBlock(
        name=name, value_name=name, form="", shape=(size,), size=size, copies=1, whitened=False,
        kind=kind, scale=None, entries=entries,
    )  # fmt: skip
    return block_prior(record, array)


def power(rng, low, high):
    return 10.0 ** rng.uniform(low, high)


def process(rng, n):
    X = np.sort(rng.uniform(0.0, 10.0, n))
    r = np.abs(np.subtract.outer(X, X)) / power(rng, -1.5, 1.5)
    root = np.sqrt(3.0) * r
    K = power(rng, -3, 3) * (
        np.exp(-(r**2) / 2) if rng.random() < 0.5 else (1 + root) * np.exp(-root)
    )
    K[np.diag_indices(n)] += 1e-6 * K[0, 0] * (rng.random() < 0.7)
    return block("f", "dense", K), RowSelection(np.arange(n), None, n)


def tridiagonal(diagonal, below):
    n = len(diagonal)
    at, next_ = np.arange(n), np.arange(n - 1)
    entries = np.hstack([[at, at], [next_ + 1, next_], [next_, next_ + 1]])
    array = np.concatenate([diagonal, below, below])
    return block("w", "precision", array, entries, n), RowSelection(at, None, n)


def autoregression(rng, n, rho):
    steps, first = power(rng, -6, 6), power(rng, -9, 9) if rho == 1.0 else 1.0
    if rho != 1.0:
        steps = 1.0
    diagonal = np.full(n, (1.0 + rho**2) / steps**2)
    diagonal[0] = rho**2 / steps**2 + first**-2
    diagonal[-1] = steps**-2
    return tridiagonal(diagonal, np.full(n - 1, -rho / steps**2))


def problem(kind, seed):
    """Return the prior, the sites and the ways of conditioning of one problem."""
    rng = np.random.default_rng([KINDS.index(kind), seed])
    n = int(rng.integers(5, 13))
    parts = []
    if kind in ("process", "wide intercept"):
        parts.append(process(rng, n))
    if kind == "wide intercept":
        parts.append(
            (block("b", "diagonal", np.array([power(rng, 0, 12)])), DenseMap(np.ones((n, 1))))
        )
    if kind == "walk":
        parts.append(autoregression(rng, n, 1.0))
    if kind == "autoregression":
        n = int(rng.integers(10, 31))
        parts.append(autoregression(rng, n, rng.uniform(0.2, 3.0)))
    if kind == "columns":
        X = rng.normal(size=(n, 3))
        X[:, 2] = X[:, 1] + power(rng, -10, 0) * X[:, 2]
        parts.append((block("b", "diagonal", np.full(3, power(rng, -2, 8))), DenseMap(X)))
    if kind == "correlated":
        scales, rho = 10.0 ** rng.uniform(0, 9, 2), 1.0 - power(rng, -9, 0)
        K = np.multiply.outer(scales, scales) * np.array([[1.0, rho], [rho, 1.0]])
        X = np.stack([np.ones(n), power(rng, -4, 4) * rng.normal(size=n)], axis=1)
        parts.append((block("w", "dense", K), DenseMap(X)))
    lam = power(rng, -4, 14 if kind == "process" else 8) * rng.uniform(0.3, 3.0, n)
    h = lam * rng.normal(size=n) * np.sqrt(1.0 + 1.0 / lam.min())
    blocks, maps = zip(*parts, strict=True)
    prior = LatentPrior(np.zeros(n), blocks, maps, maps)
    coupling = Coupling(n)
    structured = [PrecisionSolver] * (kind in ("walk", "autoregression"))
    given = [b.block for b in blocks], RowGroups.apart(n, coupling, maps)
    ways = [partial(S, *given) for S in (ObservationSolver, *structured, WeightSolver)]
    return prior, SiteSum((MergedSites(h, lam, 0.0),)), ways


def exact(prior, sites, z=None):
    """Return log ∫ exp(hᵀη − ½ ηᵀΛη) p(η) dη with 60 digits, given the numbers as they are.

    Of sites exp(−½ λ (η − z)²) where z is given. None where they are no prior: what rounding makes
    of K or Q need not be positive definite.
    """
    relative = z is None
    with mpmath.workdps(90):
        number = np.vectorize(mpmath.mpf, otypes=[object])
        n = sites.h.size
        C = number(np.zeros((n, n)))
        for b, A in zip(prior.blocks, prior.maps, strict=True):
            if b.kind == "precision":
                Q = number(np.zeros((n, n)))
                Q[tuple(b.block.entries)] = number(b.array)
                K = np.array((mpmath.matrix(Q.tolist()) ** -1).tolist(), dtype=object)
            else:
                K = number(b.array) if b.kind == "dense" else np.diag(number(b.array) ** 2)
            D = number(A.dense())
            C = C + D @ K @ D.T
        lam = number(sites.lam)
        h = number(sites.h) if z is None else lam * (number(z) - number(prior.offset))
        C = C + np.diag(1 / lam)
        try:
            L = mpmath.cholesky(mpmath.matrix(C.tolist()))
        except ValueError:
            return None
        half = mpmath.lu_solve(L, mpmath.matrix((h / lam).tolist()))
        log_det = sum(2 * mpmath.log(L[i, i]) + mpmath.log(lam[i]) for i in range(n))
        square = sum(h**2 / lam) if relative else 0
        return (square - sum(v**2 for v in half) - log_det) / 2


@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_known(kind):
    """Where an error is above SMALL_ERROR its estimate is, and hopeless ones are refused."""
    wrong = harmless = taken = 0
    for seed in range(N_PROBLEMS):
        try:
            prior, sites, ways = problem(kind, seed)
        except NotPositiveDefiniteError:
            wrong += 1
            continue
        expected = exact(prior, sites)
        if expected is None:
            continue
        for make in ways:
            try:
                posterior = make().posterior(prior, sites)
            except NotPositiveDefiniteError:
                wrong += 1
                continue
            error = abs(float(mpmath.mpf(posterior.log_normalizer) - expected))
            if error > SMALL_ERROR:
                wrong += 1
                assert posterior.error > SMALL_ERROR, (seed, make, error, posterior.error)
            harmless += posterior.error <= SMALL_ERROR
        try:
            found = CertifiedSolver(ways).posterior(prior, sites)
        except NotPositiveDefiniteError:
            continue
        taken += 1
        error = abs(float(mpmath.mpf(found.log_normalizer) - expected))
        assert error <= (SMALL_ERROR if found.error <= SMALL_ERROR else LARGEST_ERROR)
    # The problems are hard ones, and most of them are solved all the same.
    assert wrong >= 3
    assert harmless >= N_PROBLEMS
    assert taken >= 0.6 * N_PROBLEMS


def sites_about(z, lam, groups, offset):
    """Return sites exp(−½ λ (η − z)²) relative to an offset."""
    return SiteSum((groups.merge(np.zeros(z.size), lam, offset - z),))


@pytest.mark.parametrize("kind", KINDS)
def test_data_far_from_zero(kind):
    """Constants that cancel against the evidence leave digits where the joint density has some."""
    found = {True: 0, False: 0}
    for seed in range(N_PROBLEMS // 2):
        try:
            prior, sites, ways = problem(kind, seed)
            prior = prior.factorized()  # with the jitter of chol(K), if any
        except NotPositiveDefiniteError:
            continue
        rng = np.random.default_rng([seed, 9])
        n, noise = sites.lam.size, 1.0 / np.sqrt(sites.lam)
        away = noise.max() * power(rng, 2, 9) * rng.choice([-1.0, 1.0])
        z = away + sites.h / sites.lam
        if rng.random() < 0.5 and kind != "wide intercept":
            # Where a known mean is as large.
            prior = LatentPrior(np.full(n, away), prior.blocks, prior.maps, prior.maps)
        groups = RowGroups.apart(n)
        expected = exact(prior, sites, z)
        if expected is None or expected < -1e8:  # where no chain goes
            continue
        for knows in (True, False):
            about = partial(sites_about, z, sites.lam, groups)
            relative = replace(about(prior.offset), about=about if knows else None)
            for make in ways:
                try:
                    posterior = make().posterior(prior, relative)
                except NotPositiveDefiniteError:
                    continue
                error = abs(float(mpmath.mpf(posterior.log_normalizer) - expected))
                if error > SMALL_ERROR:
                    assert posterior.error > SMALL_ERROR, (seed, make, error, posterior.error)
            try:
                taken = CertifiedSolver(ways).posterior(prior, relative)
            except NotPositiveDefiniteError:
                continue
            error = abs(float(mpmath.mpf(taken.log_normalizer) - expected))
            assert error <= (SMALL_ERROR if taken.error <= SMALL_ERROR else LARGEST_ERROR)
            found[knows] += taken.error <= SMALL_ERROR
    assert found[True] >= found[False] + (5 if kind == "wide intercept" else 0), found


def loss(prior, sites, posterior):
    """Return half the squared distance of a mean from the right one, in standard deviations."""
    (at,), (A,) = prior.blocks, prior.maps
    K = at.array if at.kind == "dense" else np.diag(at.array**2)
    u = posterior.innovations(posterior.latent_mean)[0]
    with mpmath.workdps(60):
        design = mpmath.matrix(A.dense().tolist())
        weighted = design.T * mpmath.diag(sites.lam.tolist())
        M = mpmath.matrix(K.tolist()) ** -1 + weighted * design
        away = M * mpmath.matrix(u.tolist()) - design.T * mpmath.matrix(sites.h.tolist())
        return float((away.T * mpmath.lu_solve(M, away))[0] / 2)


@pytest.mark.parametrize("kind", ["columns", "correlated"])
def test_draws_have_the_mean(kind):
    """A factor with digits may leave a mean far from zero none, along nearly equal columns."""
    wrong = taken = 0
    for seed in range(N_PROBLEMS):
        prior, sites, ways = problem(kind, seed)
        (at,), (A,) = prior.blocks, prior.maps
        rng, X = np.random.default_rng([seed, 9]), A.dense()
        truth = at.scale(rng.normal(size=X.shape[1]))
        h = sites.lam * (X @ truth) + np.sqrt(sites.lam) * rng.normal(size=len(X))
        sites = SiteSum((MergedSites(h, sites.lam, 0.0),))
        try:
            wrong += loss(prior, sites, ways[-1]().posterior(prior, sites)) > SMALL_ERROR
            found = CertifiedSolver(ways).posterior(prior, sites, for_draws=True)
        except NotPositiveDefiniteError:
            continue
        taken += 1
        allowed = SMALL_ERROR if found.factor_error <= SMALL_ERROR else LARGEST_ERROR
        assert loss(prior, sites, found) <= allowed
    assert wrong >= 1
    assert taken >= 0.6 * N_PROBLEMS


def test_hopeless_evidence_is_refused():
    prior, _, ways = problem("process", 1)
    n = prior.offset.size
    sites = SiteSum((MergedSites(np.full(n, 1e22), np.full(n, 1e20), 0.0),))
    with pytest.raises(UncertainEvidenceError, match=r"latent variables 'f': .*similar scales"):
        CertifiedSolver(ways).posterior(prior, sites)


@pytest.mark.parametrize("kind", ["process", "walk", "columns"])
def test_another_factorisation_agrees(kind):
    """The check of a chain passes what is right, at any latents, and stops what is not."""
    stopped = 0
    for seed in range(20):
        try:
            prior, sites, ways = problem(kind, seed)
            posterior = CertifiedSolver(ways).posterior(prior, sites)
        except NotPositiveDefiniteError:
            continue
        v = posterior.whitened(posterior.apply(RNG.standard_normal(posterior.size)))
        check = partial(check_log_evidence, prior, sites, Coupling(sites.h.size), v)
        check(posterior.log_normalizer)
        try:
            check(posterior.log_normalizer + 0.5)
        except AugmentationError as error:
            stopped += repr(prior.blocks[0].block.name) in str(error)
    assert stopped >= 5  # of the others this check knows no digits itself


def test_another_factorisation_knows_its_own_digits():
    """Of a wide slope of large inputs one row in three tells nearly all, and the others differ."""
    X = DenseMap(np.array([[1.0, -25083.0], [1.0, 179060.0], [1.0, -233940.0]], order="F"))
    b = block("b", "dense", 1447.0**2 * np.array([[1.0, -0.53], [-0.53, 1.28]]))
    prior, lam = LatentPrior(np.zeros(3), (b,), (X,), (X,)), np.array([4.3e-8, 1.2e-5, 8.6e-9])
    for seed in range(10):
        rng = np.random.default_rng(seed)
        h = np.array([2.1, -4262.0, 4.0]) * (1.0 + 0.1 * rng.standard_normal(3))
        sites = SiteSum((MergedSites(h, lam, 0.0),))
        D = prior.whitened_product(np.eye(2))
        M = np.eye(2) + (D * lam) @ D.T
        root = np.linalg.cholesky(M)
        v = np.linalg.solve(M, D @ h) + np.linalg.solve(root.T, rng.standard_normal(2))
        check_log_evidence(prior, sites, Coupling(3), v, float(exact(prior, sites)))


@pytest.mark.parametrize(("between", "changes"), [(100, True), (1000, False)])
def test_values_refused_between_settlements_add_up(between, changes):
    """Few values without digits in every window of tuning are many in all of tuning."""
    far = next(
        found
        for found in (problem("autoregression", seed) for seed in range(100))
        if not found[2][0]().posterior(*found[:2]).error <= LARGEST_ERROR
        and found[2][1]().posterior(*found[:2]).error <= SMALL_ERROR
    )
    n = far[0].offset.size
    near = far[0], SiteSum((MergedSites(np.zeros(n), np.zeros(n), 0.0),))
    solver = CertifiedSolver(far[2])
    for _ in range(3):
        for _ in range(2):
            with pytest.raises(UncertainEvidenceError):
                solver.posterior(*far[:2], alone=True)
        for _ in range(between):
            solver.posterior(*near, alone=True)
        solver.posterior(*near, settle=True)
    assert (type(solver.preferred) is PrecisionSolver) == changes
