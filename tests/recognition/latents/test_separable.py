"""Covariances that are products over the axes of a grid are found, and no others."""

from __future__ import annotations

import arviz as az
import numpy as np
import pymc as pm
import pytest
from pytensor.graph.traversal import ancestors

import pymc_augconj as pac
from pymc_augconj.latents import by_grid
from pymc_augconj.latents.by_grid import GridSolver
from pymc_augconj.python_mode import python_mode
from pymc_augconj.recognition.graph.interpreter import NotInterpretedError
from pymc_augconj.recognition.latents import normal, separable
from pymc_augconj.recognition.latents.markov import is_product_with_cholesky
from pymc_augconj.recognition.latents.separable import grid_product
from pymc_augconj.recognition.prediction.transitions import GridProcess
from pymc_augconj.recognition.processes import other_graphs

cov = pm.gp.cov


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch):
    monkeypatch.setattr(normal, "_FEWEST", 5)
    monkeypatch.setattr(separable, "_MOST_TIME", np.inf)
    monkeypatch.setattr(other_graphs, "_FEWEST_ON_GRID", 5)
    monkeypatch.setattr(by_grid, "_MOST_COLUMNS", 2)
    monkeypatch.setattr(GridSolver, "multiplications", classmethod(by_grid_where_it_fits))


def by_grid_where_it_fits(cls, blocks, groups):
    return 0.0 if cls.fits(blocks, groups) else np.inf


def a_grid(*lengths):
    rng = np.random.default_rng(0)
    axes = [np.sort(rng.uniform(0.0, 3.0, n)) for n in lengths]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(lengths))


def places_and_times():
    """Of eight places, which are no grid, and three times."""
    rng = np.random.default_rng(1)
    places = rng.uniform(0.0, 3.0, (8, 2))
    return np.array([(*place, t) for t in (0.0, 0.3, 1.0) for place in places])


def scales(size=2):
    return pm.LogNormal("ls", -0.3, 0.5, shape=size), pm.HalfNormal("eta", 1.0, initval=0.7)


def of_product(width):
    ls, eta = scales()
    return (
        eta**2
        * cov.Matern52(width, ls[0], active_dims=[0])
        * cov.ExpQuad(width, ls[1], active_dims=list(range(1, width)))
    )


def of_space_and_time():
    ls, eta = scales()
    space = cov.Matern32(3, ls[0], active_dims=[0, 1])
    return eta**2 * space * cov.Exponential(3, ls[1], active_dims=[2]) + cov.WhiteNoise(0.4 * eta)


def of_a_period():
    ls, eta = scales(1)
    return (
        eta**2
        * cov.Periodic(2, period=0.9, ls=ls, active_dims=[0])
        * cov.RatQuad(2, alpha=1.3, ls=0.8, active_dims=[1])
    )


def of_lengthscales(width):
    ls, eta = scales(width)
    return eta**2 * cov.ExpQuad(width, ls=ls)


SHUFFLED = np.random.default_rng(2).permutation(20)
READ = {
    "product": (lambda: of_product(2), a_grid(5, 4), (5, 4)),
    "lengthscales": (lambda: of_lengthscales(3), a_grid(3, 4, 2), (3, 4, 2)),
    # Columns that vary together are one axis.
    "product of three columns": (lambda: of_product(3), a_grid(3, 4, 2), (3, 4, 2)),
    "places and times": (of_space_and_time, places_and_times(), (8, 3)),
    "no order": (lambda: of_product(2), a_grid(5, 4)[SHUFFLED], (5, 4)),
    "missing cells, one twice": (
        of_a_period, a_grid(5, 4)[np.append(SHUFFLED[:17], SHUFFLED[3])], (5, 4)
    ),
}  # fmt: skip


def a_model(kernel, X, *, data=False, more=None):
    with pm.Model() as model:
        rows = pm.Data("X", X) if data else X
        f = pm.gp.Latent(cov_func=kernel()).prior("f", rows)
        pm.Poisson("y", pm.math.exp(0.3 * f), observed=np.arange(len(X)) % 4)
        if more is not None:
            more(model)
    return model


def the_product(model):
    found = [v.owner for v in ancestors([model["f"]]) if v.owner is not None]
    return next(node for node in found if is_product_with_cholesky(node))


