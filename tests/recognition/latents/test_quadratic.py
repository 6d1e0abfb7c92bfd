"""Priors that are recognised as Gaussian by their density: what is read is what PyMC evaluates."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import sparse

import pymc_augconj as pac
from pymc_augconj.python_mode import python_mode
from pymc_augconj.recognition.latents import precision

N = 12
RNG = np.random.default_rng(4)
W = np.zeros((N, N), dtype=int)
for _i in range(N - 1):
    W[_i, _i + 1] = W[_i + 1, _i] = 1
W[0, 5] = W[5, 0] = W[3, 11] = W[11, 3] = 1
D = W.sum(0)
EYE = np.eye(N)
LAG = np.eye(N, k=-1)
START = np.r_[1.0, np.zeros(N - 1)]
COV = np.array([[1.0, 0.4], [0.4, 0.8]])


def s(name="s"):
    return pm.HalfNormal(name, 1)


def walk_cov(step, start):
    root = np.tri(N) * np.r_[start, np.broadcast_to(step, N - 1)]
    return root @ root.T


def ar_parts(rho, step, start, start_mean=0.0, constant=0.0):
    """Mean and covariance of an AR process from its innovations."""
    p = len(rho)
    B = np.eye(N) - sum(r * np.eye(N, k=-k - 1) for k, r in enumerate(rho))
    B[:p] = np.eye(N)[:p]
    inverse = np.linalg.inv(B)
    scale = np.r_[np.repeat(start, p), np.repeat(step, N - p)]
    centre = np.r_[np.repeat(start_mean, p), np.repeat(constant, N - p)]
    return inverse @ centre, (inverse * scale**2) @ inverse.T


def pairwise(value, s):
    """What a user may write instead of a random walk, without a normalising constant."""
    return -0.5 * value[0] ** 2 - 0.5 * pt.sum(pt.diff(value) ** 2) / s**2


# What builds z; and its mean and covariance at a point, flat.
PRIORS = {
    "random walk": (
        lambda: pm.GaussianRandomWalk("z", sigma=s(), init_dist=pm.Normal.dist(1, 2), shape=N),
        lambda p: (np.ones(N), walk_cov(np.exp(p["s_log__"]), 2.0)),
    ),
    "a scale for each step": (
        lambda: pm.GaussianRandomWalk(
            "z", sigma=s() * np.arange(1, N), init_dist=pm.Normal.dist(1, 2), shape=N
        ),
        lambda p: (np.ones(N), walk_cov(np.exp(p["s_log__"]) * np.arange(1, N), 2.0)),
    ),
    "a scale without effect": (
        lambda: pm.GaussianRandomWalk(
            "z", sigma=1.0 + 0.0 * s(), init_dist=pm.Normal.dist(1, 2), shape=N
        ),
        lambda p: (np.ones(N), walk_cov(1.0, 2.0)),
    ),
    "drift": (
        lambda: pm.GaussianRandomWalk(
            "z", mu=pm.HalfNormal("mu", 1), sigma=0.3, init_dist=pm.Normal.dist(0, s()), steps=N - 1
        ),
        lambda p: (
            np.exp(p["mu_log__"]) * np.arange(N),
            walk_cov(0.3, np.exp(p["s_log__"])),
        ),
    ),
    "walks": (
        lambda: pm.GaussianRandomWalk(
            "z",
            sigma=pm.HalfNormal("s", 1, shape=2),
            init_dist=pm.Normal.dist(0, 1),
            shape=(2, N),
        ),
        lambda p: (
            np.zeros(2 * N),
            np.block(
                [
                    [walk_cov(np.exp(p["s_log__"][0]), 1.0), np.zeros((N, N))],
                    [np.zeros((N, N)), walk_cov(np.exp(p["s_log__"][1]), 1.0)],
                ]
            ),
        ),
    ),
    "walk in the plane": (
        lambda: pm.MvGaussianRandomWalk(
            "z",
            mu=np.array([0.1, -0.2]),
            cov=s() * COV,
            init_dist=pm.MvNormal.dist(np.ones(2), COV),
            shape=(N, 2),
        ),
        lambda p: (
            np.ravel(1.0 + np.arange(N)[:, None] * [0.1, -0.2]),
            np.kron(walk_cov(np.sqrt(np.exp(p["s_log__"])), 1.0), COV),
        ),
    ),
    "AR": (
        lambda: pm.AR(
            "z",
            rho=pm.Uniform("rho", -1, 1),
            sigma=s(),
            init_dist=pm.Normal.dist(0, 2),
            shape=N,
        ),
        lambda p: ar_parts([np.tanh(0.5 * p["rho_interval__"])], np.exp(p["s_log__"]), 2.0),
    ),
    "AR with a constant": (
        lambda: pm.AR(
            "z",
            rho=pm.Normal("rho", 0, 0.3, shape=3),
            sigma=s(),
            init_dist=pm.Normal.dist(0.5, 1),
            constant=True,
            shape=N,
        ),
        lambda p: ar_parts(p["rho"][1:], np.exp(p["s_log__"]), 1.0, 0.5, p["rho"][0]),
    ),
    "CAR": (
        lambda: pm.CAR("z", mu=np.arange(N), W=W, alpha=pm.Beta("a", 2, 2), tau=s()),
        lambda p: (
            np.arange(N),
            np.linalg.inv(np.diag(D) - W / (1 + np.exp(-p["a_logodds__"]))) / np.exp(p["s_log__"]),
        ),
    ),
    "CAR, sparse": (
        lambda: pm.CAR("z", mu=np.zeros(N), W=sparse.csr_matrix(W), alpha=0.9, tau=s()),
        lambda p: (np.zeros(N), np.linalg.inv(np.diag(D) - 0.9 * W) / np.exp(p["s_log__"])),
    ),
    "ICAR": (
        lambda: pm.ICAR("z", W=W, sigma=s(), zero_sum_stdev=0.01),
        lambda p: (
            np.zeros(N),
            np.linalg.inv(
                (np.diag(D) - W) / np.exp(2 * p["s_log__"]) + np.ones((N, N)) / (0.01 * N) ** 2
            ),
        ),
    ),
    "Ornstein-Uhlenbeck": (
        lambda: pm.EulerMaruyama(
            "z",
            dt=0.1,
            sde_fn=lambda x, a, b: (-a * x, b),
            sde_pars=(s("a"), s()),
            init_dist=pm.Normal.dist(0, 1),
            shape=N,
            initval=np.zeros(N),
        ),
        lambda p: ar_parts(
            [1 - 0.1 * np.exp(p["a_log__"])], np.sqrt(0.1) * np.exp(p["s_log__"]), 1
        ),
    ),
    "covariance each": (
        lambda: pm.MvNormal("z", np.zeros(2), cov=pt.stack([COV, np.eye(2) * s()]), shape=(2, 2)),
        lambda p: (
            np.zeros(4),
            np.block(
                [[COV, np.zeros((2, 2))], [np.zeros((2, 2)), np.exp(p["s_log__"]) * np.eye(2)]]
            ),
        ),
    ),
    "density": (
        lambda: pm.CustomDist("z", s(), logp=pairwise, signature=f"()->({N})", shape=N),
        lambda p: (np.zeros(N), walk_cov(np.exp(p["s_log__"]), 1.0)),
    ),
    "cumulative sum": (
        lambda: pm.CustomDist(
            "z",
            s(),
            dist=lambda s, size: pt.cumsum(pm.Normal.dist(0, s, size=size)),
            shape=(N,),
        ),
        lambda p: (np.zeros(N), walk_cov(*np.repeat(np.exp(p["s_log__"]), 2))),
    ),
}


def observe(build):
    with pm.Model() as model:
        z = build()
        shape = tuple(z.shape.eval())
        pm.Normal("y", z + pm.Normal("b", 0, 1), 1.0, observed=np.ones(shape))
    return model


@pytest.mark.parametrize("name", PRIORS)
def test_prior_is_that_of_its_formula(name, read, numerical_gradient):
    build, formula = PRIORS[name]
    reading = read(observe(build))
    assert set(reading.kinds) == {"z", "b"}
    (block,) = [b for b in reading.lgm.blocks if b.name == "z"]
    assert block.kind == ("intrinsic" if "ICAR" in name else "precision")
    theirs = reading.pymc_model.compile_logp(mode=python_mode())
    for stretch, point in zip((30.0, 1e3, 1e5), reading.points(), strict=True):
        mean, cov = formula(point)
        prior, _ = reading.innovations(point)
        (at,) = [b for b in prior.blocks if b.block is block]
        np.testing.assert_allclose(at.cov, cov, rtol=1e-7, atol=1e-9 * np.abs(cov).max())
        found = np.zeros(block.size) if block.mean is None else block.mean(point)
        np.testing.assert_allclose(found, mean, atol=1e-8)
        far = {**point, "z": stretch * point["z"]}
        np.testing.assert_allclose(reading.log_density(far), theirs(far), rtol=1e-9)
    weights = np.random.default_rng(1).normal(size=block.scale(point).size)
    found = block.scale_pullback(point, weights)
    expected = numerical_gradient(lambda p: weights @ block.scale(p), point, block.scale.names)
    assert set(found) == set(expected) != set()
    for entry, slopes in expected.items():
        scale = np.abs(weights) @ np.abs(block.scale(point))
        np.testing.assert_allclose(found[entry], slopes, rtol=1e-6, atol=1e-8 * scale)


def test_a_factor_that_depends_on_hyperparameters_belongs_to_their_prior(read, numerical_gradient):
    """PyMC's ICAR has no normalising constant, which for a random sigma is no constant."""
    reading = read(observe(PRIORS["ICAR"][0]))
    (block,) = [b for b in reading.lgm.blocks if b.name == "z"]
    point = reading.points(1)[0]
    value, slopes = block.log_factor(point)
    with reading.pymc_model:
        prior = pm.logp(pm.HalfNormal.dist(1), np.exp(point["s_log__"])).eval() + point["s_log__"]
    assert reading.lgm.log_prior(point) == pytest.approx(prior + value, rel=1e-10)
    expected = numerical_gradient(lambda p: block.log_factor(p)[0], point, ["s_log__"])
    np.testing.assert_allclose(slopes["s_log__"], expected["s_log__"], rtol=1e-6)
    # One difference is fixed by the sum: sigma scales the others.
    assert slopes["s_log__"] == pytest.approx(N - 1, rel=1e-3)


