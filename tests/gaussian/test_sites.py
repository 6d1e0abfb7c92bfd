"""Stacked sites of several predictors: the algebra is that of the matrices they stand for."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_augconj.gaussian.sites import Coupling, Rotation, SiteLayout


def random_sites(seed: int = 0):
    """Sites of three variables: one predictor, two coupled ones, three coupled ones."""
    rng = np.random.default_rng(seed)
    shapes = [(1, 4), (2, 3), (3, 2)]
    layout = SiteLayout(shapes, [False, True, True])
    precisions = []
    for P, N in shapes:
        root = rng.normal(size=(P, P, N))
        block = root + np.swapaxes(root, 0, 1)
        precisions.append(block[0] if P == 1 else block)
    h = [rng.normal(size=shape) for shape in shapes]
    return layout, h, precisions


def dense(layout, precisions):
    Lam = np.zeros((layout.coupling.n_rows,) * 2)
    for span, block in zip(layout.spans, precisions, strict=True):
        P, N = span.shape
        block = block if block.ndim == 3 else np.array([[block[0]]])
        for p in range(P):
            for q in range(P):
                for i in range(N):
                    start = span.rows.start
                    Lam[start + p * N + i, start + q * N + i] = block[p, q, i]
    return Lam


def test_stacking_and_taking_apart():
    layout, h, precisions = random_sites()
    lam = layout.stack_precisions(precisions)
    assert lam.size == layout.coupling.size == 16 + 3 + 3 * 2
    for found, expected in zip(layout.precisions(lam), precisions, strict=True):
        np.testing.assert_array_equal(found, expected)
    stacked = layout.stack_rows(h)
    for found, expected in zip(layout.rows(stacked), h, strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.base is not None


def test_products_are_those_of_the_matrix():
    layout, h, precisions = random_sites()
    coupling, Lam = layout.coupling, dense(layout, precisions)
    lam, x = layout.stack_precisions(precisions), layout.stack_rows(h)
    np.testing.assert_allclose(coupling.product(lam, x), Lam @ x, rtol=1e-12)
    root = np.random.default_rng(1).normal(size=Lam.shape)
    cov = root @ root.T
    at = (
        np.concatenate([np.arange(len(cov)), coupling.first]),
        np.concatenate([np.arange(len(cov)), coupling.second]),
    )
    np.testing.assert_allclose(coupling.trace(lam, cov[at]), np.trace(Lam @ cov), rtol=1e-12)
    blocks = np.where(dense(layout, [np.ones_like(block) for block in precisions]), cov, 0.0)
    expected = np.trace(Lam @ blocks @ Lam @ blocks)
    np.testing.assert_allclose(coupling.squared_norm(lam, cov[at]), expected, rtol=1e-12)


def test_rotations_make_the_precision_diagonal():
    layout, h, precisions = random_sites()
    coupling, Lam = layout.coupling, dense(layout, precisions)
    values, rotation = coupling.diagonalize(layout.stack_precisions(precisions))
    np.testing.assert_allclose(rotation.congruence(Lam), np.diag(values), atol=1e-12)
    np.testing.assert_allclose(rotation.congruence_back(np.diag(values)), Lam, atol=1e-12)
    x = np.stack([layout.stack_rows(h)] * 2)
    np.testing.assert_allclose(rotation.back(rotation.forward(x)), x, atol=1e-12)
    np.testing.assert_allclose(np.sum(rotation.forward(x) ** 2), np.sum(x**2), rtol=1e-12)


def test_negative_eigenvalues_are_cut():
    layout, _, precisions = random_sites()
    lam = layout.coupling.nonnegative(layout.stack_precisions(precisions))
    values, vectors = np.linalg.eigh(dense(layout, precisions))
    expected = (vectors * np.maximum(values, 0.0)) @ vectors.T
    np.testing.assert_allclose(dense(layout, layout.precisions(lam)), expected, atol=1e-12)
    assert values.min() < -0.1


def test_merging_keeps_coupled_rows():
    layout, _, _ = random_sites()
    # Rows 0 and 2 of the first variable become one.
    inverse = np.array([0, 1, 0, 2, *range(3, 15)])
    merged = layout.coupling.merged(inverse, 15)
    lam = np.random.default_rng(2).normal(size=15 + merged.first.size)
    Lam = np.diag(lam[:15])
    Lam[merged.first, merged.second] = Lam[merged.second, merged.first] = lam[15:]
    x = np.random.default_rng(3).normal(size=15)
    np.testing.assert_allclose(merged.product(lam, x), Lam @ x, rtol=1e-12)


@pytest.mark.parametrize("operation", ["diagonalize", "nonnegative"])
def test_nothing_is_done_where_nothing_is_coupled(operation):
    lam = np.array([1.0, 2.0])
    found = getattr(Coupling(2), operation)(lam)
    found = found[0] if operation == "diagonalize" else found
    np.testing.assert_array_equal(found, lam)


@pytest.mark.parametrize("diagonal", [True, False])
def test_some_columns_of_a_rotation(diagonal):
    rng, P, N = np.random.default_rng(5), 3, 4
    Q = np.moveaxis(np.linalg.qr(rng.standard_normal((N, P, P)))[0], 0, -1)
    rows = np.arange(P * N).reshape(P, N)
    dense, K = np.zeros((P * N, P * N)), np.zeros((P * N, P * N))
    for n in range(N):
        dense[np.ix_(rows[:, n], rows[:, n])] = Q[:, :, n]
    for own in rows if diagonal else [rows.ravel()]:
        root = rng.standard_normal((own.size, own.size))
        K[np.ix_(own, own)] = root @ root.T
    kept = np.ones(P * N, dtype=bool)
    kept[[0, 1, 2, 3, 6]] = False
    rotation, columns = Rotation([(rows, Q)]).keep(kept), dense[:, kept]
    inside = columns.T @ K @ columns
    np.testing.assert_allclose(rotation.congruence(K), inside, atol=1e-12)
    np.testing.assert_allclose(rotation.forward(K), K @ columns, atol=1e-12)
    back = columns @ inside @ columns.T
    np.testing.assert_allclose(rotation.congruence_back(inside), back, atol=1e-12)
