"""Effects drawn one factor after another, and the directions between factors."""

from __future__ import annotations

import copy
from functools import partial
from types import SimpleNamespace

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy.linalg import block_diag

import pymc_augconj as pac
from pymc_augconj.api import step as step_module
from pymc_augconj.engines.gibbs import elliptical, tilted
from pymc_augconj.engines.gibbs import parts as parts_module
from pymc_augconj.engines.gibbs.factors import (
    TOLERANCE,
    Shift,
    best_share,
    choose_factors,
    design,
    draw_iteratively,
    find_shifts,
)
from pymc_augconj.engines.gibbs.held_sites import HeldSites
from pymc_augconj.engines.gibbs.native.factors import FactorLoop
from pymc_augconj.engines.gibbs.observed import Held
from pymc_augconj.latents.dense import DensePrior
from pymc_augconj.latents.joint import LatentPriors
from pymc_augconj.linalg.linear_map import RowSelection, SelectionSum
from pymc_augconj.plan import Factors
from pymc_augconj.python_mode.tape import NoTapeError

STANDARD_ERRORS = 5.0
CHAINS, FEWER, FEWEST = 45, 22, 8

_RNG = np.random.default_rng(3)
N = 14
SMALL, LARGE = np.arange(N) % 3, _RNG.integers(5, size=N)
ABOVE = np.array([0, 1, 1, 0, 1])[LARGE]
X = _RNG.normal(size=N)


def zeros(name, dtype="float64"):
    return pm.Data(f"{name} data", np.zeros(N, dtype=dtype))


def crossed(name, size, index, centred=True, scale=0.8):
    sd = pm.HalfNormal(f"sd {name}", scale)
    if centred:
        return pm.Normal(name, 0, sd, shape=size)[index]
    return sd * pm.Normal(name, 0, 1, shape=size)[index]


def bernoulli():
    """Two crossed factors, one of them nested in a third; the intercept is drawn with the third."""
    i0 = pm.Normal("i0", 0.5, 0.4)
    eta = i0 + crossed("a", 3, SMALL) + crossed("b", 5, LARGE) + crossed("c", 2, ABOVE, False)
    pm.Bernoulli("y", logit_p=eta, observed=zeros("y", "int64"))


def normal_and_student():
    """Observed variables of either kind, slopes, and a noise."""
    i0, slope = pm.Normal("i0", 0, 1), pm.Normal("slope", 0.3, 1)
    noise = pm.Gamma("noise", 4, 4)
    eta = i0 + slope * X + crossed("a", 3, SMALL, False) + crossed("b", 5, LARGE) * X
    pm.Normal("y", eta, noise, observed=zeros("y"))
    pm.StudentT("y2", nu=4, mu=eta, sigma=0.7, observed=zeros("y2"))


def log_normal():
    """A known offset, covariates, and effects around another effect."""
    i0, slopes = pm.Normal("i0", 0, 1), pm.Normal("slopes", 0, 1, shape=2)
    a = pm.Normal("a", i0, pm.HalfNormal("sd a", 0.8), shape=3)
    b, scale = pm.Normal("b", 0, 1, shape=5), pm.HalfNormal("sd b", 0.8)
    eta = 0.1 * X + pm.math.dot(np.stack([X, X**2], axis=1), slopes)
    eta = eta + a[SMALL] + 2.0 * scale * b[LARGE] * X + crossed("c", 2, ABOVE)
    pm.LogNormal("y", eta, 2.0 * pm.HalfNormal("noise"), observed=np.exp(_RNG.normal(size=N)))


def normal():
    """Factors that nothing is learned of, and known noises."""
    eta = pm.Normal("i0", 0, 1) + crossed("a", 3, SMALL) + pm.Normal("b", 0, 2, shape=5)[LARGE]
    eta = eta + pm.Normal("d", 0, 2, shape=2)[ABOVE]
    pm.Normal("y", eta, np.linspace(0.5, 1.0, N), observed=_RNG.integers(-1, 2, size=N))


