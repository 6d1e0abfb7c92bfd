"""Gaussian variables of every form are found, with their innovations and priors."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.gp.cov import Constant, Coregion, ExpQuad, Linear, Matern32, Periodic, WhiteNoise
from pymc.gp.mean import Constant as ConstantMean
from pymc.gp.mean import Linear as LinearMean
from scipy.linalg import solve_triangular

import pymc_augconj as pac
from pymc_augconj.api.recognize import recognize
from pymc_augconj.point import Argument
from pymc_augconj.python_mode import python_mode
from tests.recognition.conftest import Reading

N = 8
RNG = np.random.default_rng(2)
X = RNG.standard_normal((N, 2))
BINARY = RNG.integers(0, 2, N)
PAIRS = np.stack([BINARY, 1 - BINARY])
GROUP = np.array([0, 2, 1, 1, 0, 2, 2, 0])


def observe(eta, observed=BINARY, **kwargs):
    pm.Bernoulli("y", logit_p=eta, observed=observed, **kwargs)


def length_scale(name="ls"):
    return pm.InverseGamma(name, 5, 5)


def gp(cov=None, **kwargs):
    return pm.gp.Latent(cov_func=ExpQuad(2, ls=length_scale()) if cov is None else cov, **kwargs)


def hsgp(m=(4, 4), **kwargs):
    cov = pm.HalfNormal("eta", 1) ** 2 * ExpQuad(2, ls=length_scale())
    return pm.gp.HSGP(m=list(m), L=[4.0, 4.0], cov_func=cov, **kwargs)


# -- pm.gp.Latent -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reparameterize", "form"), [(True, "GP (whitened)"), (False, "multivariate normal")]
)
def test_both_forms_of_the_prior(reparameterize, form, read):
    with pm.Model() as model:
        observe(gp().prior("f", X=X, reparameterize=reparameterize))
    reading = read(model)
    assert reading.forms == {"f": form}
    assert reading.kinds == {"f": "identity"}
    assert reading.roles == {"ls": "prior"}
    (block,) = reading.lgm.blocks
    assert block.value_name == ("f_rotated_" if reparameterize else "f")
    assert (block.size, block.copies, block.whitened) == (N, 1, reparameterize)
    assert block.mean is None
    assert block.kind == "dense"


MEANS = {
    "number": (lambda: ConstantMean(1.5), {}),
    "hyperparameter": (lambda: ConstantMean(pm.HalfNormal("c", 1)), {}),
    "latent": (lambda: ConstantMean(pm.Normal("c", 0, 1)), {"c": "selection"}),
    "linear": (
        lambda: LinearMean(pm.Normal("c", 0, 1, shape=2), pm.Normal("i", 0, 1)),
        {"c": "design matrix", "i": "selection"},
    ),
}


@pytest.mark.parametrize("reparameterize", [True, False])
@pytest.mark.parametrize("mean", MEANS)
def test_mean_functions(mean, reparameterize, read):
    mean_func, others = MEANS[mean]
    with pm.Model() as model:
        observe(gp(mean_func=mean_func()).prior("f", X=X, reparameterize=reparameterize))
    reading = read(model)
    assert reading.kinds == {"f": "identity", **others}
    assert reading.roles.get("c", "prior") == "prior"


KERNELS = {
    "sum": lambda: (
        pm.HalfNormal("eta", 1) ** 2 * ExpQuad(2, ls=length_scale())
        + Matern32(2, ls=length_scale("ls2"))
        + WhiteNoise(1e-3)
    ),
    "product": lambda: ExpQuad(2, ls=length_scale()) * Linear(2, c=0) + Constant(1.0),
    "ARD": lambda: ExpQuad(2, ls=pm.InverseGamma("ls", 5, 5, shape=2)),
    "fixed": lambda: ExpQuad(2, ls=1.0),
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels(kernel, read):
    with pm.Model() as model:
        observe(gp(KERNELS[kernel]()).prior("f", X=X))
    reading = read(model)
    assert reading.kinds == {"f": "identity"}
    assert set(reading.roles.values()) <= {"prior"}


def test_additive_process_is_one_block(read):
    with pm.Model() as model:
        total = gp() + gp(Matern32(2, ls=length_scale("ls2")))
        observe(total.prior("f", X=X))
    assert read(model).kinds == {"f": "identity"}


@pytest.mark.parametrize("reparameterize", [True, False])
def test_sum_of_two_processes_is_two_blocks(reparameterize, read):
    with pm.Model() as model:
        f = gp().prior("f", X=X)
        g = gp(Matern32(2, ls=length_scale("ls2"))).prior("g", X=X, reparameterize=reparameterize)
        observe(f + g)
    assert read(model).kinds == {"f": "identity", "g": "identity"}


@pytest.mark.parametrize("reparameterize", [True, False])
@pytest.mark.parametrize("transpose", [False, True])
def test_several_outputs_share_a_covariance(reparameterize, transpose, read):
    with pm.Model() as model:
        f = gp().prior("f", X=X, n_outputs=2, reparameterize=reparameterize)
        observe(f.T if transpose else f, PAIRS.T if transpose else PAIRS)
    reading = read(model)
    assert reading.kinds == {"f": "selection" if transpose else "identity"}
    assert (reading.lgm.blocks[0].size, reading.lgm.blocks[0].copies) == (N, 2)


@pytest.mark.parametrize("reparameterize", [True, False])
def test_dims(reparameterize, read):
    with pm.Model(coords={"obs": np.arange(N)}) as model:
        f = gp().prior("f", X=X, dims="obs", reparameterize=reparameterize)
        observe(f, dims="obs")
    assert read(model).kinds == {"f": "identity"}


def test_coregionalised_outputs(read):
    inputs = np.column_stack([np.tile(X[:4, 0], 2), np.repeat([0.0, 1.0], 4)])
    with pm.Model() as model:
        W, kappa = pm.Normal("W", 0, 1, shape=(2, 2)), pm.HalfNormal("kappa", 1, shape=2)
        coregion = Coregion(2, active_dims=[1], W=W, kappa=kappa)
        cov = ExpQuad(2, ls=length_scale(), active_dims=[0]) * coregion
        observe(gp(cov).prior("f", X=inputs))
    reading = read(model)
    assert reading.kinds == {"f": "identity"}
    # W is Normal, but enters the covariance.
    assert reading.roles == {"W": "prior", "kappa": "prior", "ls": "prior"}


def test_mixed_outputs(read):
    with pm.Model() as model:
        u = gp().prior("u", X=X, n_outputs=2)
        W = pm.HalfNormal("W", 1, shape=(2, 3))
        pm.Normal("y", u.T @ W, 1, observed=RNG.standard_normal((N, 3)))
    reading = read(model)
    assert reading.kinds == {"u": "sum of selections, scaled by hyperparameters"}
    assert reading.roles == {"ls": "prior", "W": "prior"}


def test_kronecker_process_is_affine_in_its_rotated_normals(read):
    covs = lambda: [ExpQuad(1, ls=length_scale()), ExpQuad(1, ls=length_scale("ls2"))]  # noqa: E731
    with pm.Model() as model:
        observe(pm.gp.LatentKron(cov_funcs=covs()).prior("f", Xs=[X[:4, :1], X[:2, 1:]]))
    assert read(model).kinds == {"f_rotated_": "design matrix depending on hyperparameters"}


def test_student_t_process_is_affine_in_its_rotated_variables(read):
    with pm.Model() as model:
        tp = pm.gp.TP(scale_func=ExpQuad(2, ls=length_scale()), nu=5)
        observe(tp.prior("f", X=X) + pm.Normal("b", 0, 1))
    reading = read(model)
    dense = "design matrix depending on hyperparameters"
    assert reading.kinds == {"b": "selection", "f_rotated_": dense}
    assert reading.roles == {"ls": "prior"}


# -- a Cholesky factor written by the user ----------------------------------------------------


@pytest.mark.parametrize("layout", ["vector", "rows", "columns"])
def test_factor_written_by_hand(layout, read):
    """Only chol(K) vᵀ has one copy a row of v; for a square v the shapes do not tell."""
    with pm.Model() as model:
        L = pt.linalg.cholesky(pm.HalfNormal("s", 1) * (np.eye(4) + 0.3))
        if layout == "vector":
            observe((1.0 + L @ pm.Normal("v", 0, 1, shape=4))[GROUP])
        else:
            v = pm.Normal("v", 0, 1, shape=(4, 4))
            observe((L @ (v.T if layout == "rows" else v))[GROUP, GROUP[::-1]])
    reading = read(model)
    assert reading.forms == {"v": "normal" if layout == "columns" else "GP (whitened)"}


# -- MvNormal ---------------------------------------------------------------------------------

COV = np.eye(N) + 0.5
MULTIVARIATE = {
    "cov": lambda: pm.MvNormal("f", mu=np.zeros(N), cov=COV),
    "chol": lambda: pm.MvNormal("f", mu=0, chol=np.linalg.cholesky(COV)),
    "tau": lambda: pm.MvNormal("f", mu=np.zeros(N), tau=COV),
    "hyperparameters": lambda: pm.MvNormal(
        "f", mu=pm.Gamma("m", 1, 1) * np.ones(N), cov=COV * pm.HalfNormal("s", 1)
    ),
    "latent mean": lambda: pm.MvNormal("f", mu=pm.Normal("m", 0, 1), cov=COV),
}


@pytest.mark.parametrize("spelling", MULTIVARIATE)
def test_multivariate_normal(spelling, read):
    with pm.Model() as model:
        observe(MULTIVARIATE[spelling]())
    reading = read(model)
    assert reading.forms["f"] == "multivariate normal"
    assert reading.kinds["f"] == "identity"


# Its square has rounded to a singular matrix.
ROOT = np.array([[1.0, 0.0, 0.0], [3.0, 1e-9, 0.0], [-2.0, 5e-10, 2e-10]])


def factor(s):
    return s * pt.as_tensor(ROOT)


def product(s):
    L = pm.math.expand_packed_triangular(3, s * pt.as_tensor(ROOT[np.tril_indices(3)]))
    return L.dot(L.T)


FACTORS = {
    "chol": lambda s: pm.MvNormal("f", mu=0, chol=factor(s)),
    "upper": lambda s: pm.MvNormal("f", mu=np.ones(3), chol=factor(s).T, lower=False),
    "product": lambda s: pm.MvNormal("f", mu=np.zeros(3), cov=product(s)),
    "copies": lambda s: pm.MvNormal("f", mu=np.zeros(3), chol=factor(s), shape=(2, 3))[1],
    "batch": lambda s: pm.MvNormal("f", mu=np.zeros(3), chol=factor(s)[None])[0],
    "data": lambda s: pm.MvNormal("f", mu=np.zeros(3), chol=s * pm.Data("root", ROOT)),
}


@pytest.mark.parametrize("spelling", FACTORS)
def test_a_cholesky_factor_keeps_its_digits(spelling):
    with pm.Model() as model:
        observe(FACTORS[spelling](pm.HalfNormal("s", 1)), BINARY[:3])
    reading = Reading(model, recognize(model))
    assert [block.kind for block in reading.lgm.blocks] == ["factor"]
    theirs = model.compile_logp(mode=python_mode())
    for point in reading.points():
        # Far beyond the prior every direction counts.
        point["f"] = np.asarray(40.0 * RNG.standard_normal(point["f"].shape))
        away = np.atleast_2d(point["f"]) - (spelling == "upper")
        v = solve_triangular(np.exp(point["s_log__"]) * ROOT, away.T, lower=True)
        found = reading.log_density(point)
        assert found == pytest.approx(-0.5 * np.sum(v**2), rel=1e-12)
        if spelling not in ("upper", "batch"):  # which PyMC factorises
            assert found == pytest.approx(float(theirs(point)), rel=1e-12)


def test_what_pymc_does_not_take_for_a_factor_is_none(read):
    signs, above = np.diag([1.0, -1.0, 1.0]), np.triu(np.ones((3, 3)), 1)
    root = np.linalg.cholesky(np.eye(3) + 0.5)
    for chol in (root @ signs, root + above):
        with pm.Model() as model:
            # A product of constants is computed, and factorised.
            observe(pm.MvNormal("f", mu=0, chol=chol), BINARY[:3])
        assert [block.kind for block in read(model).lgm.blocks] == ["dense"]
    with pm.Model() as model:
        observe(pm.MvNormal("f", mu=0, chol=pm.HalfNormal("s", 1) * (root + above)), BINARY[:3])
    with pytest.raises(pac.RecognitionError, match=r"factor of .*'f'.* lower triangular.*\[0, 1\]"):
        recognize(model)
    with pm.Model() as model:
        observe(pm.MvNormal("f", mu=0, chol=pm.HalfNormal("s", 1) * (root @ signs)), BINARY[:3])
    with pytest.raises(pac.RecognitionError, match=r"factor of .*'f'.* positive diagonal"):
        recognize(model)


@pytest.mark.parametrize("lkj", [False, True])
def test_batch_of_multivariate_normals(lkj, read):
    with pm.Model() as model:
        chol = np.linalg.cholesky(np.eye(2) + 0.5)
        if lkj:
            sd = pm.HalfNormal.dist(1, shape=2)
            chol, _, _ = pm.LKJCholeskyCov("L", n=2, eta=2, sd_dist=sd, compute_corr=True)
        b = pm.MvNormal("b", mu=pm.Normal("m", 0, 1, shape=2), chol=chol, shape=(3, 2))
        observe(b[GROUP, 0] + b[GROUP, 1] * X[:, 0])
    reading = read(model)
    assert reading.kinds == {"b": "sum of selections", "m": "design matrix"}
    assert (reading.lgm.blocks[0].size, reading.lgm.blocks[0].copies) == (2, 3)
    assert reading.roles == ({"L": "prior"} if lkj else {})


def test_non_centred_correlated_effects(read):
    with pm.Model() as model:
        sd = pm.HalfNormal.dist(1, shape=2)
        chol, _, _ = pm.LKJCholeskyCov("L", n=2, eta=2, sd_dist=sd, compute_corr=True)
        b = pt.dot(chol, pm.Normal("z", 0, 1, shape=(2, 3))).T
        observe(b[GROUP, 0] + b[GROUP, 1] * X[:, 0])
    assert read(model).kinds == {"z": "sum of selections, scaled by hyperparameters"}


def test_a_covariance_each(read):
    with pm.Model() as model:
        covs = np.stack([np.eye(2), np.eye(2) + 0.5])
        f = pm.MvNormal("f", mu=np.zeros(2), cov=covs, shape=(2, 2))
        observe(f[GROUP % 2, BINARY] + pm.Normal("b", 0, 1))
    reading = read(model)
    assert reading.kinds == {"f": "selection", "b": "selection"}
    assert reading.roles == {}


# -- Normal -----------------------------------------------------------------------------------

NORMALS = {
    "vector": (lambda: pm.Normal("b", 0, 1, shape=N), "identity"),
    "scalar": (lambda: pm.Normal("b", 0.3, pm.HalfNormal("s", 1)), "selection"),
    "tau": (lambda: pm.Normal("b", 0, tau=pm.HalfNormal("s", 1), shape=3)[GROUP], "selection"),
    "matrix": (
        lambda: pm.Normal("b", 0, pm.HalfNormal("s", 1, shape=2), shape=(3, 2))[GROUP, BINARY],
        "selection",
    ),
}


@pytest.mark.parametrize("spelling", NORMALS)
def test_independent_normals(spelling, read):
    build, kind = NORMALS[spelling]
    with pm.Model() as model:
        observe(build())
    reading = read(model)
    assert reading.kinds == {"b": kind}
    assert reading.lgm.blocks[0].kind == "diagonal"
    assert reading.roles.get("s", "prior") == "prior"


def test_single_observation_of_a_scalar(read):
    with pm.Model() as model:
        observe(pm.Normal("b", 0, 1), 1)
    assert read(model).kinds == {"b": "identity"}


# -- hierarchies ------------------------------------------------------------------------------


def test_hierarchy_is_jointly_gaussian(read):
    with pm.Model() as model:
        top = pm.Normal("top", 0, 1)
        mid = pm.Normal("mid", top, pm.HalfNormal("s", 1), shape=2)
        alpha = pm.Normal("alpha", 2 * mid[[0, 1, 1]] + 1, pm.HalfNormal("t", 1), shape=3)
        observe(alpha[GROUP] + mid[0] * X[:, 0])
    reading = read(model)
    # mid enters three predictors of its own and through alpha; top through mid alone.
    assert set(reading.kinds) == {"top", "mid", "alpha"}
    assert reading.kinds["alpha"] == "selection"
    assert reading.roles == {"s": "prior", "t": "prior"}
    means = {b.name: () if b.mean is None else b.mean.names for b in reading.lgm.blocks}
    assert means == {
        "alpha": (Argument("value", "mid"),),
        "mid": (Argument("value", "top"),),
        "top": (),
    }


def test_process_as_the_mean_of_noise(read):
    with pm.Model() as model:
        observe(pm.Normal("eps", gp().prior("f", X=X), pm.HalfNormal("s", 1)))
    reading = read(model)
    assert reading.kinds == {"f": "identity", "eps": "identity"}
    eps = reading.lgm.blocks[1]
    assert eps.mean.names == (Argument("value", "f"),)


def test_hierarchy_above_a_mean_function(read):
    with pm.Model() as model:
        c = pm.Normal("c", pm.Normal("c0", 1, 1), 1)
        observe(gp(mean_func=ConstantMean(c)).prior("f", X=X, reparameterize=False))
    assert read(model).kinds == {"f": "identity", "c": "selection", "c0": "selection"}


def test_non_centred_hierarchy(read):
    with pm.Model() as model:
        z, sigma = pm.Normal("z", 0, 1, shape=3), pm.HalfNormal("sigma", 1)
        alpha = pm.Deterministic("alpha", pm.Normal("mu", 0, 1) + sigma * z)
        observe(alpha[GROUP])
    reading = read(model)
    assert reading.kinds == {"z": "selection, scaled by hyperparameters", "mu": "selection"}
    assert reading.roles == {"sigma": "prior"}


# -- Hilbert space approximations --------------------------------------------------------------

SCALED_COLUMNS = "design matrix, columns scaled by hyperparameters"
HSGP = {
    "non-centred": (lambda: hsgp().prior("f", X=X), SCALED_COLUMNS),
    "centred": (lambda: hsgp(parametrization="centered").prior("f", X=X), "design matrix"),
}


@pytest.mark.parametrize("parametrization", HSGP)
def test_hsgp(parametrization, read):
    build, kind = HSGP[parametrization]
    with pm.Model() as model:
        observe(build() + pm.Normal("b", 0, 1))
    reading = read(model)
    assert reading.kinds == {"f_hsgp_coeffs": kind, "b": "selection"}
    assert reading.roles == {"eta": "prior", "ls": "prior"}


@pytest.mark.parametrize("centred", [False, True])
def test_hsgp_linearised(centred, read):
    with pm.Model() as model:
        process = hsgp()
        phi, sqrt_psd = process.prior_linearized(X=pm.Data("X", X))
        size = process.n_basis_vectors
        beta = pm.Normal("beta", 0, sqrt_psd if centred else 1, shape=size)
        observe(phi @ (beta if centred else beta * sqrt_psd))
    assert read(model).kinds == {"beta": "design matrix" if centred else SCALED_COLUMNS}


def test_hsgp_with_dims(read):
    with pm.Model(coords={"obs": np.arange(N), "basis": np.arange(16)}) as model:
        observe(hsgp().prior("f", X=X, dims="obs", hsgp_coeffs_dims="basis"), dims="obs")
    assert read(model).kinds == {"f_hsgp_coeffs": SCALED_COLUMNS}


def test_periodic_hsgp(read):
    with pm.Model() as model:
        cov = Periodic(1, period=1.0, ls=length_scale())
        process = pm.gp.HSGPPeriodic(m=4, scale=pm.HalfNormal("eta", 1), cov_func=cov)
        observe(process.prior("f", X=X[:, :1]))
    assert list(read(model).kinds.values()) == [SCALED_COLUMNS]


# -- nothing ----------------------------------------------------------------------------------

EMPTY = {
    "Normal": lambda: pt.dot(np.zeros((N, 0)), pm.Normal("c", 0, 1, shape=0)),
    "MvNormal": lambda: pt.dot(np.zeros((N, 0)), pm.MvNormal("c", np.zeros(0), np.eye(0), shape=0)),
    "HalfNormal": lambda: pm.HalfNormal("c", 1, shape=0).sum(),
}


@pytest.mark.parametrize("spelling", EMPTY)
def test_variables_without_entries_are_no_latents(spelling, read):
    with pm.Model() as model:
        observe(EMPTY[spelling]() + pm.Normal("b", 0, 1))
    assert set(read(model).kinds) == {"b"}


def test_observed_variables_without_observations_are_refused():
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        observe(b)
        pm.Normal("y2", b * np.ones(0), 1, observed=np.zeros(0))
    with pytest.raises(pac.DataError, match=r"'y2'.*expected observations, found the shape \(0,\)"):
        pac.recognize(model)
