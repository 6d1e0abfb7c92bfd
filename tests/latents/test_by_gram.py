"""Conditioning with the observations summed out, against dense linear algebra."""

import numpy as np
import pytest

from pymc_augconj.block import LatentBlock
from pymc_augconj.latents.by_gram import GramPattern, GramSolver, can_sum_out, whitened_parts
from pymc_augconj.latents.by_weights import WeightSolver
from pymc_augconj.latents.choice import solver_of_step
from pymc_augconj.latents.joint import LatentPrior, block_prior
from pymc_augconj.latents.rows import MergedSites, RowGroups, SiteSum
from pymc_augconj.linalg.linear_map import DenseMap, RowSelection, SelectionSum
from pymc_augconj.point import FixedValue

N = 60
RNG = np.random.default_rng(1)
GROUP, OTHER, SITES = RNG.integers(20, size=N), RNG.integers(3, size=N), np.arange(N) % 45
X = np.asfortranarray(RNG.standard_normal((N, 2)))
Z = RNG.standard_normal(N)
ALL = np.zeros(N, dtype=int)

# Pairs of effects of every group, correlated: each row takes both, one of them twice.
PARTS = [RowSelection(2 * GROUP + k, coef, 40) for k, coef in [(0, None), (0, Z), (1, Z)]]
# Two parts that take the same two latents in either order.
CROSSING = [RowSelection(SITES, None, 45), RowSelection(44 - SITES, Z, 45)]
MAPS = {
    "intercept": [RowSelection(ALL, None, 1)],
    "groups": [RowSelection(ALL, None, 1), RowSelection(SITES, None, 45)],
    "slopes": [
        RowSelection(ALL, None, 1),
        RowSelection(GROUP, None, 20),
        RowSelection(ALL, Z, 1),
        RowSelection(GROUP, Z, 20),
    ],
    "regression": [DenseMap(X)],
    "columns": [DenseMap(X, np.array([0.5, 2.0])), RowSelection(SITES, None, 45)],
    "crossed": [RowSelection(GROUP, None, 20), RowSelection(SITES, Z, 45), DenseMap(X)],
    "correlated": [SelectionSum(np.array([0.7, -0.4, 1.2]), PARTS), DenseMap(X)],
    "crossing": [RowSelection(GROUP, Z, 20), SelectionSum(np.array([0.5, -2.0]), CROSSING)],
    "sums": [
        SelectionSum(np.array([0.7, -0.4, 1.2]), PARTS),
        SelectionSum(np.array([0.5, -2.0]), CROSSING),
        RowSelection(ALL, None, 1),
    ],
    "small sum": [
        SelectionSum(np.array([0.5, -2.0]), [RowSelection(OTHER, w, 3) for w in (None, Z)]),
        DenseMap(X),
    ],
    "small": [RowSelection(OTHER, Z, 3), DenseMap(X), RowSelection(ALL, None, 1)],
}


GROUPS_OF_ROWS = RowGroups.apart(N)


class Block:
    def __init__(self, scale):
        self.diagonal_scale = scale


class Prior:
    """What a solver reads of a prior."""

    def __init__(self, maps, scales):
        self.maps, self.blocks = maps, [Block(s) for s in scales]
        self.log_flat = 0.0


def dense(maps, scales, h, lam):
    Phi = np.hstack([A.dense() * s for A, s in zip(maps, scales, strict=True)])
    M = np.eye(Phi.shape[1]) + Phi.T @ (lam[:, None] * Phi)
    mean = np.linalg.solve(M, Phi.T @ h)
    return M, mean, 0.5 * (Phi.T @ h) @ mean - 0.5 * np.linalg.slogdet(M)[1]


def term(h, lam):
    return MergedSites(h, lam, 0.0)


def check(solver, maps, scales, h, lam):
    check_sum(solver, maps, scales, SiteSum((term(h, lam),)))


def check_sum(solver, maps, scales, sites):
    prior = Prior(maps, scales)
    M, mean, log_evidence = dense(maps, scales, sites.h, sites.lam)
    assert solver.posterior(prior, sites).log_normalizer == pytest.approx(log_evidence, rel=1e-11)
    posterior = solver.posterior(prior, sites)
    assert posterior.log_normalizer == pytest.approx(log_evidence, rel=1e-11)
    np.testing.assert_allclose(posterior.whitened(posterior.latent_mean), mean, atol=1e-11)
    size = posterior.size
    root = posterior.whitened(posterior.apply(np.eye(size)) - posterior.latent_mean).T
    np.testing.assert_allclose(root @ root.T @ M, np.eye(size), atol=1e-10)
    several = RNG.standard_normal((3, size))
    rows = [posterior.apply(nu) for nu in several]
    # Up to the order of LAPACK's sums.
    np.testing.assert_allclose(posterior.apply(several), rows, rtol=0, atol=1e-13)
    nu = several[0]
    np.testing.assert_allclose(posterior.solve(RNG, posterior.apply(nu)), nu, atol=1e-10)