def negative_binomial():
    """A parameter that moves with the level, and effects around another effect."""
    i0 = pm.Normal("i0", 0, 0.5)
    sd = pm.HalfNormal("sd", 0.5)
    a = pm.Normal("a", i0, sd, shape=3)
    alpha = pm.Gamma("alpha", 4, 2)
    eta = a[SMALL] + crossed("b", 5, LARGE, scale=0.5)
    pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=alpha, observed=zeros("y", "int64"))


def counts():
    """Held sites of correlated effects and slopes, beside an observed variable with an ω."""
    i0 = pm.Normal("i0", 0.5, 0.5)
    chol, *_ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.HalfNormal.dist(0.6, shape=2))
    a = pm.MvNormal("a", np.zeros(2), chol=chol, shape=(3, 2))
    eta = i0 + a[SMALL, 0] + a[SMALL, 1] * X + crossed("b", 5, LARGE, False, scale=0.6)
    pm.Poisson("y", mu=pm.math.exp(eta), observed=zeros("y", "int64"))
    pm.Bernoulli("y2", logit_p=eta, observed=zeros("y2", "int64"))


def correlated():
    """Correlated intercepts and slopes of both factors, with an ω."""
    eta = pm.Normal("i0", 0.3, 0.7) + pm.Normal("slope", 0, 0.7) * X
    for name, own in (("a", SMALL), ("b", LARGE)):
        sd = pm.Gamma.dist(4, 5, shape=2)
        chol, *_ = pm.LKJCholeskyCov(f"chol {name}", n=2, eta=2, sd_dist=sd)
        u = pm.MvNormal(name, np.zeros(2), chol=chol, shape=(own.max() + 1, 2))
        eta = eta + u[own, 0] + u[own, 1] * X
    pm.Bernoulli("y", logit_p=eta, observed=zeros("y", "int64"))


def ordinal():
    """Cutpoints that move with the intercept."""
    cutpoints = pm.Normal(
        "c", [-1.0, 1.0], 0.3, transform=pm.distributions.transforms.ordered, initval=[-1.0, 1.0]
    )
    eta = pm.Normal("i0", 0, 0.5) + crossed("a", 3, SMALL) + crossed("b", 5, LARGE, False)
    pm.OrderedLogistic("y", eta=eta, cutpoints=cutpoints, observed=zeros("y", "int64"))


def every_block(model, held, point, groups):
    """Return factors of one block each, the last two blocks in one."""
    count = len(model.blocks)
    return Factors((*((i,) for i in range(count - 2)), (count - 2, count - 1)), 2.0)


@pytest.fixture
def by_factor(monkeypatch):
    monkeypatch.setattr(step_module, "choose_factors", every_block)


@pytest.mark.parametrize("slow", [np.inf, 0.0])
def test_draws_at_once_now_and_then(by_factor, joint_distribution, monkeypatch, slow):
    """By a factor of the precision, and by conjugate gradients."""
    monkeypatch.setattr(parts_module, "best_share", lambda rate, cost: 0.5)
    monkeypatch.setattr(parts_module, "_SLOW", slow)
    monkeypatch.setattr(parts_module, "_GAIN", np.inf)
    found = joint_distribution(bernoulli, seed=4, sites="augmented")
    (part,) = found.step.make_sampler(found.model.initial_point()).parts
    assert bool(part.iterations) == (slow == 0.0)
    z = found.z_scores(FEWER)
    assert max(map(abs, z.values())) < STANDARD_ERRORS, z