@pytest.mark.parametrize("data", [False, True])
@pytest.mark.parametrize("name", READ)
def test_the_covariance_is_that_of_the_product(name, data):
    kernel, X, grid = READ[name]
    model = a_model(kernel, X, data=data)
    node = the_product(model)
    found = grid_product(node)
    assert sorted(found.grid) == sorted(grid)
    assert found.whitened is model["f_rotated_"]
    # Inputs in the order of a grid are taken as they are.
    in_order = np.array_equal(found.cells, np.arange(len(X)))
    assert in_order == name.startswith(("product", "lengthscales"))
    parameters = [model["ls"], model["eta"]]
    outputs = [node.inputs[0].owner.inputs[0], found.noise, *found.factors]
    evaluate = pm.pytensorf.compile(parameters, outputs, mode=python_mode())
    rng = np.random.default_rng(3)
    for _ in range(3):
        ls = np.exp(rng.uniform(-2.0, 1.0, model["ls"].type.shape))
        K, noise, *factors = evaluate(ls, rng.uniform(0.1, 3.0))
        whole = np.ones((1, 1))
        for factor in factors:
            whole = np.kron(whole, factor)
        whole = whole[np.ix_(found.cells, found.cells)] + noise * np.eye(len(X))
        np.testing.assert_allclose(whole, K, atol=1e-9 * K.max())


def of_distances():
    ls, eta = scales(1)
    return eta**2 * cov.Matern52(2, ls=ls)


def of_a_sum():
    ls, eta = scales()
    one, two = cov.ExpQuad(2, ls[0], active_dims=[0]), cov.ExpQuad(2, ls[1], active_dims=[1])
    return eta**2 * (one + two)


def of_columns():
    ls, _ = scales()
    one, two = cov.Linear(2, c=0.1, active_dims=[0]), cov.ExpQuad(2, ls[1], active_dims=[1])
    return one * two


def test_smooth_factors_of_coordinates_far_from_zero_are_positive_definite():
    X = np.array([(north, t) for north in np.linspace(5.0e6, 5.1e6, 60) for t in (0.0, 0.1)])
    time = cov.Exponential(2, 1.0, active_dims=[1])
    model = a_model(lambda: cov.ExpQuad(2, 1e3 * scales()[0][0], active_dims=[0]) * time, X)
    root, _ = grid_product(the_product(model)).roots
    evaluate = pm.pytensorf.compile([model["ls"]], root, mode=python_mode())
    for ls in (4.0, 5.0, 8.0):
        assert np.isfinite(evaluate([ls, 1.0])).all()


def of_noise_inside():
    ls, eta = scales()
    return eta**2 * (cov.ExpQuad(2, ls) + cov.WhiteNoise(0.1))


def of_a_lengthscale_that_switches():
    """A product below 30 alone."""
    ls, _ = scales(1)
    far = pm.math.switch(ls[0] > 30.0, 1.0, 0.0)
    return far * cov.Matern52(2, ls=ls) + (1.0 - far) * cov.ExpQuad(2, ls=ls)


