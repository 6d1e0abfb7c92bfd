"""Every kind of prior over latents answers as the matrices do that it stands for."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import NotPositiveDefiniteError, RecognitionError
from pymc_augconj.latents.base import BlockPrior
from pymc_augconj.latents.dense import DensePrior, DiagonalPrior, FactorPrior, KroneckerPrior
from pymc_augconj.latents.joint import block_prior, kind_of
from pymc_augconj.latents.precision import IntrinsicPrior, PrecisionPrior
from pymc_augconj.linalg.linear_map import DenseMap, RowSelection


class RandomWalk(BlockPrior):
    """u = std · cumsum(v): no more than the abstract methods, as a new kind would begin."""

    kind = "random walk"

    @classmethod
    def matrix_order(cls, block):
        return 0

    def scale(self, v):
        return self.array * np.cumsum(v, axis=-1)

    def scale_transpose(self, x):
        return self.array * np.cumsum(x[..., ::-1], axis=-1)[..., ::-1]

    def unscale(self, u):
        return np.diff(u, prepend=0.0) / self.array

    def unscale_transpose(self, x):
        return -np.diff(x, append=0.0) / self.array

    def log_det_scale(self):
        return self.block.size * float(np.log(self.array))

    def var(self):
        return self.array**2 * np.arange(1.0, self.block.size + 1.0)

    def pull_cov(self, A, gradient):
        K = self.apply_cov(np.eye(self.block.size))
        return np.array(2.0 * np.sum(gradient.congruence(A) * K) / self.array)

    def pull_design(self, A, G):
        return np.array(np.sum(G * self.whitened_design(A).T) / self.array)


def a_block(
    kind: type[BlockPrior], size: int, copies: int = 1, entries=None, grid=()
) -> LatentBlock:
    return LatentBlock(
        name="u", value_name="u", form="", shape=(copies * size,), size=size, copies=copies,
        whitened=False, kind=kind.kind, scale=None, entries=entries,
        grid=grid,
    )  # fmt: skip


# Of a banded precision matrix, in an order of no meaning.
BAND = np.argwhere(np.abs(np.subtract.outer(np.arange(5), np.arange(5))) <= 2)[::-1].T


def root_of_entries(entries):
    Q = np.zeros((5, 5))
    Q[BAND[0], BAND[1]] = entries
    return np.linalg.cholesky(np.linalg.inv(0.5 * (Q + Q.T)))


# Of a path of five areas: the entries that a weight of each edge adds to B.
PATH = np.argwhere(np.abs(np.subtract.outer(np.arange(5), np.arange(5))) <= 1).T
EDGES = np.array(
    [
        np.outer(edge, edge)[PATH[0], PATH[1]]
        for edge in (np.eye(5)[i] - np.eye(5)[i + 1] for i in range(4))
    ]
)


def root_of_intrinsic(array):
    """From u = x − mean(x) + v₀/(n c) with x₀ = 0, backwards in the order of the areas."""
    B, c = np.zeros((5, 5)), np.sqrt(array[-1])
    B[PATH[0], PATH[1]] = array[:-1]
    S = np.zeros((5, 5))
    S[:4, :4] = np.linalg.inv(np.linalg.cholesky(B[::-1, ::-1][:4, :4])).T
    S -= S.mean(axis=0)
    S[:, 4] = 1.0 / (5.0 * c)
    np.testing.assert_allclose(S[::-1] @ S[::-1].T, np.linalg.inv(B + c**2), atol=1e-9)
    return S[::-1, ::-1]


def root_of_kronecker(array):
    """Of K₁ ⊗ K₂, 2 × 2 and 3 × 3; the upper triangles are not read."""
    parts = (
        np.tril(part.reshape(n, n)) for n, part in zip((2, 3), np.split(array, [4]), strict=True)
    )
    return np.kron(*(np.linalg.cholesky(part) for part in parts))


def cases():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(5, 5))
    K = np.asfortranarray(root @ root.T + 0.1 * np.eye(5))
    std = rng.gamma(2.0, size=5)
    ones = np.tri(5)
    factors = np.concatenate([K[:2, :2].ravel(), K[:3, :3].ravel()])
    walk = np.eye(5) - 0.6 * np.eye(5, k=-1) - 0.2 * np.eye(5, k=-2)
    Q = (walk.T @ np.diag(std) @ walk)[BAND[0], BAND[1]]
    return {
        "dense": (DensePrior(a_block(DensePrior, 5), K), np.linalg.cholesky),
        "copies": (
            DensePrior(a_block(DensePrior, 5, 2), K),
            lambda a: np.kron(np.eye(2), np.linalg.cholesky(a)),
        ),
        "diagonal": (DiagonalPrior(a_block(DiagonalPrior, 5), std), np.diag),
        "factor": (FactorPrior(a_block(FactorPrior, 5), np.linalg.cholesky(K)), lambda a: a),
        "copies of a factor": (
            FactorPrior(a_block(FactorPrior, 5, 2), np.linalg.cholesky(K)),
            lambda a: np.kron(np.eye(2), a),
        ),
        "precision": (PrecisionPrior(a_block(PrecisionPrior, 5, entries=BAND), Q), root_of_entries),
        "intrinsic": (
            IntrinsicPrior(
                a_block(IntrinsicPrior, 5, entries=PATH), np.append(std[:4] @ EDGES, 0.7)
            ),
            root_of_intrinsic,
        ),
        "kronecker": (
            KroneckerPrior(a_block(KroneckerPrior, 6, grid=(2, 3)), factors),
            root_of_kronecker,
        ),
        "random walk": (RandomWalk(a_block(RandomWalk, 5), np.array(0.7)), lambda a: a * ones),
    }


CASES = cases()


def maps(size: int):
    rng = np.random.default_rng(1)
    index = rng.integers(0, size, 7)
    yield RowSelection(np.arange(size), None, size)
    yield RowSelection(index, None, size)
    yield RowSelection(index, rng.normal(size=7), size)
    yield DenseMap(np.asfortranarray(rng.normal(size=(7, size))))
    yield DenseMap(np.asfortranarray(rng.normal(size=(7, size))), rng.normal(size=size))


class Gradient:
    def __init__(self, matrix):
        self.matrix = matrix

    def congruence(self, A):
        return A.dense().T @ self.matrix @ A.dense()

    def congruence_diagonal(self, A):
        return np.diagonal(self.congruence(A))


@pytest.mark.parametrize("name", CASES)
def test_products_are_those_of_the_matrices(name):
    prior, root = CASES[name]
    S = root(prior.array)
    K, size = S @ S.T, len(S)
    rng = np.random.default_rng(2)
    x, X = rng.normal(size=size), rng.normal(size=(3, size))
    close = np.testing.assert_allclose
    close(prior.scale(x), S @ x, rtol=1e-10)
    close(prior.scale(X), X @ S.T, rtol=1e-10)
    close(prior.scale_transpose(x), S.T @ x, rtol=1e-10)
    close(prior.scale_transpose(X), X @ S, rtol=1e-10)
    close(prior.unscale(S @ x), x, rtol=1e-8)
    close(prior.unscale_transpose(X @ S), X, rtol=1e-8)
    close(prior.apply_cov(x), K @ x, rtol=1e-9)
    close(prior.apply_cov(X), X @ K, rtol=1e-9)
    close(prior.var(), np.diagonal(K), rtol=1e-10)
    close(prior.cross_cov(RowSelection(np.arange(size), None, size)), K, rtol=1e-9)
    close(prior.log_det_scale(), np.linalg.slogdet(S)[1], rtol=1e-10)
    density = -0.5 * x @ x - 0.5 * size * np.log(2 * np.pi) - np.linalg.slogdet(S)[1]
    close(prior.log_density(x), density, rtol=1e-10)
    if prior.diagonal_scale is not None:
        close(np.diag(prior.diagonal_scale), S)
    for A in maps(size):
        dense = A.dense()
        close(prior.whitened_design(A), dense @ S, rtol=1e-9, atol=1e-12)
        close(prior.predictor_cov(A), dense @ K @ dense.T, rtol=1e-9, atol=1e-12)
        close(prior.cross_cov(A), K @ dense.T, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_derivatives_are_those_of_the_matrices(name):
    prior, root = CASES[name]
    rng = np.random.default_rng(3)
    for A in maps(prior.block.total_size):
        dense = A.dense()
        G = rng.normal(size=(len(dense), len(dense)))
        G = G + G.T
        H = rng.normal(size=(prior.block.total_size, len(dense)))

        def of_cov(array, dense=dense, G=G):
            half = dense @ root(array)
            return np.sum(G * (half @ half.T))

        def of_design(array, dense=dense, H=H):
            return np.sum(H * (dense @ root(array)).T)

        found = prior.pull_cov(A, Gradient(G)), prior.pull_design(A, H)
        for function, derivative in zip((of_cov, of_design), found, strict=True):
            direction = rng.normal(size=np.shape(prior.array))
            if isinstance(prior, IntrinsicPrior):
                direction = np.append(direction[:4] @ EDGES, direction[-1])
            if isinstance(prior, KroneckerPrior):
                parts = np.split(direction, [4])
                pairs = [(p.reshape(n, n), n) for p, n in zip(parts, (2, 3), strict=True)]
                direction = np.concatenate([(p + p.T).ravel() for p, _ in pairs])
            if direction.ndim == 2:
                is_factor = isinstance(prior, FactorPrior)
                direction = np.tril(direction) if is_factor else direction + direction.T
            step = 1e-6
            change = function(prior.array + step * direction)
            change = (change - function(prior.array - step * direction)) / (2 * step)
            np.testing.assert_allclose(np.sum(derivative * direction), change, rtol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_maps_of_rows_are_matrices_too(name):
    size = CASES[name][0].block.total_size
    rng = np.random.default_rng(4)
    for A in maps(size):
        dense = A.dense()
        M, u, w = (rng.normal(size=s) for s in ((len(dense),) * 2, (3, size), (3, len(dense))))
        np.testing.assert_allclose(A.congruence(M), dense.T @ M @ dense, atol=1e-12)
        np.testing.assert_allclose(A.apply(u), u @ dense.T, atol=1e-12)
        np.testing.assert_allclose(A.apply_transpose(w), w @ dense, atol=1e-12)


def test_kinds_are_found_by_name():
    for kind in (DensePrior, DiagonalPrior, FactorPrior, PrecisionPrior, IntrinsicPrior):
        assert kind_of(a_block(kind, 3)) is kind
    with pytest.raises(NotPositiveDefiniteError, match="standard deviations of 'u'"):
        block_prior(a_block(DiagonalPrior, 2), np.array([1.0, -1.0]))
    with pytest.raises(NotPositiveDefiniteError, match="standard deviations of 'u'"):
        block_prior(a_block(DiagonalPrior, 2), np.array([1.0, np.nan]))
    block = a_block(PrecisionPrior, 2, entries=np.array([[0, 1, 0, 1], [0, 1, 1, 0]]))
    with pytest.raises(NotPositiveDefiniteError, match="prior precision of 'u'"):
        block_prior(block, np.array([1.0, 1.0, 2.0, 2.0]))


def test_small_steps_of_a_walk_keep_their_digits():
    """K = 1 + 1e-12 min(i, j): its own factor would have lost half of the steps' digits."""
    size, step = 100, 1e-6
    D = (np.eye(size) - np.eye(size, k=-1)) / step
    D[0] *= step
    Q = D.T @ D
    entries = np.array(np.nonzero(Q))
    prior = block_prior(a_block(PrecisionPrior, size, entries=entries), Q[tuple(entries)])
    S = prior.scale(np.eye(size)).T
    # The start is known from Q to 1e-16 of 1/step², so to four digits; the steps are not hurt.
    np.testing.assert_allclose(np.diff(S, axis=0)[:, 1:], step * np.eye(size)[1:, 1:], atol=1e-15)