@pytest.mark.parametrize(
    "build", [bernoulli, normal_and_student, negative_binomial, counts, correlated, ordinal]
)
def test_the_step_keeps_the_joint_distribution(build, by_factor, joint_distribution):
    sites = "augmented" if build in (bernoulli, negative_binomial, correlated) else "auto"
    found = joint_distribution(build, seed=4, sites=sites)
    sampler = found.step.make_sampler(found.model.initial_point())
    (part,) = sampler.parts
    assert len(part.factors) > 1
    # Cutpoints move with their level alone.
    given_predictors = bool(found.step.plan.likelihood) and not sampler.skips_likelihood
    assert given_predictors == (build is negative_binomial)
    assert part.shifts or build is ordinal
    assert bool(found.step.plan.level) == (build is ordinal)
    z = found.z_scores(FEWER, 3 if build in (counts, correlated, ordinal) else 6)
    assert max(map(abs, z.values())) < STANDARD_ERRORS, z


def centre(self, rng, prior, innovations):
    """Subtract the mean of every coarse level from its fine ones, whatever their priors."""
    A, B = (prior.full_maps[i].dense()[self.row] for i in (self.coarse, self.fine))
    r = A.sum() / B.sum()
    sums = np.bincount(self.of, innovations[self.fine][self.observed], self.of.max() + 1)
    mean = sums / np.maximum(np.bincount(self.of), 1)
    innovations[self.coarse][: mean.size] += mean / r
    innovations[self.fine][self.observed] -= mean[self.of]


def test_centring_does_not(by_factor, joint_distribution, monkeypatch):
    """The negative control."""
    monkeypatch.setattr(Shift, "draw", centre)
    z = joint_distribution(bernoulli, seed=4).z_scores(CHAINS)
    assert max(map(abs, z.values())) > STANDARD_ERRORS


def test_slices_that_accept_everything_do_not(by_factor, joint_distribution, monkeypatch):
    """The negative control of held sites."""

    def anywhere(rng, residual, current):
        def nothing(cos, sin, which):
            return np.zeros(which.size)

        return elliptical.elliptical_slices(rng, nothing, np.zeros(current.size))

    monkeypatch.setattr(tilted, "elliptical_slices", anywhere)
    z = joint_distribution(counts, seed=4).z_scores(FEWEST, 3)
    # The errors of few chains are uncertain themselves.
    assert max(map(abs, z.values())) > 2.0 * STANDARD_ERRORS


def test_forgetting_the_other_factors_is_found(by_factor, joint_distribution, monkeypatch):
    """The comparison with PyMC's density takes the predictors from the moves."""
    monkeypatch.setattr(LatentPriors, "set_offset", lambda self, offset: None)
    with pytest.raises(pac.RecognitionError, match="log density that PyMC gives at step"):
        joint_distribution(bernoulli, seed=4).alternate(1, 1)


def draws(model, seed, steps=1500):
    """Return draws of scales and effects, (steps, columns), after some tuning."""
    step = pac.AugmentedGibbs(model=model)
    step.prepare(None, 300 + steps)
    step.setup_chain(np.random.default_rng(seed), 300, steps)
    step.tune, point, rows = True, model.initial_point(), []
    for i in range(300 + steps):
        step.tune = i < 300
        point, _ = step.step(point)
        rows.append(np.concatenate([np.ravel(value)[:2] for value in point.values()]))
    return np.array(rows[300:]), step


@pytest.mark.parametrize("compiled", [False, True])
def test_moments_are_those_of_draws_at_once(compiled, monkeypatch):
    """Of a binary outcome by Python, and of a normal one by the compiled loop."""
    y = _RNG.integers(0, 2, size=N)
    with pm.Model() as model:
        i0 = pm.Normal("i0", 0.5, 1)
        eta = i0 + crossed("a", 3, SMALL) + crossed("b", 5, LARGE, False)
        if compiled:
            pm.Normal("y", eta, pm.HalfNormal("noise"), observed=y)
        else:
            pm.Bernoulli("y", logit_p=eta, observed=y)
    expected, at_once = draws(model, 1)
    monkeypatch.setattr(step_module, "choose_factors", every_block)
    if compiled:
        monkeypatch.setattr(parts_module, "best_share", lambda rate, cost: 0.0)
    found, by_factor = draws(model, 2)
    assert at_once.plan.factors is None
    assert by_factor.plan.factors is not None
    assert isinstance(by_factor._loop, FactorLoop) == compiled
    for a, b in zip(found.T, expected.T, strict=True):
        for power in (1, 2):
            x, z = (a - b.mean()) ** power, (b - b.mean()) ** power
            n_eff = [float(az.ess(values[None])) for values in (x, z)]
            assert min(n_eff) > 100
            error = np.sqrt(x.var() / n_eff[0] + z.var() / n_eff[1])
            assert abs(x.mean() - z.mean()) < STANDARD_ERRORS * error