REFUSED = {
    "of a lengthscale that switches": (of_a_lengthscale_that_switches, a_grid(5, 4)),
    "of distances": (of_distances, a_grid(5, 4)),
    # All correlations are zero at lengthscales of the order of one.
    "of distances in metres": (of_distances, 1e6 * a_grid(5, 4)),
    "a sum": (of_a_sum, a_grid(5, 4)),
    "of a variance that varies": (of_columns, a_grid(5, 4)),
    "noise inside, which has the number of inputs": (of_noise_inside, a_grid(5, 4)),
    "no grid": (lambda: of_product(2), np.random.default_rng(4).uniform(0.0, 3.0, (20, 2))),
    "half a grid": (lambda: of_product(2), a_grid(5, 4)[SHUFFLED[:10]]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_covariances_are_no_product(name):
    with pytest.raises(NotInterpretedError):
        grid_product(the_product(a_model(*REFUSED[name])))


def test_axes_whose_eigenvectors_take_long_are_none(monkeypatch):
    monkeypatch.undo()
    with pytest.raises(NotInterpretedError):
        grid_product(the_product(a_model(lambda: of_product(2), a_grid(5, 4))))


def test_whitened_values_with_another_use_stay():
    model = a_model(
        lambda: of_product(2),
        a_grid(5, 4),
        more=lambda m: pm.Normal("z", m["f_rotated_"][0], 1.0, observed=0.3),
    )
    assert other_graphs.in_linear_time(model, grids=True) is model


def test_processes_whose_sum_takes_a_large_matrix_keep_their_whitened_values():
    with pm.Model() as model:
        kernel = of_product(2)
        f, h = (pm.gp.Latent(cov_func=kernel).prior(name, a_grid(5, 4)) for name in "fh")
        pm.Poisson("y", pm.math.exp(f + h), observed=np.arange(20) % 4)
    assert {b.name for b in pac.recognize(model).model.blocks} == {"f", "h"}


def test_draws_have_the_process_and_not_its_whitened_values():
    model = a_model(lambda: of_product(2), a_grid(5, 4))
    report = pac.recognize(model)
    assert {b.name for b in report.model.blocks} == {"f_on_grid", "f_noise"}
    quiet = {"progressbar": False, "compute_convergence_checks": False}
    with pytest.warns(UserWarning, match="'f_rotated_': expected few inputs, found a grid"):
        tree = pac.sample(3, tune=5, chains=1, model=model, random_seed=1, **quiet)
    assert set(tree["posterior"].data_vars) == {"ls", "eta", "f"}
    # Asked for alone, the rest is recorded without a word.
    tree = pac.sample(
        3, tune=5, chains=1, model=model, random_seed=1, var_names=["f", "eta"], **quiet
    )
    assert set(tree["posterior"].data_vars) == {"f", "eta"}


@pytest.mark.parametrize("joint", [False, True])
def test_predictions_are_those_of_the_whole_matrix(joint, monkeypatch):
    X, rng = a_grid(5, 4)[SHUFFLED], np.random.default_rng(5)
    with pm.Model() as model:
        ls, eta = scales()
        kernel = eta**2 * cov.Matern52(2, ls[0], active_dims=[0])
        kernel = kernel * cov.Matern32(2, ls[1], active_dims=[1])
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(0.3), cov_func=kernel)
        pm.Poisson("y", pm.math.exp(gp.prior("f", X)), observed=np.arange(20) % 4)
    draws = {
        "f": rng.standard_normal((1, 5, 20)),
        "ls": rng.uniform(0.3, 2.0, (1, 5, 2)),
        "eta": rng.uniform(0.5, 2.0, (1, 5)),
    }
    # Two draws of one kernel.
    draws["ls"][:, 3], draws["eta"][:, 3] = draws["ls"][:, 0], draws["eta"][:, 0]
    tree = az.from_dict({"posterior": draws})
    # The last is an old input.
    Xnew = np.vstack([rng.uniform(-0.5, 3.5, (7, 2)), X[:1]])

    def predicted():
        found = pac.predict(tree, gp, Xnew, model=model, joint=joint, random_seed=1)
        return found["predictions"]["f"].values

    on_grid = predicted()
    assert GridProcess.find(model, "f") is not None
    monkeypatch.setattr(other_graphs, "_FEWEST_ON_GRID", 100)
    assert GridProcess.find(model, "f") is None
    np.testing.assert_allclose(on_grid, predicted(), rtol=1e-6, atol=1e-7)


def test_predictions_at_some_cells_of_a_grid_take_the_whole_matrix():
    model = a_model(lambda: of_product(2), a_grid(5, 4)[SHUFFLED[:17]])
    assert GridProcess.find(model, "f") is None


@pytest.mark.parametrize("var_names", [None, ["f"]])
@pytest.mark.parametrize("form", ["grid", "unsorted"])
def test_log_likelihoods_of_draws_without_whitened_values(form, var_names, monkeypatch):
    monkeypatch.setattr(other_graphs, "_FEWEST", 5)
    monkeypatch.setattr(other_graphs, "_FEWEST_UNORDERED", 5)
    if form == "grid":
        X, kernel = a_grid(5, 4), lambda: cov.ExpQuad(2, ls=[0.8, 1.3])
    else:
        X, kernel = a_grid(20)[np.random.default_rng(2).permutation(20)], lambda: cov.Matern32(1, 1)
    quiet = {"progressbar": False, "compute_convergence_checks": False}
    with pytest.warns((UserWarning, FutureWarning)):
        tree = pac.sample(
            3, tune=5, chains=1, model=a_model(kernel, X), var_names=var_names,
            idata_kwargs={"log_likelihood": True}, **quiet,
        )  # fmt: skip
    assert set(tree["posterior"].data_vars) == {"f"}
    assert set(tree["posterior"].dims) == {"chain", "draw", "f_dim_0"}
    # The remedy that the warning names.
    with pm.Model() as other:
        pm.Poisson("y", pm.math.exp(0.3 * pm.Flat("f", shape=20)), observed=np.arange(20) % 4)
    with pac.without_compilation():
        expected = pm.compute_log_likelihood(
            tree, model=other, extend_inferencedata=False, progressbar=False
        )
    np.testing.assert_allclose(tree["log_likelihood"]["y"], expected["y"], rtol=1e-10)


@pytest.mark.parametrize(
    "named", [{"var_names": ["f_rotated_"]}, {"initvals": {"f_rotated_": np.ones(20)}}]
)
def test_whitened_values_that_are_asked_for_stay(named):
    model = a_model(lambda: of_product(2), a_grid(5, 4))
    tree = pac.sample(
        3, tune=5, chains=1, model=model, progressbar=False, compute_convergence_checks=False,
        **named,
    )  # fmt: skip
    assert "f_rotated_" in tree["posterior"]
