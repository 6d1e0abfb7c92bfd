"""The contract between a likelihood and the engines: an observation with P predictors.

Arrays of predictors are (P, N) for every P, also for P = 1. A likelihood of one predictor is
written with arrays of shape (N,), see :mod:`.base`; :class:`OnePredictor` translates. One of
several predictors is a :class:`MultiDensity`, or with an augmentation a :class:`MultiLikelihood`.

**Groups.** The Gibbs sampler draws the predictors of one *group* together, given the others'. With
η_g those of group g, ω_g is an auxiliary variable for which

    log p(y, ω_g | η) = h_gᵀ η_g − ½ η_gᵀ Λ_g η_g + log_base,

h_g, Λ_g and log_base being free of η_g, but not of the other predictors. A step goes through the
groups in the order in which they are named, and draws ω_g immediately before η_g, given all
predictors as they are then; what belongs to other groups is integrated out, so that an ω_g may not
be used again once another group has moved. Coordinate ascent goes through the groups likewise.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.random import Generator

from pymc_augconj.typing import Array

from .base import Density, Expected, Params, Sites

__all__ = ["MultiDensity", "MultiLikelihood", "OnePredictor", "as_several"]


class MultiDensity(Density):
    """One observation model of P predictors, known by its density."""

    augmentation = "none: vgp"
    #: Whether :meth:`expected_log_density` is for independent predictors: it ignores covariances,
    #: and the variational Gaussian is one in which predictors are independent.
    factorises: bool = False
    #: Whether :meth:`expected_log_density` is a quadrature, not a closed form.
    expected_by_rule: bool = False
    #: Whether held sites are those of :meth:`propagated_sites`: where the density is a step, which
    #: the variational ones resemble badly.
    propagates: bool = False
    #: Whether log p is bounded below: an observation that a fit has far on the wrong side pulls no
    #: more, so that fits give the observations their weight little by little.
    is_bounded: bool = False

    #: Whether sites, where there are some, have Λ as blocks, (P, P, N), instead of its diagonal,
    #: (P, N).
    coupled: bool = False
    #: K, if y is a class 0, …, K − 1, or counts of classes; None otherwise.
    n_classes: int | None = None

    @property
    def has_gradient(self) -> bool:
        """Whether there is a :meth:`log_density_and_gradient`."""
        return type(self).log_density_and_gradient is not MultiDensity.log_density_and_gradient

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The predictors that one Gaussian move draws together, in the order of the moves."""
        return (tuple(range(self.n_predictors)),)

    def log_density_and_gradient(self, y: Array, eta: Array, params: Params) -> tuple[Array, Array]:
        """Return log p(y | η), shape (N,), and an approximation of its gradient, (P, N)."""
        raise NotImplementedError(f"{self.name} has no gradient")

    def expected_log_density(
        self, y: Array, mean: Array, cov: Array, params: Params
    ) -> Expected | None:
        """Return E[log p(y | η)], η ~ N(mean, cov), and its derivatives.

        Parameters
        ----------
        y : ndarray, shape (N,)
        mean : ndarray, shape (P, N)
        cov : ndarray, shape (P, P, N)
        params : mapping

        Returns
        -------
        tuple of ndarray, or None
            Of shapes (N,), (P, N) and (P, P, N), the last one symmetric: d E = Σ_pq D_pq dV_pq.
            None where there is no closed form: engines then take a cubature.
        """
        return None

    def expected_log_density_apart(
        self, y: Array, mean: Array, var: Array, params: Params
    ) -> Expected | None:
        """Return the same for independent predictors, with derivatives by their variances.

        All are of shape (P, N) but the value. None where there is no closed form.
        """
        cov = np.einsum("pq,pn->pqn", np.eye(len(mean)), var)
        found = self.expected_log_density(y, mean, cov, params)
        return None if found is None else (*found[:2], np.einsum("ppn->pn", found[2]))

    def expected_with_gradient(
        self, y: Array, mean: Array, var: Array, params: Params
    ) -> tuple[Array, Array] | None:
        """Return the expectation for independent predictors and its derivative by their means.

        A sampler asks for it at every evaluation: ``expected_by_rule`` it may be by a rule that is
        cheaper than that of fits. None where there is neither that nor a closed form.
        """
        if self.expected_by_rule:
            return None
        found = self.expected_log_density_apart(y, mean, var, params)
        return None if found is None else found[:2]

    def expected_roughly(
        self, y: Array, mean: Array, cov: Array, params: Params
    ) -> Expected | None:
        """Return what :meth:`expected_log_density` does with the few digits that held sites need.

        None where that is cheap enough.
        """
        return None

    def propagated_sites(
        self,
        y: Array,
        mean: Array,
        cov: Array,
        residual_var: Array,
        sites: tuple[Array, Array],
        params: Params,
    ) -> tuple[Array, Array]:
        """Return the sites that expectation propagation replaces ``sites`` by.

        Parameters
        ----------
        y : ndarray, shape (N,)
        mean : ndarray, shape (P, N)
            Of the predictors under the approximation of which ``sites`` are a part.
        cov : ndarray, shape (P, P, N)
        residual_var : ndarray, shape (P, N)
            The density is E log p(y | η + e) with e ~ N(0, residual_var), if these are not zero.
        sites : pair of ndarray, shapes (P, N) and (P, P, N)
        params : mapping

        Returns
        -------
        pair of ndarray
            Of the shapes of ``sites``, Λ without negative eigenvalues.
        """
        raise NotImplementedError(f"{self.name} has no sites by expectation propagation")

    def caution(self, y: Array, prior_mean: Array, params: Params) -> str | None:
        """Return a warning about what a Gaussian approximation misses, or None."""
        return None

    def class_probabilities(self, eta: Array, params: Params) -> Array | None:
        """Return the probability of each class, shape (K, …), or None where y is no class."""
        if self.n_classes is None:
            return None
        classes = [np.float64(k) for k in range(self.n_classes)]
        return np.exp([self.log_density(np.array(k), eta, params) for k in classes])

    def class_probabilities_apart(self, mean: Array, var: Array, params: Params) -> Array:
        """Return the probabilities' expectations over independent normal predictors, (P, N).

        Of shape (K, N). Likelihoods of classes that :attr:`factorises` have them.
        """
        raise NotImplementedError(f"{self.name} has no class probabilities of normal predictors")