@pytest.mark.parametrize("build", [counts, ordinal])
def test_a_factor_begins_with_the_log_ratio_of_the_one_before(build, by_factor, monkeypatch):
    log_sum, differences = tilted.Tilted.log_sum, []

    def compared(self, given):
        known, found = self._start, log_sum(self, given)
        if np.isfinite(known):
            differences.append(found - log_sum(self, given))
        return found

    monkeypatch.setattr(tilted.Tilted, "log_sum", compared)
    with pm.Model() as model:
        build()
    step, point = pac.AugmentedGibbs(model=model), model.initial_point()
    step.prepare(None, 5)
    step.setup_chain(np.random.default_rng(0), 5, 0)
    for _ in range(5):
        point, _ = step.step(point)
    assert len(differences) >= 5
    assert np.allclose(differences, 0.0, atol=1e-9)


@pytest.mark.parametrize("moves", [True, False])
def test_sites_move_with_the_cutpoints(moves):
    """Where predictors and cutpoints move together r changes by a constant; else it does not."""
    with pm.Model() as model:
        ordinal()
    found = pac.recognize(model)
    (site,), rng = found.model.sites, np.random.default_rng(0)
    moving = [h.value_name for h in found.model.hyperparameters]
    sites = HeldSites(found.model, ("y",), [], by_moments=moves, moving=moving)
    sites.predictor = np.zeros(N)
    sites.choose(found.start)
    held, y, params = Held(site, sites), site.y(found.start), site.params(found.start)
    eta, differences = rng.normal(size=(1, 2, N)), []
    for t in (0.0, 0.7):
        moved = {name: c + t for name, c in params.items()}
        held.draw_auxiliary(rng, y, eta, moved, 0)
        differences.append(np.diff(held.residuals(y, eta + t, moved), axis=0))
    assert np.allclose(*differences, rtol=1e-9) == moves
    # Cutpoints that move apart change curvatures, unless by little.
    chosen = sites.of("y")[1]
    for apart in (0.01, 0.5):
        moved = {n: c + apart * sign for (n, c), sign in zip(params.items(), (-1, 1), strict=True)}
        same = np.array_equal(held.follow(y, moved)[1], chosen)
        assert same == (moves and apart < 0.1)


# -- the compiled loop ----------------------------------------------------------------------------


def both(build):
    """Return a step and its loop."""
    with pm.Model() as model:
        build()
    step = pac.AugmentedGibbs(model=model)
    sampler = step.make_sampler(step._default_start)
    # As after a first step, which is always Python's.
    sampler.chain.relaxes = True
    return step, sampler, FactorLoop(sampler, step._default_start)


@pytest.fixture
def one_by_one(by_factor, monkeypatch):
    monkeypatch.setattr(parts_module, "best_share", lambda rate, cost: 0.0)