@pytest.fixture(params=MAPS, ids=str)
def maps(request):
    return MAPS[request.param]


def random_scales(maps):
    return [RNG.uniform(0.3, 2.0, A.size) for A in maps]


def random_sites():
    return RNG.standard_normal(N), RNG.gamma(1.0, size=N)


def test_any_values_in_any_order(maps):
    solver = GramSolver(GROUPS_OF_ROWS, GramPattern(maps))
    h, lam = random_sites()
    # The same sites, scaled ones, others, none, and the first again.
    for linear, precision in [(h, lam), (2 * h, lam), (h, 3 * lam), random_sites()]:
        check(solver, maps, random_scales(maps), linear, precision)
    check(solver, maps, random_scales(maps), 0 * h, 0 * lam)
    check(solver, maps, random_scales(maps), h, lam)
    check(solver, maps, random_scales(maps), h, np.where(np.arange(N) < 5, -1e-2 * lam, lam))
    some = np.where(np.arange(N) < 30, lam, 0.0)
    check(solver, maps, random_scales(maps), h, some)


@pytest.mark.parametrize("factor", [3.0, -0.5, 0.0])
def test_designs_that_are_scaled(factor):
    maps = MAPS["slopes"]
    solver = GramSolver(GROUPS_OF_ROWS, GramPattern(maps))
    h, lam = random_sites()
    scales = random_scales(maps)
    check(solver, maps, scales, h, lam)
    scaled = [*maps[:3], RowSelection(GROUP, factor * Z, 20)]
    check(solver, scaled, scales, h, lam)
    check(solver, maps, scales, h, 0.1 * lam)
    check(solver, scaled, scales, 2 * h, 0.1 * lam)


def test_multiples_take_no_sum_again(monkeypatch):
    """Nor do sums of parts whose coefficients change."""
    bases = [RowSelection(GROUP, Z, 20), RowSelection(ALL, None, 1)]
    solver, (h, lam) = (
        GramSolver(GROUPS_OF_ROWS, GramPattern([*bases, MAPS["correlated"][0]])),
        random_sites(),
    )
    counted, sites = [], term(h, lam)
    gram = GramPattern.gram
    monkeypatch.setattr(GramPattern, "gram", lambda *given: counted.append(1) or gram(*given))
    for c, d in (1.0, 2.0), (0.0, -3.0), (-1.5, 0.0), (1e-3, 1e3):
        maps = [base.times(w) for base, w in zip(bases, (c, d), strict=True)]
        maps.append(SelectionSum(np.array([c, 1.0, d]), PARTS))
        np.testing.assert_array_equal(maps[0].dense(), c * bases[0].dense())
        check_sum(solver, maps, random_scales(maps), SiteSum((sites,)))
    assert len(counted) == 1


def test_products_of_a_design_alone_are_kept():
    """They take most of the time of a basis with many functions and more observations."""
    latents = LatentBlock("u", "u", "", (60,), 60, 1, False, "diagonal", FixedValue(np.ones(60)))
    A = DenseMap(np.asfortranarray(RNG.standard_normal((90, 60))))
    solver = solver_of_step((latents,), RowGroups.apart(90, None, (A,)))
    assert isinstance(solver.preferred, GramSolver)


def test_a_sum_of_selections_is_its_matrix():
    for name in ("correlated", "crossing"):
        A = next(A for A in MAPS[name] if isinstance(A, SelectionSum))
        dense = sum(c * part.dense() for c, part in zip(A.coefs, A.parts, strict=True))
        np.testing.assert_allclose(A.dense(), dense, atol=1e-15)
        u, w = RNG.standard_normal(A.size), RNG.standard_normal(N)
        np.testing.assert_allclose(A.apply(u), dense @ u, atol=1e-13)
        np.testing.assert_allclose(A.apply_transpose(w), dense.T @ w, atol=1e-13)
        np.testing.assert_array_equal(A.rows(slice(5)).dense(), A.dense()[:5])


