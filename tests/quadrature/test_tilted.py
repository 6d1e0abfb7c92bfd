"""Tilted moments against a quadrature of brute force, and closed forms against adaptive panels."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from numpy.polynomial import hermite_e, legendre
from scipy.integrate import quad
from scipy.special import gammaln, ndtri, xlogy

from pymc_augconj.likelihoods.bernoulli_logit import BernoulliLogit
from pymc_augconj.likelihoods.bernoulli_probit import (
    BernoulliProbit,
    probit_delta,
    probit_tilted,
)
from pymc_augconj.likelihoods.contract import LikelihoodDensity, site_moments
from pymc_augconj.likelihoods.laplace import AsymmetricLaplace, Laplace
from pymc_augconj.likelihoods.normal import Normal
from pymc_augconj.likelihoods.powers_of_sigmoid import BinomialLogit, NegativeBinomial
from pymc_augconj.likelihoods.student_t import StudentT
from pymc_augconj.quadrature.quantile_shift import tail_quantile
from pymc_augconj.quadrature.tilted import tilted_moments

_ORDER = 32
_NODES, _WEIGHTS = legendre.leggauss(_ORDER)
_COEFFICIENTS = legendre.legvander(_NODES, _ORDER - 1).T * ((np.arange(_ORDER) + 0.5)[:, None])
_INTEGRAL = (
    np.stack([legendre.legval(_NODES, legendre.legint(e, lbnd=-1)) for e in np.eye(_ORDER)], 1)
    @ _COEFFICIENTS
    * _WEIGHTS
)


@dataclass(frozen=True)
class Reference:
    """Moments of one tilted distribution; `magnitude` is that of log p where the mass is."""

    log_Z: float
    mean: float
    var: float
    third: float
    fourth: float
    delta: float
    magnitude: float


def reference_moments(log_density, m, v, landmarks=(), power=1.0) -> Reference:
    """Integrate on some 300 panels of 32 nodes, graded by √2 about every landmark and the mode."""
    std = np.sqrt(v)

    def log_tilted(f):
        values = power * log_density(f)
        return np.where(np.isnan(values), -np.inf, values) - 0.5 * ((f - m) / std) ** 2

    with np.errstate(all="ignore"):
        steps = std * 2.0 ** np.arange(-45.0, 18.0, 0.25)
        # Besides, where the links among the densities below turn: a step, if the cavity is wide.
        anchors = [m, 0.0, -4.0, *landmarks]
        grid = np.unique(np.concatenate([np.append(a + steps, [a, *(a - steps)]) for a in anchors]))
        for _ in range(8):
            best = np.argmax(log_tilted(grid))
            left, right = grid[max(best - 1, 0)], grid[min(best + 1, grid.size - 1)]
            grid = np.union1d(np.linspace(left, right, 401), grid[best])
        mode = grid[np.argmax(log_tilted(grid))]
        steps = std * 2.0 ** np.arange(-40.0, 17.0, 0.5)
        anchors.append(mode)
        ends = np.unique(np.concatenate([np.append(a + steps, [a, *(a - steps)]) for a in anchors]))
        half = 0.5 * np.diff(ends)
        f = ends[:-1] + half * (1.0 + _NODES[:, None])
        t = log_tilted(f)
        g = np.exp(t - t.max())
    weights = _WEIGHTS[:, None] * g * half
    total = weights.sum()
    mean = mode + np.sum(weights * (f - mode)) / total
    away = f - mean
    square = away * away
    central = [np.sum(weights * x) / total for x in (square, square * away, square * square)]
    mass = weights.sum(axis=0) / total
    below = np.append(0.0, np.cumsum(mass)[:-1]) + half * (_INTEGRAL @ g) / total
    above = np.append(np.cumsum(mass[::-1])[::-1][1:], 0.0)
    above = above + half * (_WEIGHTS @ g - _INTEGRAL @ g) / total
    tail = ndtri(np.maximum(np.minimum(below, above), 1e-300))
    z = np.where(below < above, tail, -tail)
    delta = 0.5 * np.sum(weights * (away / np.sqrt(central[0]) - z) ** 2) / total
    log_Z = np.log(total) + t.max() - 0.5 * np.log(2.0 * np.pi * v)
    return Reference(log_Z, mean, *central, delta, float(abs(log_density(np.array(mean)))))


@dataclass(frozen=True)
class PoissonExp:
    """Counts of mean exp(f), as a SiteDensity."""

    y: np.ndarray

    @property
    def size(self):
        return self.y.size

    @property
    def landmarks(self):
        return np.empty((0, self.size))

    def __call__(self, eta, sites):
        y = self.y[sites]
        return y * eta - np.exp(eta) - gammaln(y + 1.0)


@dataclass(frozen=True)
class PoissonSquare:
    """Counts of mean f², as a SiteDensity: two modes for y ≥ 1."""

    y: np.ndarray

    @property
    def size(self):
        return self.y.size

    @property
    def landmarks(self):
        return np.stack([0.0 * self.y, np.sqrt(self.y), -np.sqrt(self.y)])

    def __call__(self, eta, sites):
        y = self.y[sites]
        return xlogy(y, eta**2) - eta**2 - gammaln(y + 1.0)


def with_params(likelihood, **params):
    """Return a function from y to its density."""
    params = {name: np.asarray(float(value)) for name, value in params.items()}
    return lambda y: LikelihoodDensity(likelihood, y, params)


# Observations among them such that the likelihood and the cavity disagree, and outliers.
MOST_EXPONENTIALS = 100  # an evaluation, three times what is needed

DENSITIES = {
    "logit": (with_params(BernoulliLogit()), (0, 1)),
    "probit": (with_params(BernoulliProbit()), (0, 1)),
    "binomial": (with_params(BinomialLogit(), n=50), (0, 13)),
    "student_t narrow": (with_params(StudentT(), nu=2, sigma=0.1), (0, 3, 50)),
    "student_t": (with_params(StudentT(), nu=4, sigma=1), (0, 50)),
    "laplace": (with_params(Laplace(), b=0.5), (0, 3, 50)),
    "asymmetric laplace": (with_params(AsymmetricLaplace(), b=2, kappa=3), (0, 50)),
    "negative binomial": (with_params(NegativeBinomial(), alpha=2), (0, 5, 1000)),
    "normal narrow": (with_params(Normal(), sigma=1e-2), (0, 30)),
    "poisson exp": (PoissonExp, (0, 5, 1000)),
    "poisson square": (PoissonSquare, (0, 1, 5, 100)),
}
MEANS = (0.0, -0.7, 5.0, -30.0, 40.0)
VARS = (1e-8, 1e-4, 0.1, 1.0, 30.0, 1e6)
# What is promised; log p itself is known to some rounding units of its terms.
TOLERANCE, ROUNDING = 1e-8, 100.0 * np.finfo(float).eps
# δ, whose integrand has the interpolated distribution function in it, is promised absolutely.
TOLERANCE_DELTA = 1e-8


@pytest.fixture(scope="module", params=DENSITIES)
def grid(request):
    """Every combination of observation and cavity, with the reference of each."""
    make, ys = DENSITIES[request.param]
    y, m, v = (
        np.array(column, dtype=float)
        for column in zip(*itertools.product(ys, MEANS, VARS), strict=True)
    )
    density = make(y)

    @cache
    def reference(i, power=1.0):
        here = np.array([i])
        return reference_moments(
            lambda f: density(f[..., None], np.full(1, i))[..., 0],
            m[i],
            v[i],
            list(density.landmarks[:, here[0]]),
            power,
        )

    return density, m, v, reference


def columns(references):
    return {
        name: np.array([getattr(r, name) for r in references])
        for name in Reference.__dataclass_fields__
    }


def test_moments_and_delta(grid):
    density, m, v, reference = grid
    expected = columns([reference(i) for i in range(m.size)])
    for found in (
        tilted_moments(density, m, v, higher=True),
        tilted_moments(density, m, v, higher=True, delta=True),
    ):
        std = np.sqrt(expected["var"])
        allowed = TOLERANCE + ROUNDING * expected["magnitude"]
        assert (np.abs(found.log_Z - expected["log_Z"]) <= allowed).all()
        assert (np.abs(found.mean - expected["mean"]) <= allowed * std).all()
        assert (np.abs(found.var / expected["var"] - 1.0) <= allowed).all()
        # Third and fourth moments only steer Newton's method.
        assert (np.abs(found.third - expected["third"]) <= 100.0 * allowed * std**3).all()
        assert (np.abs(found.fourth / expected["fourth"] - 1.0) <= 100.0 * allowed).all()
    allowed = TOLERANCE_DELTA + ROUNDING * expected["magnitude"]
    assert (np.abs(found.delta - expected["delta"]) <= allowed).all()
    assert (found.delta >= 0.0).all()


def test_power(grid):
    density, m, v, reference = grid
    found = tilted_moments(density, m, v, power=0.3)
    some = np.arange(0, m.size, 7)
    expected = columns([reference(i, 0.3) for i in some])
    allowed = TOLERANCE + ROUNDING * expected["magnitude"]
    assert (np.abs(found.log_Z[some] - expected["log_Z"]) <= allowed).all()
    assert (np.abs(found.var[some] / expected["var"] - 1.0) <= allowed).all()


def test_estimated_error_bounds_the_actual_one(grid):
    density, m, v, reference = grid
    found = tilted_moments(density, m, v)
    expected = columns([reference(i) for i in range(m.size)])
    actual = np.abs(found.log_Z - expected["log_Z"])
    assert (actual <= 100.0 * found.error + 1e-12 + ROUNDING * expected["magnitude"]).all()


def test_reference_agrees_with_scipy():
    """The judge is judged: Student-t by an adaptive rule of another kind."""
    density = DENSITIES["student_t"][0](np.array([3.0]))
    here = np.zeros(1, dtype=int)

    def tilted(f):
        log_p = density(np.array([[f]]), here)[0, 0]
        return np.exp(log_p - 0.25 * f**2) / np.sqrt(4.0 * np.pi)

    moments = [
        quad(lambda f, k=k: tilted(f) * f**k, -30, 30, points=[0, 3], epsabs=1e-13)[0]
        for k in range(3)
    ]
    found = reference_moments(lambda f: density(f[..., None], here)[..., 0], 0.0, 2.0, [3.0])
    assert found.log_Z == pytest.approx(np.log(moments[0]), abs=1e-11)
    assert found.mean == pytest.approx(moments[1] / moments[0], abs=1e-11)
    second = moments[2] / moments[0] - (moments[1] / moments[0]) ** 2
    assert found.var == pytest.approx(second, rel=1e-10)


def test_gauss_hermite_under_a_wide_cavity_is_wrong():
    """Negative control: the usual rule fails by far more than the tolerance on the same grid."""
    density = DENSITIES["logit"][0](np.array([1.0]))
    nodes, weights = hermite_e.hermegauss(20)
    p = weights * np.exp(density(1e3 * nodes[:, None], np.zeros(1, dtype=int))[:, 0])
    mean = 1e3 * (p @ nodes) / p.sum()
    var = 1e6 * (p @ nodes**2) / p.sum() - mean**2
    found = tilted_moments(density, np.zeros(1), np.array([1e6]))
    assert abs(var / found.var[0] - 1.0) > 1e-2


@pytest.mark.parametrize("power", [1.0, 0.4])
@pytest.mark.parametrize("name", ["probit", "normal narrow"])
def test_closed_forms_equal_panels(name, power):
    make, ys = DENSITIES[name]
    y, m, v = (
        np.array(c, dtype=float) for c in zip(*itertools.product(ys, MEANS, VARS[1:]), strict=True)
    )
    density = make(y)
    closed, panels = (
        site_moments(density, m, v, power=power),
        tilted_moments(density, m, v, power=power),
    )
    allowed = TOLERANCE + ROUNDING * np.abs(density(closed.mean, np.arange(y.size)))
    assert (np.abs(closed.log_Z - panels.log_Z) <= allowed).all()
    assert (np.abs(closed.mean - panels.mean) <= allowed * np.sqrt(panels.var)).all()
    assert (np.abs(closed.var / panels.var - 1.0) <= allowed).all()


@pytest.mark.parametrize("name", ["probit", "normal narrow"])
def test_delta_of_closed_forms_equals_that_of_panels(name):
    make, ys = DENSITIES[name]
    y, m, v = (
        np.array(c, dtype=float) for c in zip(*itertools.product(ys, MEANS, VARS), strict=True)
    )
    density = make(y)
    closed, panels = (how(density, m, v, delta=True) for how in (site_moments, tilted_moments))
    assert closed.panels is None
    allowed = 2.0 * (TOLERANCE_DELTA + ROUNDING * np.abs(density(closed.mean, np.arange(y.size))))
    assert (np.abs(closed.delta - panels.delta) <= allowed).all()
    assert (closed.delta >= 0.0).all()


def test_probit_delta_by_its_own_panels_and_where_these_give_up():
    z, v = (c.ravel() for c in np.meshgrid(np.linspace(-7.5, 6.0, 28), 10.0 ** np.arange(-4, 4)))
    m = -z * np.sqrt(1.0 + v)
    positive = np.zeros(z.shape, dtype=bool)
    found = probit_delta(positive, m, v, probit_tilted(positive, m, v))
    assert np.isfinite(found).all()
    density = DENSITIES["probit"][0](np.zeros(z.size))
    expected = tilted_moments(density, m, v, delta=True).delta
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=2.0 * TOLERANCE_DELTA)
    one = np.ones(1, dtype=bool)
    far = np.array([-50.0])
    assert np.isnan(probit_delta(one, far, np.ones(1), probit_tilted(one, far, np.ones(1)))).all()


def test_quantiles_of_tails_are_scipys():
    tails = np.concatenate([10.0 ** np.linspace(-300.0, -1.0, 600), np.linspace(0.1, 0.5, 60)])
    found = np.array([tail_quantile(p) for p in tails])
    np.testing.assert_allclose(found, -ndtri(tails), rtol=4e-15, atol=1e-15)


def test_probit_far_in_the_tail_is_smooth():
    """The asymptotic series takes over at z = −60 where the direct form still has its digits."""
    m = np.array([-59.999999, -60.000001]) * np.sqrt(2.0)
    density = DENSITIES["probit"][0](np.ones(2))
    found = site_moments(density, m, np.ones(2))
    panels = tilted_moments(density, m, np.ones(2))
    np.testing.assert_allclose(found.var, panels.var, rtol=1e-9)
    far = site_moments(DENSITIES["probit"][0](np.ones(1)), np.array([-1e6]), np.ones(1))
    assert far.var[0] == pytest.approx(0.5, rel=1e-10)


def test_delta_of_nearly_gaussian_tilted_distributions():
    """δ ≈ κ₃²/36 + κ₄²/192; the next terms are a few times κ₃² smaller."""
    density = DENSITIES["probit"][0](np.ones(3))
    found = tilted_moments(
        density, np.array([0.0, 0.3, 1.0]), np.full(3, 0.3), delta=True, higher=True
    )
    third = found.third / found.var**1.5
    fourth = found.fourth / found.var**2 - 3.0
    expected = third**2 / 36.0 + fourth**2 / 192.0
    np.testing.assert_allclose(found.delta, expected, rtol=10.0 * np.max(third**2))


def test_expectation_on_the_nodes():
    density = DENSITIES["student_t"][0](np.array([0.5, 20.0]))
    found = tilted_moments(density, np.zeros(2), np.ones(2))
    mean = found.panels.expect(lambda f, sites: f)
    np.testing.assert_allclose(mean, found.mean, atol=1e-12)
    np.testing.assert_allclose(found.panels.expect(lambda f, sites: np.ones_like(f)), 1.0)


def test_parameters_by_site():
    y = np.array([1.0, -2.0, 0.3])
    sigma = np.array([0.1, 2.0, 30.0])
    together = LikelihoodDensity(StudentT(), y, {"nu": np.asarray(3.0), "sigma": sigma})
    found = tilted_moments(together, np.zeros(3), np.ones(3))
    for i in range(3):
        alone = with_params(StudentT(), nu=3, sigma=sigma[i])(y[i : i + 1])
        one = tilted_moments(alone, np.zeros(1), np.ones(1))
        assert found.log_Z[i] == pytest.approx(one.log_Z[0], abs=1e-10)


def test_two_predictors_are_refused():
    class Two(BernoulliLogit):
        n_predictors = 2

    with pytest.raises(ValueError, match="expected a likelihood of one predictor"):
        LikelihoodDensity(Two(), np.zeros(1), {})


@pytest.mark.parametrize(("m", "v"), [(0.0, -1.0), (0.0, 0.0), (np.nan, 1.0), (0.0, np.inf)])
def test_improper_cavity_is_refused(m, v):
    density = DENSITIES["probit"][0](np.ones(1))
    for function in (tilted_moments, site_moments):
        with pytest.raises(ValueError, match="expected a proper cavity"):
            function(density, np.array([m]), np.array([v]))


@pytest.mark.parametrize("height", [-np.inf, -1e20, 1e20])
def test_a_density_that_is_zero_or_without_digits_is_refused(height):
    class Nothing(PoissonExp):
        def __call__(self, eta, sites):
            return np.full(eta.shape, height)

    with pytest.raises(FloatingPointError, match="found no maximum"):
        tilted_moments(Nothing(np.zeros(2)), np.zeros(2), np.ones(2))


def test_noise_in_the_density_ends_the_bisection_and_is_told():
    """A log p known to 1e-5 only: moments of that quality at a bounded cost, and an error bar."""
    evaluated = 0

    class Noisy(PoissonExp):
        def __call__(self, eta, sites):
            nonlocal evaluated
            evaluated += eta.size
            exact = super().__call__(eta, sites)
            return exact + 1e-5 * np.sin(1e9 * eta)

    y = np.array([0.0, 4.0])
    noisy = tilted_moments(Noisy(y), np.zeros(2), np.ones(2), delta=True)
    exact = tilted_moments(PoissonExp(y), np.zeros(2), np.ones(2), delta=True)
    np.testing.assert_allclose(noisy.var, exact.var, rtol=1e-4)
    assert (noisy.error > 1e-8).all()
    assert evaluated < 20000


@pytest.mark.parametrize("name", ["logit", "student_t", "laplace", "poisson exp", "poisson square"])
def test_time_and_evaluations(name):
    """Counted in exponentials, of which a busy machine computes fewer as well.

    The bar of 30 µs a site is the benchmark's to measure.
    """
    rng = np.random.default_rng(0)
    make, ys = DENSITIES[name]
    density = make(rng.choice(ys[:2], 400).astype(float))
    m, v = 2.0 * rng.standard_normal(400), np.exp(2.0 * rng.standard_normal(400))
    count = 0

    class Counting:
        size, landmarks = density.size, density.landmarks

        def __call__(self, eta, sites):
            nonlocal count
            count += eta.size
            return density(eta, sites)

    tilted_moments(Counting(), m, v)
    assert count / 400 < 800
    points = rng.standard_normal(count)

    def exponentials_an_evaluation():
        start = time.thread_time()
        tilted_moments(density, m, v)
        middle = time.thread_time()
        np.exp(points)
        return (middle - start) / (time.thread_time() - middle)

    assert min(exponentials_an_evaluation() for _ in range(30)) < MOST_EXPONENTIALS