@pytest.mark.parametrize("build", [log_normal, normal])
def test_the_loop_makes_the_steps_of_python(build, one_by_one):
    step, sampler, loop = both(build)
    assert len(loop._factors) == len(step.plan.factors.blocks)
    assert any(part.shifts for part in sampler.parts)
    at, ours, theirs = step._default_start, np.random.default_rng(3), np.random.default_rng(3)
    # Until the first window ends nothing but moments is learned.
    given = copy.deepcopy(step._updates)
    block = loop.run(ours, sampler, at, given, 20, tune=True)
    updates = {move: partial(own, tune=True) for move, own in step._updates.items()}
    for row, found in enumerate(block.points()):
        at, info = sampler.step(theirs, at, updates)
        assert list(found) == list(at)
        for name, value in at.items():
            np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-10)
        assert block.log_density[row] == pytest.approx(info.log_density, rel=1e-10)
        assert block.log_density[row] == pytest.approx(sampler.chain.log_density(at), rel=1e-10)
        assert block.evaluations[row] == info.evaluations
    assert block.steps == 20
    assert ours.bit_generator.state == theirs.bit_generator.state
    for move, own in step._updates.items():
        for name, value in own.state.items():
            expected = value if value is not None else np.nan
            found = given[move].state[name]
            np.testing.assert_allclose(
                np.nan if found is None else found, expected, atol=1e-10, err_msg=name
            )


@pytest.mark.parametrize(
    ("mean", "std"), [(1e4, np.inf), (1e8, np.inf), (1e4, 1e12), (1e8, 5.0)], ids=str
)
def test_observations_far_from_zero(mean, std, one_by_one, monkeypatch):
    """Draws are the same: none is relaxed about a start far away, squares keep their digits.

    So do densities, about a prior mean that is as far, with which rounding excuses nothing.
    """

    def smallest_first(model, *_):
        sizes = [block.total_size for block in model.blocks]
        return Factors(tuple((i,) for i in np.argsort(sizes).tolist()), 1.0)

    monkeypatch.setattr(step_module, "choose_factors", smallest_first)
    draws, y = [], np.random.default_rng(2).normal(size=N)
    for shift in (0.0, mean):
        with pm.Model() as model:
            near = shift if std < 10.0 else 0.0
            i0 = pm.Normal("i0", near, std) if np.isfinite(std) else pm.Flat("i0")
            eta = i0 + crossed("a", 3, SMALL) + crossed("b", 5, LARGE)
            pm.Normal("y", eta, pm.HalfNormal("noise"), observed=y + shift)
        step, rng = pac.AugmentedGibbs(model=model), np.random.default_rng(1)
        step.setup_chain(rng, 200, 400)
        point, found = model.initial_point(), []
        for i in range(600):
            if i == 200:
                step.stop_tuning()
            point, _ = step.step(point)
            found.append(float(point["noise_log__"]))
        draws.append(found)
    np.testing.assert_allclose(draws[1], draws[0], atol=1e-5)


def test_blocks_of_the_loop_do_not_change_its_draws(one_by_one):
    step, sampler, loop = both(log_normal)
    rng, start, whole = np.random.default_rng(3), step._default_start, []
    for sizes in ((12,), (7, 5)):
        at, rng = start, np.random.default_rng(3)
        for steps in sizes:
            block = loop.run(rng, sampler, at, step._updates, steps, tune=False)
            at = [*block.points()][-1]
        whole.append(block.outputs[-1])
    np.testing.assert_array_equal(*whole)


def test_a_loop_that_forgets_the_other_factors_is_found(one_by_one, monkeypatch):
    """The negative control: the log density is compared with Python's."""
    multiply = FactorLoop._multiply

    def forget(self, prior, numbers, v):
        multiply(self, prior, numbers, v)
        self._omega[:3] = 0.0

    monkeypatch.setattr(FactorLoop, "_multiply", forget)
    with pm.Model() as model:
        log_normal()
    with pytest.raises(pac.AugmentationError, match="native step: expected a log density"):
        pac.sample(model=model, draws=500, tune=20, chains=1, random_seed=1, progressbar=False)


def several_precisions():
    eta = pm.Normal("i0", 0, 1) + crossed("a", 3, SMALL) + crossed("b", 5, LARGE)
    pm.Normal("y", eta, pm.HalfNormal("noise", shape=2)[ABOVE], observed=np.zeros(N))


def a_bent_design():
    eta = pm.Normal("i0", 0, 1) + crossed("b", 5, LARGE)
    eta = eta + pm.Normal("a", shape=3)[SMALL] * pm.math.exp(X * pm.HalfNormal("rate"))
    pm.Normal("y", eta, 1.0, observed=np.zeros(N))