class MultiLikelihood(MultiDensity):
    """One observation model of P predictors, augmented; see the module's docstring."""

    can_augment = True
    has_auxiliary = True

    @abstractmethod
    def draw_auxiliary(
        self, rng: Generator, y: Array, eta: Array, params: Params, group: int
    ) -> Any:
        """Draw ω_g ~ p(ω_g | y, η) exactly, given all predictors, shape (P, N)."""

    @abstractmethod
    def sites(self, y: Array, omega: Any, params: Params, eta: Array, group: int) -> Sites:
        """Return (h_g, Λ_g); of ``eta``, shape (P, N), only the other groups' rows may be read."""

    def as_normal(self, y: Array, params: Params) -> tuple[Array, Array] | None:
        """See :meth:`.Likelihood.as_normal`."""
        return None

    def as_logistic(self, y: Array, params: Params) -> tuple[Array, Array] | None:
        """See :meth:`.Likelihood.as_logistic`."""
        return None

    def as_normal_mixture(self, y: Array, params: Params) -> tuple[Array, Array] | None:
        """See :meth:`.Likelihood.as_normal_mixture`."""
        return None

    @abstractmethod
    def expected_sites(self, y: Array, mean: Array, var: Array, params: Params) -> Sites:
        """Return E[(h, Λ)] of all predictors under the optimal q(ω) when η ~ N(mean, var).

        ``var`` has the shape of Λ: variances, or covariances where predictors are coupled.
        """

    @abstractmethod
    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        """Return the site's part of the evidence lower bound, see :class:`.base.Likelihood`.

        Its derivatives are the expected sites, ∂/∂m = h − Λm and ∂/∂V = −½Λ.
        """

    @abstractmethod
    def log_base(self, y: Array, omega: Any, params: Params, eta: Array, group: int) -> Array:
        """Return log p(y, ω_g | η) − (h_gᵀη_g − ½ η_gᵀΛ_g η_g), shape (N,)."""

    @abstractmethod
    def log_conditional(
        self, omega: Any, y: Array, eta: Array, params: Params, group: int
    ) -> Array:
        """Return log p(ω_g | y, η), the density that :meth:`draw_auxiliary` draws from."""


class OnePredictor(MultiLikelihood):
    """A likelihood of one predictor, as one of several would be written."""

    def __init__(self, likelihood: Density) -> None:
        # Any, because engines call what belongs to an augmentation only where there is one.
        self.likelihood: Any = likelihood
        self.name, self.link = likelihood.name, likelihood.link
        self.can_augment, self.has_auxiliary = likelihood.can_augment, likelihood.has_auxiliary
        self.levels = likelihood.levels

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        return self.likelihood.log_density(y, eta[0], params)

    def expected_log_density(
        self, y: Array, mean: Array, cov: Array, params: Params
    ) -> Expected | None:
        found = self.likelihood.expected_log_density(y, mean[0], cov[0, 0], params)
        if found is None:
            return None
        value, d_mean, d_var = found
        return value, d_mean[None], d_var[None, None]

    def caution(self, y: Array, prior_mean: Array, params: Params) -> str | None:
        return self.likelihood.caution(y, prior_mean[0], params)

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array] | None:
        return self.likelihood.moments(eta[0], params)

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        return self.likelihood.cdf(y, eta[0], params)

    def draw_auxiliary(
        self, rng: Generator, y: Array, eta: Array, params: Params, group: int
    ) -> Any:
        return self.likelihood.draw_auxiliary(rng, y, eta[0], params)

    def sites(self, y: Array, omega: Any, params: Params, eta: Array, group: int) -> Sites:
        h, lam = self.likelihood.sites(y, omega, params)
        return h[None], lam[None]

    def as_normal(self, y: Array, params: Params) -> tuple[Array, Array] | None:
        return self.likelihood.as_normal(y, params)

    def as_logistic(self, y: Array, params: Params) -> tuple[Array, Array] | None:
        return self.likelihood.as_logistic(y, params)

    def as_normal_mixture(self, y: Array, params: Params) -> tuple[Array, Array] | None:
        return self.likelihood.as_normal_mixture(y, params)

    def expected_sites(self, y: Array, mean: Array, var: Array, params: Params) -> Sites:
        h, lam = self.likelihood.expected_sites(y, mean[0], var[0], params)
        return h[None], lam[None]

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        return self.likelihood.expected_log_bound(y, mean[0], var[0], params)

    def log_base(self, y: Array, omega: Any, params: Params, eta: Array, group: int) -> Array:
        return self.likelihood.log_base(y, omega, params)

    def log_conditional(
        self, omega: Any, y: Array, eta: Array, params: Params, group: int
    ) -> Array:
        return self.likelihood.log_conditional(omega, y, eta[0], params)


def as_several(likelihood: Density) -> MultiDensity:
    """Return the likelihood as engines see it, with arrays of shape (P, N)."""
    return likelihood if isinstance(likelihood, MultiDensity) else OnePredictor(likelihood)
