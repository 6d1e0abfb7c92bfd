"""A likelihood of two coupled predictors, made for this test: which of two competitors wins.

y ~ Bernoulli(σ(f − g)), ω ~ PG(1, f − g): both predictors are drawn together, and Λ is a block.
Everything is also a model of the one predictor f − g, with which the fits are compared.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from numpy.polynomial.hermite_e import hermegauss

import pymc_augconj as pac
from pymc_augconj.engines.gibbs.sampler import GibbsSampler
from pymc_augconj.engines.variational.ascent import climb
from pymc_augconj.engines.variational.bound import (
    BoundFamily,
    CoordinateAscent,
    VariationalGaussian,
)
from pymc_augconj.likelihoods.bernoulli_logit import BernoulliLogit
from pymc_augconj.likelihoods.contract import MultiLikelihood
from pymc_augconj.plan import make_plan
from tests.engines.test_several_predictors import (
    K_F,
    K_G,
    OFFSET,
    apart,
    draws_of,
    start,
    z_scores,
)

ONE = BernoulliLogit()
SIGN = np.array([1.0, -1.0])
BLOCK = np.multiply.outer(SIGN, SIGN)
Y = np.array([1.0, 0.0])


class Winner(MultiLikelihood):
    """The Pólya–Gamma augmentation of the difference, a block of rank one."""

    name = "paired comparison"
    augmentation = "Pólya–Gamma PG(1, f − g)"
    n_predictors = 2
    traits = pac.Traits(coupled=True)
    discrete = True

    def log_density(self, y, eta, params):
        return ONE.log_density(y, eta[0] - eta[1], params)

    def draw_auxiliary(self, rng, y, eta, params, group):
        return ONE.draw_auxiliary(rng, y, eta[0] - eta[1], params)

    def sites(self, y, omega, params, eta, group):
        h, lam = ONE.sites(y, omega, params)
        return np.multiply.outer(SIGN, h), np.multiply.outer(BLOCK, lam)

    def _of_difference(self, mean, cov):
        return mean[0] - mean[1], np.einsum("pq,pqn->n", BLOCK, cov)

    def expected_sites(self, y, mean, var, params):
        h, lam = ONE.expected_sites(y, *self._of_difference(mean, var), params)
        return np.multiply.outer(SIGN, h), np.multiply.outer(BLOCK, lam)

    def expected_log_bound(self, y, mean, var, params):
        return ONE.expected_log_bound(y, *self._of_difference(mean, var), params)

    def log_base(self, y, omega, params, eta, group):
        return ONE.log_base(y, omega, params)

    def log_conditional(self, omega, y, eta, params, group):
        return ONE.log_conditional(omega, y, eta[0] - eta[1], params)


def model():
    return apart(Winner(), Y, K_F, K_G, OFFSET)


def exact():
    """Return log p(y), and first and second moments of (f₁, f₂, g₁, g₂), by quadrature."""
    nodes, weights = hermegauss(24)
    z = np.stack([axis.ravel() for axis in np.meshgrid(*[nodes] * 4, indexing="ij")])
    weight = np.prod(np.stack([w.ravel() for w in np.meshgrid(*[weights] * 4)]), axis=0)
    u = np.concatenate([np.linalg.cholesky(K_F) @ z[:2], np.linalg.cholesky(K_G) @ z[2:]])
    density = ONE.log_density(Y[:, None], u[:2] - u[2:] - OFFSET, {}).sum(axis=0)
    weight = weight / (2.0 * np.pi) ** 2 * np.exp(density)
    total = weight.sum()
    return np.log(total), u @ weight / total, u**2 @ weight / total


def test_gibbs_has_the_posterior():
    at = model()
    sampler = GibbsSampler(at, make_plan(at), start(at))
    _, first, second = exact()
    draws = draws_of(sampler, at, 2500)
    assert z_scores(draws, first, second).max() < 5.0
    # Negative control: the prior's moments are told apart.
    assert z_scores(draws, 0.0 * first, np.diag(np.kron(np.eye(2), K_F))).max() > 5.0


@pytest.mark.parametrize(
    ("method", "rule"), [("cavi", CoordinateAscent), ("vgp", VariationalGaussian)]
)
def test_fits_are_those_of_the_one_predictor(method, rule):
    with pm.Model() as one:
        d = pm.MvNormal("d", np.zeros(2), K_F + K_G)
        pm.Bernoulli("y", logit_p=d - OFFSET, observed=Y.astype(int))
    fit = pac.fit(method, model=one, tol=1e-9, progressbar=False)
    found = climb(BoundFamily(model(), rule(), [{}]).at({}), max_iter=500, tol=1e-9)
    assert found.converged, found.message
    assert found.evaluation.bound == pytest.approx(fit.log_evidence, abs=1e-8)
    assert found.evaluation.bound < exact()[0]
    mean = found.evaluation.mean.reshape(2, 2)
    np.testing.assert_allclose(mean[0] - mean[1], fit._posterior.mean, atol=1e-6)
