"""Flat and wide coefficients in every solver, against 50 digits of the joint precision."""

from __future__ import annotations

from functools import cache

import mpmath
import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_augconj.block import LatentBlock
from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.latents.by_gram import GramPattern, GramSolver
from pymc_augconj.latents.choice import SOLVERS
from pymc_augconj.latents.dense import FLAT_STD
from pymc_augconj.latents.joint import LatentPrior, block_prior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.linalg.linear_map import CopiesMap, DenseMap, RowSelection

N = 16
RNG = np.random.default_rng(3)
X = np.column_stack([np.ones(N), 3.0 + RNG.normal(size=N)])
INPUTS = np.sort(RNG.uniform(0.0, 6.0, N))
# Digits that 1e-10 leaves to rounding: the numbers compared are of the order one.
TOLERANCE = 1e-10


def block(name, kind, array, size, entries=None):
    record = LatentBlock(
        name=name, value_name=name, form="", shape=(size,), size=size, copies=1, whitened=False,
        kind=kind, scale=None, entries=entries, is_flat=name == "flat",
    )  # fmt: skip
    return block_prior(record, array)


def coefficients(std):
    name = "flat" if std == np.inf else "wide"
    stds = np.full(2, FLAT_STD if std == np.inf else std)
    return block(name, "diagonal", stds, 2), DenseMap(X)


def process():
    r = np.sqrt(5.0) * np.abs(np.subtract.outer(INPUTS, INPUTS))
    K = (1.0 + r + r**2 / 3.0) * np.exp(-r)
    K[np.diag_indices(N)] += 1e-6
    return block("f", "dense", np.asfortranarray(K), N), RowSelection(np.arange(N), None, N)


def walk():
    at, next_ = np.arange(N), np.arange(N - 1)
    entries = np.hstack([[at, at], [next_ + 1, next_], [next_, next_ + 1]])
    diagonal = np.where(at < N - 1, 9.0, 5.0)
    array = np.concatenate([diagonal, np.full(2 * N - 2, -4.0)])
    return block("w", "precision", array, N, entries), RowSelection(at, None, N)


def effects():
    return block("e", "diagonal", np.full(4, 0.7), 4), RowSelection(np.arange(N) % 4, None, 4)