@pytest.mark.parametrize("build", [bernoulli, counts, several_precisions, a_bent_design])
def test_other_steps_are_for_python(build, one_by_one):
    with pytest.raises(NoTapeError):
        both(build)


# -- directions -----------------------------------------------------------------------------------


def shifts_of(maps_at, factors):
    return find_shifts([SimpleNamespace(is_independent=True)] * len(maps_at[0]), maps_at, factors)


def test_a_shift_has_the_conditional_distribution_of_its_direction():
    rng = np.random.default_rng(0)
    coef = rng.normal(size=N)
    A, B = RowSelection(ABOVE, coef, 2), RowSelection(LARGE, -2.0 * coef, 6)
    (shift,) = shifts_of([(A, B)], [(0,), (1,)])
    assert (shift.coarse, shift.fine) == (0, 1)
    std = [rng.uniform(0.5, 2.0, size=A.size) for A in (A, B)]
    u = [rng.normal(size=A.size) for A in (A, B)]
    prior = SimpleNamespace(
        blocks=[SimpleNamespace(diagonal_scale=s) for s in std], full_maps=(A, B)
    )
    moved = [x.copy() for x in u]
    shift.draw(None, prior, moved)
    np.testing.assert_allclose(
        A.apply(moved[0]) + B.apply(moved[1]), A.apply(u[0]) + B.apply(u[1]), atol=1e-12
    )

    def along(delta, at):
        """Return −log p where a direction of the first level is added."""
        x, z = (a.copy() for a in at)
        x[0] += delta
        z[:5][np.array([0, 1, 1, 0, 1]) == 0] += 0.5 * delta
        return 0.5 * np.sum((x / std[0]) ** 2) + 0.5 * np.sum((z / std[1]) ** 2)

    # At the conditional mean the slope is zero; draws have the curvature as their precision.
    slope = (along(1e-3, moved) - along(-1e-3, moved)) / 2e-3
    curvature = along(1.0, moved) + along(-1.0, moved) - 2.0 * along(0.0, moved)
    assert slope == pytest.approx(0.0, abs=1e-9)
    ends = []
    for _ in range(2000):
        drawn = [x.copy() for x in u]
        shift.draw(rng, prior, drawn)
        ends.append(drawn[0][0] - moved[0][0])
    assert np.mean(ends) ** 2 * curvature < 25.0 / 2000
    assert abs(np.var(ends) * curvature - 1.0) < 5.0 * np.sqrt(2.0 / 2000)


def test_a_shift_against_correlated_effects():
    """Against the conditional distribution of the direction, from the joint precision."""
    rng = np.random.default_rng(0)
    chol = np.array([[0.8, 0.0], [-0.5, 0.6]])
    parts = [RowSelection(2 * LARGE, None, 10), RowSelection(2 * LARGE + 1, X, 10)]
    maps = RowSelection(ABOVE, -X, 2), SelectionSum(np.array([1.0, 2.0]), parts)
    blocks = [SimpleNamespace(is_independent=True), SimpleNamespace(is_independent=False, size=2)]
    # Effects of levels have the direction of an intercept, which is not there.
    (shift,) = find_shifts(blocks, [maps], [(0,), (1,)])
    assert shift.part == 1
    dense = DensePrior(SimpleNamespace(name="u", whitened=False, copies=5), chol @ chol.T)
    prior = SimpleNamespace(
        blocks=[SimpleNamespace(diagonal_scale=np.array([0.7, 1.3])), dense], full_maps=maps
    )
    u = [rng.normal(size=2), rng.normal(size=10)]
    moved = [x.copy() for x in u]
    shift.draw(None, prior, moved)
    before, after = (maps[0].apply(x) + maps[1].apply(z) for x, z in (u, moved))
    np.testing.assert_allclose(after, before, atol=1e-12)
    # The mean of δ for each level: that of N(0, Q⁻¹) along the direction.
    Q = block_diag(np.diag(np.array([0.7, 1.3]) ** -2), *[np.linalg.inv(chol @ chol.T)] * 5)
    D = np.zeros((12, 2))
    D[[0, 1], [0, 1]] = 1.0
    D[3 + 2 * LARGE, ABOVE] = 0.5
    delta = -np.linalg.solve(D.T @ Q @ D, D.T @ Q @ np.concatenate(u))
    np.testing.assert_allclose(moved[0] - u[0], delta, rtol=1e-10)
    np.testing.assert_allclose(moved[1] - u[1], (D @ delta)[2:], atol=1e-12)