def test_means_of_other_latents_are_latents_too(read):
    with pm.Model() as model:
        drift, level = pm.Normal("drift", 0, 1), pm.Normal("level", 0, 1)
        z = pm.GaussianRandomWalk(
            "z", mu=drift, sigma=s(), init_dist=pm.Normal.dist(level, 1), shape=N
        )
        beta = pm.Normal("beta", 0, 1, shape=2)
        phi = pm.CAR("phi", mu=RNG.normal(size=(N, 2)) @ beta, W=W, alpha=0.5, tau=1.0)
        pm.Normal("y", z + phi, 1.0, observed=np.ones(N))
    reading = read(model)
    assert set(reading.kinds) == {"z", "phi", "drift", "level", "beta"}
    assert reading.kinds["drift"] == "selection"
    assert reading.roles == {"s": "prior"}


def test_coefficients_of_an_autoregression_are_hyperparameters(read):
    reading = read(observe(PRIORS["AR with a constant"][0]))
    assert reading.roles == {"rho": "prior", "s": "prior"}


def test_entries_of_a_precision_are_few(read):
    """Of a long walk a band is found without asking for every column."""
    n = 400
    with pm.Model() as model:
        z = pm.GaussianRandomWalk("z", sigma=s(), init_dist=pm.Normal.dist(0, 1), shape=n)
        pm.Normal("y", z, 1.0, observed=np.ones(n))
    (block,) = read(model).lgm.blocks
    assert block.entries.shape == (2, 3 * n - 2)
    assert len(np.unique(block.entries, axis=1).T) == 3 * n - 2