def outputs():
    B = np.column_stack([np.sin(INPUTS), np.cos(INPUTS), INPUTS])
    A = CopiesMap(B[: N // 2], np.arange(N) % (N // 2), np.arange(N) // (N // 2), None, 2)
    return block("o", "standard", np.ones(6), 6), A


BESIDE = {"process": process, "walk": walk, "effects": effects, "outputs": outputs, "": None}
CASES = [
    ("process", "observation"),
    ("process", "weight"),
    ("walk", "precision"),
    ("walk", "observation"),
    ("walk", "weight"),
    ("effects", "weight"),
    ("effects", "observation"),
    ("outputs", "copies"),
    ("", "weight"),
]
STDS = (1.0, 1e12, np.inf)


def problem(beside, std, *, signed=False):
    parts = [coefficients(std)] if not beside else [BESIDE[beside](), coefficients(std)]
    blocks, maps = zip(*parts, strict=True)
    rng = np.random.default_rng(7)
    lam = rng.uniform(0.5, 2.0, N)
    if signed:
        lam[[2, 11]] = -0.1
    offset = rng.normal(size=N)
    prior = LatentPrior(offset, blocks, maps, maps).factorized()
    return prior, RowGroups.apart(N, Coupling(N), maps), rng.normal(size=N) + 2.0, lam


class Reference:
    """The posterior of all latents from their joint precision, with 50 digits."""

    def __init__(self, prior, h, lam):
        with mpmath.workdps(80):
            exact = np.vectorize(mpmath.mpf, otypes=[object])
            A = exact(np.hstack([A.dense() for A in prior.maps]))
            D = A.shape[1]
            Q, log_det, start = mpmath.zeros(D), mpmath.mpf(0), 0
            for b in prior.blocks:
                size = b.block.total_size
                own, log = self.precision(b)
                for i in range(size):
                    for j in range(size):
                        Q[start + i, start + j] = own[i, j]
                start, log_det = start + size, log_det + log
            h, lam, offset = exact(h), exact(lam), exact(prior.offset)
            r = h - lam * offset
            M = Q + mpmath.matrix((A.T @ (lam[:, None] * A)).tolist())
            S, b = M**-1, mpmath.matrix((A.T @ r).tolist())
            mean = S * b
            constant = (h * offset - lam * offset**2 / 2).sum()
            log_Z = constant + ((b.T * mean)[0] + log_det - mpmath.log(mpmath.det(M))) / 2
            self.log_Z = float(log_Z)
            self.innovations = np.array(mean.tolist(), dtype=float).ravel()
            self.cov = np.array(S.tolist(), dtype=float)
            S, mean = np.array(S.tolist()), np.array(mean.tolist()).ravel()
            half = A @ S
            self.mean = (offset + A @ mean).astype(float)
            self.var = (half * A).sum(axis=1).astype(float)
            self.weighted = (lam[:, None] * half).astype(float)

    @staticmethod
    def precision(b):
        """Return Q and log|Q|; for flat ones zero, and what integrating the density one adds."""
        size = b.block.total_size
        if b.block.is_flat:
            return mpmath.zeros(size), size * mpmath.log(2 * mpmath.pi)
        if b.block.kind == "precision":
            own = mpmath.matrix(size)
            for (i, j), value in zip(b.block.entries.T, b.array, strict=True):
                own[int(i), int(j)] = mpmath.mpf(float(value))
        elif b.block.kind == "dense":
            own = mpmath.matrix(b.array.tolist()) ** -1
        else:
            own = mpmath.diag([mpmath.mpf(float(s)) ** -2 for s in b.diagonal_scale])
        return own, mpmath.log(mpmath.det(own))


def posterior_of(name, prior, groups, h, lam):
    if name == "gram":
        solver = GramSolver(groups, GramPattern(prior.maps))
    else:
        solver = SOLVERS[name]([b.block for b in prior.blocks], groups)
    return solver.posterior(prior, groups.sites(h, lam, prior.offset))


@cache
def reference(beside, std, *, signed=False):
    prior, _, h, lam = problem(beside, std, signed=signed)
    return Reference(prior, h, lam)


@pytest.mark.parametrize("std", STDS)
@pytest.mark.parametrize(("beside", "space"), CASES)
def test_posterior(beside, space, std):
    prior, groups, h, lam = problem(beside, std)
    posterior, exact = posterior_of(space, prior, groups, h, lam), reference(beside, std)
    assert_allclose(posterior.log_normalizer, exact.log_Z, rtol=0, atol=TOLERANCE)
    assert_moments(posterior, exact)
    expected = float(h @ exact.mean - 0.5 * lam @ (exact.var + exact.mean**2))
    assert_allclose(posterior.divergence, expected - exact.log_Z, rtol=0, atol=1e-9)


@pytest.mark.parametrize("std", STDS)
@pytest.mark.parametrize("case", [("process", "observation"), ("process", "weight")])
def test_posterior_with_negative_precisions(case, std):
    prior, groups, h, lam = problem(case[0], std, signed=True)
    posterior, exact = (
        posterior_of(case[1], prior, groups, h, lam),
        reference(case[0], std, signed=True),
    )
    assert_allclose(posterior.log_normalizer, exact.log_Z, rtol=0, atol=TOLERANCE)
    assert_moments(posterior, exact)


def assert_moments(posterior, exact):
    close = {"rtol": 1e-9, "atol": TOLERANCE}
    assert_allclose(posterior.mean, exact.mean, **close)
    assert_allclose(posterior.var, exact.var, **close)
    sizes = [b.block.total_size for b in posterior.prior.blocks]
    stops = np.cumsum(sizes)
    parts = [slice(stop - size, stop) for size, stop in zip(sizes, stops, strict=True)]
    for i, own in enumerate(parts):
        assert_allclose(posterior.innovation_means()[i], exact.innovations[own], **close)
        assert_allclose(posterior.innovation_var(i), np.diag(exact.cov)[own], **close)
        assert_allclose(posterior.weighted_cov(i), exact.weighted[:, own], **close)
        for j, other in enumerate(parts):
            assert_allclose(posterior.innovation_cov(i, j), exact.cov[own, other], **close)


@pytest.mark.parametrize("signed", [True, False])
def test_draws_of_a_posterior(signed):
    prior, groups, h, lam = problem("process", np.inf, signed=signed)
    posterior = posterior_of("observation", prior, groups, h, lam)
    exact = reference("process", np.inf, signed=signed)
    count = 20_000
    draws = posterior.draw(np.random.default_rng(1), count)
    u = np.hstack([b.scale(v) for b, v in zip(prior.blocks, draws, strict=True)])
    z = np.linalg.solve(np.linalg.cholesky(exact.cov), (u - exact.innovations).T)
    # Independent draws, so five Monte Carlo standard errors.
    assert np.abs(z.mean(axis=1)).max() < 5.0 / np.sqrt(count)
    assert np.abs(np.cov(z) - np.eye(len(z))).max() < 5.0 * np.sqrt(2.0 / count)


@pytest.mark.parametrize("std", STDS)
@pytest.mark.parametrize(
    ("beside", "space"), [*CASES, ("effects", "gram"), ("", "gram"), ("", "observation")]
)
def test_affine_map(beside, space, std):
    prior, groups, h, lam = problem(beside, std)
    exact = reference(beside, std)
    posterior = posterior_of(space, prior, groups, h, lam)
    assert_allclose(posterior.log_normalizer, exact.log_Z, rtol=0, atol=TOLERANCE)

    def latents(nu):
        return np.hstack(posterior.innovations(posterior.apply(nu)))

    origin = latents(np.zeros(posterior.size))
    close = {"rtol": 1e-9, "atol": TOLERANCE}
    assert_allclose(origin, exact.innovations, **close)
    mean = np.hstack(posterior.innovations(posterior.latent_mean))
    assert_allclose(mean, exact.innovations, **close)
    units = np.eye(posterior.size)
    linear = np.array([latents(unit) for unit in units]) - origin
    assert_allclose(linear.T @ linear, exact.cov, **close)
    assert_allclose(latents(units[:3]), linear[:3] + origin, **close)
    # ν given x, and derivatives.
    x = posterior.apply(RNG.normal(size=posterior.size))
    nu = posterior.solve(np.random.default_rng(2), x)
    assert_allclose(posterior.apply(nu), x, rtol=1e-9, atol=0)
    if posterior.differentiable:
        slopes = [RNG.normal(size=b.block.total_size) for b in prior.blocks]
        by_u = linear @ np.concatenate(slopes)
        pulled = posterior.pull(posterior.innovations_transpose(slopes))
        assert_allclose(pulled, by_u, **close)