def test_only_nested_blocks_have_directions():
    x = np.linspace(0.5, 1.0, N)
    maps = {
        "intercept": RowSelection(np.zeros(N, dtype=int), None, 1),
        "above": RowSelection(ABOVE, None, 2),
        "slopes": RowSelection(ABOVE, x, 2),
        "large": RowSelection(LARGE, None, 5),
        "small": RowSelection(SMALL, None, 3),
    }
    names = list(maps)
    found = shifts_of([tuple(maps.values())], [(i,) for i in range(5)])
    assert {(names[s.coarse], names[s.fine]) for s in found} == {
        ("intercept", "above"), ("intercept", "large"), ("intercept", "small"), ("above", "large"),
    }  # fmt: skip
    # Blocks of one factor are drawn together anyway.
    assert not shifts_of([tuple(maps.values())], [(0, 1, 2, 3, 4)])
    # At other hyperparameters coefficients differ.
    pair, other = (maps["above"], maps["large"]), (maps["above"], RowSelection(LARGE, x, 5))
    assert shifts_of([pair, pair], [(0,), (1,)])
    assert not shifts_of([pair, other], [(0,), (1,)])


def test_levels_without_variance_stay():
    A, B = RowSelection(ABOVE, None, 2), RowSelection(LARGE, None, 5)
    (shift,) = shifts_of([(A, B)], [(0,), (1,)])
    std = [np.ones(2), np.array([0.0, 1.0, 1.0, 1.0, 1.0])]
    prior = SimpleNamespace(
        blocks=[SimpleNamespace(diagonal_scale=s) for s in std], full_maps=(A, B)
    )
    u = [np.ones(2), np.zeros(5)]
    shift.draw(np.random.default_rng(0), prior, u)
    assert u[0][0] == 1.0
    assert u[1][0] == 0.0
    assert u[0][1] != 1.0


# -- choice ---------------------------------------------------------------------------------------


def model_of(n_rows, levels, nested=False, shared=False):
    """Return the model of some factors, crossed at random or nested."""
    rng = np.random.default_rng(0)
    index = rng.integers(levels[0], size=n_rows)
    with pm.Model() as model:
        eta, sd = pm.Normal("i0", 0, 1), pm.HalfNormal("sd")
        for k, size in enumerate(levels):
            if k:
                own = rng.integers(size, size=levels[k - 1])[index] if nested else None
                index = rng.integers(size, size=n_rows) if own is None else own
            scale = sd if shared or not k else pm.HalfNormal(f"sd {k}")
            eta = eta + pm.Normal(f"u {k}", 0, scale, shape=size)[index]
        pm.Bernoulli("y", logit_p=eta, observed=rng.integers(2, size=n_rows))
    return model


def chosen(model, held=()):
    r = pac.recognize(model)
    groups = LatentPriors(r.model, (r.start, *r.probes)).groups
    return choose_factors(r.model, held, r.start, groups)