@pytest.mark.parametrize(
    "array", [np.r_[1.0, 1.0, -0.9, -1.0, 2.0], np.r_[1.0, 1.0, -1.0, -1.0, 0.0]]
)
def test_what_is_no_intrinsic_precision_is_refused(array):
    block = a_block(IntrinsicPrior, 2, entries=np.array([[0, 1, 0, 1], [0, 1, 1, 0]]))
    with pytest.raises(NotPositiveDefiniteError, match=r"prior precision of 'u'.*sum to zero"):
        block_prior(block, array)


# LLᵀ is singular to working precision: rounded, it has no Cholesky factor or a wrong one.
ILL_CONDITIONED = np.array([[1.0, 0.0, 0.0], [3.0, 1e-9, 0.0], [-2.0, 5e-10, 2e-10]])


def test_a_given_factor_keeps_its_digits():
    prior = block_prior(a_block(FactorPrior, 3), ILL_CONDITIONED)
    assert prior.factorized() is prior
    assert prior.jitter == 0.0
    v = np.array([30.0, -20.0, 15.0])
    # A solve is exact for a factor off by rounding: some units in the last place of every entry.
    np.testing.assert_allclose(prior.scale(prior.unscale(v)), v, rtol=1e-14)
    np.testing.assert_allclose(prior.unscale(ILL_CONDITIONED[:, 2]), [0.0, 0.0, 1.0], atol=1e-14)
    assert prior.log_det_scale() == pytest.approx(np.log(2e-19), rel=1e-14)
    rounded = block_prior(a_block(DensePrior, 3), ILL_CONDITIONED @ ILL_CONDITIONED.T)
    assert rounded.factorized().jitter > 0.0


def test_what_is_no_cholesky_factor_is_refused():
    block = a_block(FactorPrior, 2)
    for last, found in ((0.0, "zero diagonal"), (np.nan, "NaN")):
        with pytest.raises(NotPositiveDefiniteError, match=rf"factor of .*'u'.*{found}"):
            block_prior(block, np.array([[1.0, 0.0], [2.0, last]]))
    with pytest.raises(RecognitionError, match=r"factor of .*'u'.*positive diagonal.*-1"):
        block_prior(block, np.array([[1.0, 0.0], [2.0, -1.0]]))
    with pytest.raises(RecognitionError, match=r"lower triangular.*0\.3 at \[0, 1\].*tril"):
        block_prior(block, np.array([[1.0, 0.3], [2.0, 1.0]]))