@pytest.mark.parametrize("factor", [1.0, 1.001])
def test_entries_of_walks_are_those_of_a_formula_that_agrees(factor, read, monkeypatch):
    def scaled(*args):
        found = precision.values_of_walk(*args)
        return found._replace(values=factor * found.values)

    monkeypatch.setattr("pymc_augconj.recognition.latents.quadratic.values_of_walk", scaled)
    with pm.Model() as model:
        step, init = pm.HalfNormal("step", 1, shape=2), pm.Normal.dist(0, [2.0, 3.0])
        z = pm.GaussianRandomWalk("z", sigma=step, init_dist=init, shape=(2, N))
        pm.Normal("y", z, 1.0, observed=np.ones((2, N)))
    reading = read(model)
    (block,) = reading.lgm.blocks
    assert (block.scale.precision.formula is not None) == (factor == 1.0)
    point = reading.points(1)[0]
    prior, _ = reading.innovations(point)
    steps = np.exp(point["step_log__"])
    first, second = walk_cov(steps[0], 2.0), walk_cov(steps[1], 3.0)
    expected = np.block([[first, 0.0 * first], [0.0 * first, second]])
    np.testing.assert_allclose(prior.blocks[0].cov, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("inside", [True, False])
def test_sums_of_standard_normal_steps_are_a_walk(inside, read):
    with pm.Model() as model:
        e, scale = pm.Normal("e", 0, 1, shape=N), s()
        walk = pt.cumsum(scale * e) if inside else scale * pt.cumsum(e)
        pm.Normal("y", walk + pm.Normal("b", 0, 1), 1.0, observed=np.arange(N))
    reading = read(model)
    (block,) = [b for b in reading.lgm.blocks if b.name == "e"]
    assert (block.kind, block.whitened) == ("precision", True)
    assert reading.kinds["e"] == "selection, scaled by hyperparameters"
    theirs = reading.pymc_model.compile_logp(mode=python_mode())
    for point in reading.points():
        prior, _ = reading.innovations(point)
        (at,) = [b for b in prior.blocks if b.block is block]
        np.testing.assert_allclose(at.scale(point["e"]), np.cumsum(point["e"]), rtol=1e-12)
        np.testing.assert_allclose(reading.log_density(point), theirs(point), rtol=1e-9)


def test_steps_that_enter_elsewhere_are_independent_variables(read):
    with pm.Model() as model:
        e = pm.Normal("e", 0, 1, shape=N)
        pm.Normal("y", pt.cumsum(e) + e, 1.0, observed=np.arange(N))
    (block,) = read(model).lgm.blocks
    assert block.kind == "diagonal"


def test_data_that_put_other_entries_into_a_precision_are_refused():
    with pm.Model() as model:
        system = pm.Data("system", np.eye(N))
        z = pm.CustomDist(
            "z",
            system,
            logp=lambda v, A: -0.5 * v @ (A @ v),
            signature="(n,n)->(n)",
            support_point=lambda rv, size, A: pt.zeros(N),
            shape=N,
        )
        pm.Normal("y", z, s(), observed=np.ones(N))
    (block,) = pac.recognize(model).model.blocks
    assert block.scale({}).tolist() == [1.0] * N
    with model:
        pm.set_data({"system": np.eye(N) + 0.1})
    with pytest.raises(pac.RecognitionError, match=r"'z'.*same zeros.*recognise the model again"):
        block.scale({})


BY_ENTRY = {
    "Student-t": lambda: pm.StudentT("z", nu=3, shape=N),
    "Laplace": lambda: pm.Laplace("z", 0, 1, shape=N),
    "uniform": lambda: pm.Uniform("z", -5, 5, shape=N, default_transform=None),
    "truncated": lambda: pm.TruncatedNormal("z", 0, 1, lower=-9, shape=N, default_transform=None),
}
NOT_GAUSSIAN = {
    "start": lambda: pm.GaussianRandomWalk("z", sigma=1, init_dist=pm.Flat.dist(), shape=N),
    "steps": lambda: pm.RandomWalk(
        "z",
        init_dist=pm.Normal.dist(0, 1),
        innovation_dist=pm.StudentT.dist(nu=3),
        shape=N,
    ),
    "nonlinear": lambda: pm.EulerMaruyama(
        "z",
        dt=0.1,
        sde_fn=lambda x, a: (-a * x**3, 1.0),
        sde_pars=(s("a"),),
        init_dist=pm.Normal.dist(0, 1),
        shape=N,
        initval=np.zeros(N),
    ),
    "floor": lambda: pm.CustomDist(
        "z", logp=lambda v: -0.5 * v**2 - pt.floor(v), signature="->()", shape=N
    ),
    "GARCH": lambda: pm.GARCH11("z", omega=0.1, alpha_1=0.1, beta_1=0.1, initial_vol=0.1, shape=N),
}


@pytest.mark.parametrize("name", NOT_GAUSSIAN)
def test_what_is_not_gaussian_is_not_read_as_such(name, read):
    reading = read(observe(NOT_GAUSSIAN[name]))
    assert set(reading.kinds) == {"b"}
    assert reading.roles["z"] == "prior"


@pytest.mark.parametrize("name", BY_ENTRY)
def test_independent_entries_that_are_not_normal_are_flat_with_a_prior(name, read):
    model = read(observe(BY_ENTRY[name])).lgm
    assert {block.name: block.is_flat for block in model.blocks} == {"b": False, "z": True}
    assert [site.name for site in model.sites if site.is_prior] == ["z"]


def test_a_gaussian_vector_that_is_no_latent_is_a_hyperparameter_that_no_fit_optimises(read):
    with pm.Model() as model:
        z = pm.GaussianRandomWalk("z", sigma=0.1, init_dist=pm.Normal.dist(0, 1), shape=N)
        pm.Potential("tails", -pt.sum(z**4) * z[0] ** 2)
        pm.Normal("y", z + pm.Normal("b", 0, 1), 1.0, observed=np.ones(N))
    reading = read(model)
    assert reading.kinds == {"b": "selection"}
    assert reading.roles == {"z": "prior"}
    message = r"'z'.*Gaussian \(RandomWalk.*potential 'tails'.*use pac\.sample"
    with pytest.raises(pac.AugmentationError, match=message):
        pac.fit("vgp", model=model, progressbar=False)


def test_a_walk_is_rather_a_latent_by_its_density_than_a_hyperparameter(read):
    with pm.Model() as model:
        h = pm.GaussianRandomWalk("h", sigma=s(), init_dist=pm.Normal.dist(0, 1), shape=N)
        pm.Normal("y", pm.Normal("b", 0, 1), pm.math.exp(h), observed=np.ones(N))
    reading = read(model)
    assert reading.kinds == {"h": "identity"}
    assert reading.roles == {"b": "likelihood", "s": "prior"}


@pytest.mark.parametrize("size", [20, 21])
def test_no_long_vector_is_optimised(size):
    with pm.Model() as model:
        z = pm.Exponential("z", 1.0, shape=size)
        pm.Normal("y", z + pm.Normal("b", 0, 1), 1.0, observed=np.ones(size))
    if size == 20:
        pac.fit("vgp", model=model, progressbar=False)
    else:
        with pytest.raises(pac.AugmentationError, match=r"'z'.*21 components.*use pac\.sample"):
            pac.fit("vgp", model=model, progressbar=False)
        pac.fit("vgp", model=model, hyper="fixed", progressbar=False)


def test_a_walk_that_is_not_read_is_told_the_spelling_that_is():
    with pm.Model() as model:
        z = NOT_GAUSSIAN["start"]()
        pm.Normal("y", z, s(), observed=np.ones(N))
    with pytest.raises(pac.RecognitionError, match=r"'z' \(RandomWalk\).*cumsum\(\)"):
        pac.recognize(model)


def test_effects_that_sum_to_zero_are_read_as_their_basis_is(read):
    E = np.linalg.svd(np.eye(4) - 0.25)[0][:, :3]
    y = np.random.default_rng(1).normal(size=N)
    found = {}
    for spelling in ("ZeroSumNormal", "Normal"):
        with pm.Model() as model:
            if spelling == "Normal":
                z = pm.Deterministic("z", E @ pm.Normal("v", 0, 1.3, shape=3))
            else:
                z = pm.ZeroSumNormal("z", 1.3, shape=4)
            pm.Normal("y", (z + pm.Normal("b", 0, 1))[np.arange(N) % 4], s(), observed=y)
        read(model)
        found[spelling] = pac.fit("vgp", model=model, progressbar=False)
    zero_sum, basis = found["ZeroSumNormal"], found["Normal"]
    assert zero_sum.log_evidence == pytest.approx(basis.log_evidence, abs=1e-6)
    draws, expected = (
        fit.sample(4000, random_seed=2).posterior["z"].values for fit in (zero_sum, basis)
    )
    assert draws.shape == (1, 4000, 4)
    np.testing.assert_allclose(draws.sum(axis=-1), 0.0, atol=1e-12)
    error = expected.std(axis=1) * np.sqrt(2 / 4000)
    assert (np.abs(draws.mean(axis=1) - expected.mean(axis=1)) < 5 * error).all()
    np.testing.assert_allclose(draws.std(axis=1), expected.std(axis=1), rtol=5 * np.sqrt(1 / 4000))


@pytest.mark.parametrize(
    ("kwargs", "size"),
    [
        ({"sigma": 0.7, "shape": 5}, 4),
        ({"sigma": np.array([[0.3], [2.0]]), "shape": (2, 4)}, 6),
        ({"sigma": 1.5, "shape": (3, 4), "n_zerosum_axes": 2}, 6),
    ],
)
def test_zero_sums_over_some_axes(kwargs, size, read):
    with pm.Model() as model:
        z = pm.ZeroSumNormal("z", **kwargs)
        below = pm.Normal("below", z, 0.5)
        pm.Normal("y", (z + below).ravel(), s(), observed=np.arange(z.eval().size) / 3.0)
    reading = read(model)
    assert reading.forms["z_zerosum__"] == "zero-sum normal"
    assert {b.name: b.total_size for b in reading.lgm.blocks}["z_zerosum__"] == size


def test_a_zero_sum_that_cannot_be_a_latent_is_not_optimised(read):
    with pm.Model() as model:
        z = pm.ZeroSumNormal("z", 1.3, shape=4)
        b = pm.Normal("b", 0, 1, shape=N)
        pm.Normal("y", b, pm.math.exp(z[0]), observed=np.ones(N))
    reading = read(model)
    assert set(reading.forms) == {"b"}
    with pytest.raises(pac.AugmentationError, match=r"'z'.*zero-sum normal.*but"):
        pac.fit("vgp", model=reading.pymc_model, progressbar=False)