def test_factors_where_the_precision_fills_in():
    found = chosen(model_of(20_000, (1500, 1000)))
    assert sorted(map(len, found.blocks)) == [1, 1, 1]
    assert found.cost > 1.0
    # Held sites: not where all at once costs little.
    assert chosen(model_of(20_000, (1500, 1000)), held=("y",)).blocks == found.blocks
    assert chosen(model_of(2_000, (60, 40)), held=("y",)) is None
    assert chosen(model_of(2_000, (60, 40))) is None
    assert chosen(model_of(20_000, (1500, 1000), nested=True)) is None
    # One scale of both is a hyperparameter of no one factor: they are drawn together.
    assert chosen(model_of(20_000, (1500, 1000), shared=True)) is None


def test_the_rate_is_that_of_gauss_seidel(by_factor):
    """Against the spectral radius of the iteration, of two factors without directions between."""
    rng = np.random.default_rng(1)
    a, b = rng.integers(6, size=40), rng.integers(4, size=40)
    with pm.Model() as model:
        u = [pm.Normal(name, 0, 0.7, shape=k) for name, k in (("a", 6), ("b", 4), ("c", 4))]
        eta = u[0][a] + (u[1] + u[2])[b]
        pm.Normal("y", eta, 1, observed=rng.normal(size=40))
    step = pac.AugmentedGibbs(model=model)
    start = step._default_start
    (part,) = step.make_sampler(start).parts
    blocks = step.recognition.model.blocks
    index = {"a": (a, 6), "b": (b, 4), "c": (b, 4)}
    Phi = np.hstack([np.eye(index[block.name][1])[index[block.name][0]] for block in blocks])
    M = Phi.T @ Phi + np.eye(14) / 0.49
    owner = np.repeat([0 if i in step.plan.factors.blocks[0] else 1 for i in range(3)],
                      [block.total_size for block in blocks])  # fmt: skip
    lower = np.where(owner[:, None] >= owner, M, 0.0)
    radius = np.abs(np.linalg.eigvals(np.eye(14) - np.linalg.solve(lower, M))).max()
    assert parts_module._rate(part, start, np.ones(40)) == pytest.approx(radius, rel=0.05)


@pytest.mark.parametrize("build", [bernoulli, normal_and_student])
def test_iterative_draws_are_those_of_the_dense_precision(build, by_factor):
    """With the same perturbations, whose covariance is the precision."""
    with pm.Model() as model:
        build()
    step, rng = pac.AugmentedGibbs(model=model, sites="augmented"), np.random.default_rng(0)
    (part,) = step.make_sampler(step._default_start).parts
    prior = part.priors.at(step._default_start)
    Phi = design(prior)
    assert np.allclose(Phi.toarray(), prior.whitened_design, rtol=1e-14)
    h, lam = rng.normal(size=Phi.shape[0]), rng.gamma(1.0, 100.0, size=Phi.shape[0])
    found, iterations = draw_iteratively(np.random.default_rng(1), Phi, h, lam)
    fresh, dense = np.random.default_rng(1), Phi.toarray()
    right = dense.T @ (h + np.sqrt(lam) * fresh.standard_normal(h.size))
    right += fresh.standard_normal(right.size)
    expected = np.linalg.solve(np.eye(right.size) + (dense.T * lam) @ dense, right)
    assert 1 < iterations < 100
    away = np.linalg.norm(found - expected)
    assert away <= TOLERANCE * np.linalg.norm(expected)


@pytest.mark.parametrize("cost", [1.0, 3.0, 30.0])
def test_the_share_of_draws_at_once(cost):
    assert best_share(0.0, cost) == 0.0
    assert best_share(1.0, cost) > 0.0
    shares = [best_share(rate, cost) for rate in (0.3, 0.9, 0.99, 0.999)]
    assert shares == sorted(shares)
    # Of a process with the coefficient ρ, which is zero in a share of its steps.
    rate, powers = 0.98, np.arange(1, 2000)

    def time_over_draws(q):
        return (1.0 + q * cost) * (1.0 + 2.0 * np.sum((rate * (1.0 - q)) ** powers))

    others = [time_over_draws(q) for q in np.linspace(0.0, 1.0, 201)]
    assert time_over_draws(best_share(rate, cost)) == pytest.approx(min(others), rel=1e-9)
