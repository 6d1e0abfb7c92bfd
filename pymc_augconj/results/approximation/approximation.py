"""A Gaussian approximation of the posterior, stored as its sites and θ.

For every engine the two parameters of every site and a value of the hyperparameters determine
it: means, variances, covariances, draws and predictions follow.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from pymc_augconj.engines.registry import ENGINES
from pymc_augconj.errors import AugmentationError
from pymc_augconj.latents.posterior import Posterior
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.typing import Array, Generator

from .fitted_model import (
    Fingerprint,
    FittedLatents,
    PointwiseLogLikelihood,
    require_data_of_fit,
)
from .leave_one_out import pareto_k
from .storage import load_state
from .summary import DEFAULT_DRAWS, Fit, rows_of

# Fraction of its start below which a scale may be zero, and of the latents' variances.
_NEAR_ZERO = 0.01


@dataclass(repr=False, kw_only=True)
class Approximation(Fit):
    """A Gaussian approximation of the posterior, from :func:`pymc_augconj.fit`.

    Attributes
    ----------
    method : str
        The argument of :func:`pymc_augconj.fit`.
    h, lam : ndarray, shape (N,)
        Sites exp(h η − ½ λ η²), one for every predictor.
    theta, point : dict of str to ndarray
        Point estimates of the hyperparameters, on the scale of the user's model, and on PyMC's
        unconstrained scale.
    log_evidence : float
        The method's value of log p(y | θ), in nats; see :attr:`is_bound`.
    objective : float
        The maximised function: the evidence, plus the log prior density of θ for ``hyper="map"``.
    history : DataFrame
        One row per iteration: ``theta`` counts the values of the hyperparameters that were tried,
        ``iteration`` starts from 0 at each of them; ``bound`` and its terms ``expected``
        (Σ E[log p] or its augmented bound) and ``divergence`` (KL(q‖p)), ``residual``, and the
        kind of step.
    converged : bool
        Whether ``tol`` was met; for ``"svi"``, whether the increase of the bound is within its
        noise.
    message : str
        Reason for the end of the iterations.
    timings : dict
        Seconds: ``recognition``, ``optimisation``, ``total``.
    inducing : dict
        Inducing inputs by process; empty for a dense fit.
    diagnostics : dict
        ``"ep"`` and ``"qp"``: ``residual`` (relative moment mismatch), ``sweeps``, ``evaluations``,
        ``damping`` (the smallest used), ``n_negative`` (number of sites with negative precision; if
        not 0, several fixed points may exist), ``smallest_cavity_precision``, ``quadrature_error``,
        ``method`` (``"parallel"``, ``"sequential"`` or ``"double loop"``), ``converged``,
        ``message`` and ``evidence`` of the last run, at θ. ``"svi"``: ``evidence_error``, 0 if the
        evidence is the bound on all the data, else the standard error of its mean over the last
        fifth of the minibatches.
    observed : dict
        The observations, by variable.
    random_seed : int, optional
        Default seed of :meth:`sample`.
    model : pymc.Model, optional
        The fitted model; neither pickled nor saved.
    """

    h: Array
    lam: Array
    _latents: FittedLatents
    _fingerprint: Fingerprint
    # Computes the model's other variables from draws of its latents; needs the model, so not saved.
    _evaluate: Callable[[Mapping[str, Array], Generator], dict[str, Array]] | None = None
    # Log likelihoods of single observations at draws of the predictors; not saved.
    _pointwise: PointwiseLogLikelihood | None = None

    # The recognised model, and its variables; neither pickled nor saved.
    _read = None

    def keep_recognition(self, recognition: Any) -> None:
        """Let predictions use the parsed ``model`` while ``model`` is unchanged."""
        if not self.model.data_vars:
            self._read = recognition, tuple(self.model.named_vars.values())

    def recognition_of(self, model: Any) -> Any:
        """Return the argument of :meth:`keep_recognition`, or None if the model may differ."""
        if self._read is None or model is not self.model or model.data_vars:
            return None
        recognition, variables = self._read
        now = tuple(model.named_vars.values())
        same = len(now) == len(variables) and all(map(operator.is_, now, variables))
        return recognition if same else None

    def typed_theta(self, model: Any) -> dict[str, np.ndarray]:
        """Return the hyperparameters with the types that the model's variables have."""
        return {n: np.asarray(value, dtype=model[n].dtype) for n, value in self.theta.items()}

    def _rows(self) -> list[tuple[str, str]]:
        return rows_of(self, self._latents)

    @property
    def is_bound(self) -> bool:
        """Whether :attr:`log_evidence` is a lower bound of log p(y | θ)."""
        return ENGINES[self.method].bound

    # -- the Gaussian ---------------------------------------------------------------------------

    @cached_property
    def _posterior(self) -> Posterior:
        """The prior conditioned on the sites."""
        return self._latents.condition(self.h, self.lam)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the Gaussian latents."""
        return self._latents.names

    @property
    def mean(self) -> xr.Dataset:
        """Posterior means of the latents, by name, with their dims; computed at each access."""
        return self._dataset(self._latents.values(self._posterior.innovation_means()))

    @property
    def std(self) -> xr.Dataset:
        """Posterior standard deviations of the latents, as ``mean``."""
        return self._dataset([np.sqrt(var) for var in self._latents.variances(self._posterior)])

    def cov(self, name: str | None = None) -> Array:
        """Return the posterior covariance of one latent's entries, flattened.

        Parameters
        ----------
        name : str, optional
            By default the first, largest one.

        Returns
        -------
        ndarray, shape (size, size)
        """
        index = 0 if name is None else self._latents.index(name)
        return self._latents.cov(self._posterior, index)

    @property
    def predictor_mean(self) -> Array:
        """Posterior means of the predictors η of every observation, shape (N,)."""
        return self._posterior.mean

    @property
    def predictor_std(self) -> Array:
        """Posterior standard deviations of the predictors, shape (N,)."""
        return np.sqrt(np.maximum(self._posterior.var, 0.0))

    # -- draws ----------------------------------------------------------------------------------

    def sample(
        self,
        draws: int = DEFAULT_DRAWS,
        *,
        random_seed: int | Generator | None = None,
        log_likelihood: bool = False,
    ) -> xr.DataTree:
        """Draw independent samples from the approximation.

        Parameters
        ----------
        draws : int
        random_seed : int or Generator, optional
            By default the seed of the fit; if that was None, every call gives other draws.
        log_likelihood : bool
            Add the group ``log_likelihood`` and, in ``sample_stats``, ``log_p`` and ``log_q``: the
            log densities of the posterior given θ and of the approximation, up to one common
            constant, for ``az.loo_approximate_posterior``.

        Returns
        -------
        DataTree
            Group ``posterior`` of shape (1, draw, …) with the variables of the user's model,
            deterministics included; hyperparameters are at their point estimates. An approximation
            from a file has no model, so that only the latents among the deterministics are there:
            use ``pm.compute_deterministics``.
        """
        rng, start = self._generator(draws, random_seed), time.perf_counter()
        whitened = self._drawn_from.draw(rng, draws)
        posterior = self._drawn(rng, whitened)
        groups = {"posterior": {name: value[None] for name, value in posterior.items()}}
        if log_likelihood:
            groups |= self._log_likelihood(whitened)
        return self._tree(groups, start)

    def to_datatree(self) -> xr.DataTree:
        """Return 1000 draws by :meth:`sample`, for :func:`pymc_augconj.compare` and ArviZ.

        They include log likelihoods if the approximation can compute these.

        Returns
        -------
        DataTree
        """
        return self.sample(log_likelihood=self._pointwise is not None)

    def draws_at_inducing(self, random_seed: Any = None) -> xr.DataTree:
        """Return 1000 draws for predictions; of sparse processes at their inducing inputs."""
        return self.sample(random_seed=random_seed)

    def log_ratios(self, draws: int, rng: Generator) -> Array:
        """Return log p(y, u | θ) − log q(u) at draws of the latents u from the approximation.

        The mean of their exponential is p(y | θ), at the point estimates θ.
        """
        stats = self._log_likelihood(self._drawn_from.draw(rng, draws))["sample_stats"]
        return np.asarray((stats["log_p"] - stats["log_q"])[0] + self._drawn_from.log_normalizer)

    @cached_property
    def pareto_k(self) -> float:
        """k̂ of the importance ratios p(y, u | θ)/q(u) of all latents u, at 1000 draws.

        θ is held at its point estimate, whose error k̂ does not see. Below 0.7 draws of the latents
        can be reweighted to the posterior given θ. It grows with the number of latents, also where
        each marginal is accurate.
        """
        return pareto_k(self.log_ratios(DEFAULT_DRAWS, np.random.default_rng(0)))

    @property
    def _drawn_from(self) -> Posterior:
        """The posterior for draws, whose prior has the jitter that draws need."""
        if self._latents.prior.factorized() is self._latents.prior:
            return self._posterior
        return self._latents.condition(self.h, self.lam, factorized=True)

    def signs_of_singularity(
        self, lgm: LatentGaussianModel, starts: Mapping[str, Array]
    ) -> list[str]:
        """Return sentences about scales whose optimum is zero, where latents do not vary.

        Such a scale is far below its start, and the means of the latents that it scales are far
        below their standard deviations, which are those of the prior.
        """
        # The weights of two components are one number of PyMC's point, too.
        single = [h for h in lgm.hyperparameters if np.size(self.theta[h.name]) == 1]
        small = {
            h.value_name: h.name
            for h in single
            if 0.0 < self.theta[h.name] < _NEAR_ZERO * starts[h.name]
        }
        found: set[str] = set()
        for i, (block, A) in enumerate(zip(lgm.blocks, lgm.maps, strict=True) if small else ()):
            if own := small.keys() & {*block.scale.names, *A.names}:
                mean = self._posterior.innovation_means()[i]
                if np.mean(mean**2) < _NEAR_ZERO * np.mean(self._posterior.innovation_var(i)):
                    found |= own
        return [
            f"{small[own]} = {self.theta[small[own]].item():.2g} is as good as zero, where latents "
            "do not vary (lme4's 'singular fit'): larger values may be about as likely; use "
            "pac.sample or method='nested', which average over them"
            for own in sorted(found)
        ]

    def _log_likelihood(self, whitened: list[Array]) -> dict[str, dict[str, Array]]:
        """Return the groups that leave-one-out cross-validation needs."""
        if self._pointwise is None:
            raise AugmentationError(
                "log_likelihood: expected a dense fit made in this session, got one through "
                "inducing points, or one loaded from a file; use pac.fit without inducing points"
            )
        if self.model is not None:
            require_data_of_fit(self.model, self._data)
        prior = self._latents.prior.factorized()
        pairs = zip(prior.blocks, whitened, strict=True)
        eta = prior.predictor([block.scale(v) for block, v in pairs])
        log_likelihood = self._pointwise(eta)
        log_p = np.zeros(len(eta))
        for value in log_likelihood.values():
            log_p += value.reshape(len(eta), -1).sum(axis=1)
        # q is the prior times the sites.
        pull = self._latents.groups.coupling.product(self.lam, eta)
        log_q = eta @ self.h - 0.5 * np.vecdot(pull, eta)
        # A potential has no observations to leave out.
        observed = {n: value[None] for n, value in log_likelihood.items() if n in self.observed}
        groups = {"sample_stats": {"log_p": log_p[None], "log_q": log_q[None]}}
        return {**groups, "log_likelihood": observed} if observed else groups

    def _drawn(self, rng: Generator, whitened: list[Array]) -> dict[str, Array]:
        blocks, draws = self._latents.prior.factorized().blocks, len(whitened[0])
        scaled = [b.scale(v) for b, v in zip(blocks, whitened, strict=True)]
        shapes = {name: (draws, *np.shape(value)) for name, value in self.theta.items()}
        known = {name: np.broadcast_to(self.theta[name], shape) for name, shape in shapes.items()}
        entries: dict[str, Array] = {}
        for b, v, value in zip(blocks, whitened, self._latents.values(scaled), strict=True):
            block = b.block
            known[block.name] = value.reshape(draws, *block.shape)
            entries[block.value_name] = (v if block.whitened else value).reshape(
                draws, *block.shape
            )
            if block.transform is not None:
                entries[block.value_name] = np.stack([block.entry_of(x) for x in value])
        # Whitened values of unordered inputs are by another factor than PyMC's.
        hidden = [b.block.value_name for b in blocks if b.block.is_unordered]
        known |= {name: value for name, value in entries.items() if name not in hidden}
        if self._evaluate is not None:
            known = {**self._evaluate(entries, rng), **known}
        return {name: np.asarray(known[name]) for name in self._variables if name in known}

    # -- storage --------------------------------------------------------------------------------

    @classmethod
    def load(cls, path: str | Path) -> Approximation:
        """Read an approximation written by :meth:`save`.

        :func:`pymc_augconj.predict` also needs the fitted model; :meth:`sample` draws the latents
        without it.

        Parameters
        ----------
        path : str or Path
            The argument of :meth:`save`.

        Returns
        -------
        Approximation

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        AugmentationError
            If the file is not a saved approximation, or was changed.
        """
        state = load_state(path)
        # Those through inducing points are of a class that needs this one.
        kinds = Approximation.__subclasses__() if state["inducing"] else [Approximation]
        return kinds[0](**state)

    def _dataset(self, values: Sequence[Array]) -> xr.Dataset:
        blocks = [b.block for b in self._latents.blocks]
        pairs = zip(blocks, values, strict=True)
        return self._labels.dataset({b.name: value.reshape(b.shape) for b, value in pairs})