def test_terms_that_are_scaled(maps):
    solver = GramSolver(GROUPS_OF_ROWS, GramPattern(maps))
    one, other = term(*random_sites()), term(*random_sites())
    for scales in (1.0, 2.0), (0.3, 1e-3), (5.0, 0.0):
        check_sum(solver, maps, random_scales(maps), SiteSum((one, other), scales))
    check_sum(
        solver, maps, random_scales(maps), SiteSum((other, term(*random_sites())), (3.0, 1.0))
    )


def test_sums_of_subnormal_numbers_are_not_scaled():
    maps = [RowSelection(ALL, None, 1), RowSelection(GROUP, 1e-160 * Z, 20)]
    solver, (h, lam) = GramSolver(GROUPS_OF_ROWS, GramPattern(maps)), random_sites()
    check(solver, maps, random_scales(maps), h, lam)
    maps = [maps[0], RowSelection(GROUP, Z, 20)]
    check(solver, maps, random_scales(maps), h, lam)


def test_designs_that_change_otherwise():
    maps = MAPS["crossed"]
    solver = GramSolver(GROUPS_OF_ROWS, GramPattern(maps))
    h, lam = random_sites()
    scales = random_scales(maps)
    check(solver, maps, scales, h, lam)
    check(solver, [maps[0], RowSelection(SITES, np.exp(Z), 45), maps[2]], scales, h, lam)
    check(solver, [maps[0], maps[1], DenseMap(np.asfortranarray(X**2))], scales, h, lam)
    check(solver, [RowSelection(SITES % 20, None, 20), *maps[1:]], scales, h, lam)


def test_groups_take_work_in_proportion_to_their_number():
    def work(n):
        one = RowSelection(np.zeros(n, dtype=int), None, 1)
        return GramPattern([one, RowSelection(np.arange(n), None, n)]).multiplications

    assert work(4000) < 2.2 * work(2000)


GROUPS = 30
OF_ROW = RNG.integers(GROUPS, size=N)
SLOPES = {
    "intercepts and slopes": [
        RowSelection(2 * OF_ROW + k, c, 2 * GROUPS) for k, c in enumerate((None, Z))
    ],
    "one of three": [RowSelection(3 * OF_ROW + OTHER, Z, 3 * GROUPS)],
}


@pytest.mark.parametrize("name", SLOPES)
@pytest.mark.parametrize("kind", ["dense", "factor"])
def test_copies_of_correlated_latents(name, kind):
    """Against the form with the matrix of all latents, and with the scale of a design."""
    parts = SLOPES[name]
    size = parts[0].size // GROUPS
    block = LatentBlock(
        "u", "u", "", (GROUPS, size), size, GROUPS, False, kind, FixedValue(np.eye(size))
    )
    other = LatentBlock("i", "i", "", (1,), 1, 1, False, "diagonal", FixedValue(np.ones(1)))
    solver = None
    for c in (1.0, -0.7):
        sums = SelectionSum(np.full(len(parts), c), parts)
        maps = [sums if len(parts) > 1 else parts[0].times(c), RowSelection(ALL, None, 1)]
        blocks = (block, other)
        assert can_sum_out(blocks, maps)
        solver = solver or GramSolver(GROUPS_OF_ROWS, GramPattern(whitened_parts(blocks, maps)))
        chol = np.tril(RNG.normal(size=(size, size)))
        chol[np.diag_indices(size)] = RNG.uniform(0.5, 1.5, size)
        array = chol if kind == "factor" else chol @ chol.T
        priors = block_prior(block, array), block_prior(other, np.array([1.3]))
        prior = LatentPrior(np.zeros(N), priors, tuple(maps), tuple(maps))
        sites = SiteSum((term(*random_sites()),))
        expected = WeightSolver(blocks, GROUPS_OF_ROWS).posterior(prior, sites)
        found = solver.posterior(prior, sites)
        assert found.log_normalizer == pytest.approx(expected.log_normalizer, rel=1e-11)
        means = found.whitened(found.latent_mean), expected.latent_mean
        np.testing.assert_allclose(*means, atol=1e-11)
        nu = RNG.standard_normal(found.size)
        np.testing.assert_allclose(found.solve(RNG, found.apply(nu)), nu, atol=1e-10)


def test_what_cannot_be_summed_out():
    def block(kind, size, copies):
        return LatentBlock(
            "u", "u", "", (copies, size), size, copies, False, kind, FixedValue(np.eye(size))
        )

    selected = RowSelection(np.arange(N) % 8, None, 8)
    assert can_sum_out([block("factor", 2, 4)], [selected])
    assert not can_sum_out([block("factor", 2, 4)], [DenseMap(selected.dense())])
    assert not can_sum_out([block("factor", 8, 1)], [selected])
    assert not can_sum_out([block("precision", 2, 4)], [selected])
