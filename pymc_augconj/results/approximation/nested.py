"""The posterior as a mixture of Gaussian approximations over hyperparameters."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import xarray as xr
from arviz_stats.utils import ELPDDataLOO

from pymc_augconj.engines.nested.importance import Given, NestedPosterior
from pymc_augconj.errors import AugmentationError
from pymc_augconj.recognition.prediction.evaluate import BatchFunction, batch_function
from pymc_augconj.recognition.prediction.latent_draws import LatentDraws, LatentMeans
from pymc_augconj.typing import Array, Generator

from .fitted_model import (
    FittedLatents,
    PointwiseLogLikelihood,
    require_data_of_fit,
)
from .leave_one_out import (
    density_of_draws,
    grid_of,
    leave_one_out,
    mixture_density,
    pareto_k,
    tilted_densities,
)
from .storage import load_state
from .summary import DEFAULT_DRAWS, Fit

# Draws of θ behind k̂, and pairs of draws of the latents at each.
_CERTIFICATE = (200, 8)
# Steps of tuning of chains that start at draws of an approximation.
_TUNE = 50
# Entries of the arrays that the model's other variables are computed with at once.
_CHUNK = 4_000_000
# Points of a marginal density.
_POINTS = 201


@dataclass(repr=False, kw_only=True)
class NestedApproximation(Fit):
    """A posterior with hyperparameters integrated over, from ``pac.fit("nested")``.

    Means, standard deviations and marginals of latents come from a mixture of Gaussian
    approximations at the points of a design over the hyperparameters θ; moments and marginals of
    θ come from a continuous density between these points.

    Attributes
    ----------
    method : str
        ``"nested"``.
    theta, point : dict
        The mode of θ on the unconstrained scale, in the units of the model and unconstrained.
    log_evidence : float
        log ∫ p(θ) Z(θ) dθ; see :func:`pymc_augconj.log_evidence` for one with an error.
    objective : float
        log p(θ) Z(θ) at the mode.
    history, converged, message, timings, observed, random_seed, model
        As of :class:`~pymc_augconj.Approximation`.
    diagnostics : dict
        ``points`` of the design, ``sites`` (``"ep"`` or ``"vgp"``), ``evaluations`` of Z; with
        sites of EP and up to 1000 different predictors also ``correction`` and ``correction_sd``,
        mean and standard deviation over θ of the skewness correction to log Z(θ).
    """

    _posterior: NestedPosterior
    _means: LatentMeans
    #: ``pac.sample``, which this folder does not import.
    sampler: ClassVar[Any]
    _keeps_model = True

    @property
    def nested(self) -> NestedPosterior:
        """Points, weights and sites; AugmentationError if the model's data have changed."""
        require_data_of_fit(self.model, self._data)
        return self._posterior

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the Gaussian latents."""
        return tuple(block.name for block in self._posterior.model.blocks)

    @classmethod
    def load(cls, path: str | Path, model: Any) -> NestedApproximation:
        """Read an approximation written by :meth:`save`, of a ``model`` with the same data.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        AugmentationError
            If it is not a saved nested approximation, was changed, or has another model.
        """
        return cls(**load_state(path, model))

    # -- hyperparameters --------------------------------------------------------------------------

    @cached_property
    def _of_theta(self) -> BatchFunction:
        """The hyperparameters as functions of the entries of the point."""
        names = [h.name for h in self.nested.members]
        moving = [h.value_name for h in self.nested.members]
        return batch_function(self.model, names, moving, self.nested.start)

    @cached_property
    def _sample_of_theta(self) -> dict[str, tuple[Array, Array]]:
        """By hyperparameter its entry and its value at the density's own sample, (S, …)."""
        density = self.nested.density
        if density is None:
            return {}
        entries = self.nested.entries(density.scaling.theta(density.sample))
        values = self._of_theta(entries)
        return {h.name: (entries[h.value_name], values[h.name]) for h in self.nested.members}

    # -- moments ----------------------------------------------------------------------------------

    def _latents(self, given: Given) -> FittedLatents:
        means = self._means.affine(given.point)
        return FittedLatents(given.prior, self.nested.priors.groups, self.nested.solver, means)

    @cached_property
    def _components(self) -> tuple[Array, list[Array], list[Array]]:
        """Weights (n,), and of every latent the means and variances at each point, (n, size)."""
        weights, means, variances = [], [], []
        for weight, given in self.nested.components():
            latents = self._latents(given)
            weights.append(weight)
            means.append(latents.values(given.posterior.innovation_means()))
            variances.append(latents.variances(given.posterior))
        by_latent = (zip(*means, strict=True), zip(*variances, strict=True))
        first, second = ([np.array(own) for own in rows] for rows in by_latent)
        return np.array(weights), first, second

    @cached_property
    def _moments_of_theta(self) -> dict[str, tuple[Array, Array]]:
        """Mean and variance of every hyperparameter."""
        found, density = {}, self.nested.density
        assert density is not None  # without hyperparameters there is no mixture
        # Proposals far out have no weight, and perhaps no value.
        used = density.sample_weights > 0.0
        w = density.sample_weights[used]
        for name, (_, values) in self._sample_of_theta.items():
            mean = np.tensordot(w, values[used], axes=1)
            found[name] = mean, np.tensordot(w, (values[used] - mean) ** 2, axes=1)
        return found

    @cached_property
    def _moments(self) -> dict[str, tuple[Array, Array]]:
        """Mean and variance of every latent and hyperparameter."""
        weights, means, variances = self._components
        found = {}
        for block, m, v in zip(self.nested.model.blocks, means, variances, strict=True):
            mean = weights @ m
            var = np.maximum(weights @ (v + (m - mean) ** 2), v.min(axis=0))
            found[block.name] = mean.reshape(block.shape), var.reshape(block.shape)
        return found | self._moments_of_theta

    @property
    def mean(self) -> xr.Dataset:
        """Posterior means of latents and hyperparameters, by name, with their dims."""
        return self._labels.dataset({name: mean for name, (mean, _) in self._moments.items()})

    @property
    def std(self) -> xr.Dataset:
        """Posterior standard deviations of latents and hyperparameters, as ``mean``."""
        return self._labels.dataset({n: np.sqrt(var) for n, (_, var) in self._moments.items()})

    def marginal(self, name: str, points: int = _POINTS) -> tuple[Array, Array]:
        """Return marginal posterior densities of a variable's entries.

        Parameters
        ----------
        name : str
            A hyperparameter; a Gaussian latent, whose density is a mixture of normal densities; or
            an observed variable of one predictor, for the predictors of its observations: mixtures
            of tilted densities, with the observation's own density and skewness if sites are EP's.
        points : int
            Length of the grid of each entry.

        Returns
        -------
        x, density : ndarray, shape (…, points)
            A grid for each entry, and the density there.
        """
        if name in self._sample_of_theta:
            density = self.nested.density
            assert density is not None
            entry, value = self._sample_of_theta[name]
            return density_of_draws(entry, value, density.sample_weights, points)
        if name in self.names:
            weights, means, variances = self._components
            i = self.names.index(name)
            stds = np.sqrt(variances[i])
            x = grid_of(weights, means[i], stds, points)
            shape = (*self.nested.model.blocks[i].shape, points)
            return x.reshape(shape), mixture_density(weights, means[i], stds, x).reshape(shape)
        for site in self.nested.model.sites:
            if site.name == name and site.shape[0] == 1:
                return self._predictor_marginal(site, points)
        observed = [site.name for site in self.nested.model.sites if site.shape[0] == 1]
        raise AugmentationError(
            f"marginal: expected a hyperparameter {list(self._sample_of_theta)}, a latent "
            f"{list(self.names)} or an observed variable of one predictor {observed}, got {name!r}"
        )

    def _predictor_marginal(self, site: Any, points: int) -> tuple[Array, Array]:
        components = list(self.nested.components())
        weights = np.array([weight for weight, _ in components])
        means = np.array([site.select(given.posterior.mean)[0] for _, given in components])
        stds = np.sqrt([site.select(given.posterior.var)[0] for _, given in components])
        x = grid_of(weights, means, stds, points)
        if self.diagnostics["sites"] != "ep":
            return x, mixture_density(weights, means, stds, x)
        total = np.zeros_like(x)
        for (weight, given), mean, std in zip(components, means, stds, strict=True):
            h, lam = given.h[site.rows], given.lam[site.rows]
            total += weight * tilted_densities(site, given.point, x, (mean, std**2), (h, lam))
        return x, np.maximum(total, 0.0)

    # -- draws ------------------------------------------------------------------------------------

    def sample(
        self,
        draws: int = DEFAULT_DRAWS,
        *,
        random_seed: int | Generator | None = None,
        log_likelihood: bool = False,
    ) -> xr.DataTree:
        """Draw independent samples: θ from its continuous density, the latents given θ.

        Sites at a drawn θ are interpolated between the points of the design; the prior of the
        latents is the prior at that θ.

        Parameters
        ----------
        draws : int
        random_seed : int or Generator, optional
            By default the seed of the fit; if that was None, every call gives other draws.
        log_likelihood : bool
            Add the group ``log_likelihood``, for ``az.loo``.

        Returns
        -------
        DataTree
            Group ``posterior`` of shape (1, draw, …) with the variables of the user's model,
            hyperparameters and deterministics included.
        """
        rng = self._generator(draws, random_seed)
        start, nested = time.perf_counter(), self.nested
        z, drawn = nested.draw(rng, int(draws))
        entries: dict[str, Array] = {}
        if nested.density is not None:
            entries = nested.entries(nested.density.scaling.theta(z))
        known: dict[str, Array] = self._of_theta(entries) if entries else {}
        rows = [(self._means.values(given.point, u), v) for given, u, v in drawn]
        for i, block in enumerate(nested.model.blocks):
            value = np.array([values[i] for values, _ in rows])
            known[block.name] = value.reshape(-1, *block.shape)
            point = [v[i] if block.whitened else values[i] for values, v in rows]
            entries[block.value_name] = np.array([block.entry_of(x) for x in point])
        known = {**self._others(entries, rng), **entries, **known}
        groups: dict[str, Mapping[str, Array]] = {
            "posterior": {n: np.asarray(known[n])[None] for n in self._variables if n in known}
        }
        if log_likelihood:
            groups["log_likelihood"] = self._log_likelihood(drawn)
        return self._tree(groups, start)

    def to_datatree(self) -> xr.DataTree:
        """Return 1000 draws with log likelihoods, for predictions, comparisons and ArviZ."""
        return self.sample(log_likelihood=True)

    def _others(self, entries: Mapping[str, Array], rng: Generator) -> dict[str, Array]:
        """Return the model's other variables, in batches of draws that fit in memory."""
        draws = len(next(iter(entries.values())))
        evaluate = LatentDraws(self.model, self.nested.model, self.nested.start)
        blocks = self.nested.model.blocks
        largest = max(b.size ** (2 if b.is_correlated else 1) for b in blocks)
        size = max(1, _CHUNK // largest)
        slices = [slice(i, i + size) for i in range(0, draws, size)]
        parts = [evaluate({k: v[own] for k, v in entries.items()}, rng) for own in slices]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _log_likelihood(self, drawn: list[tuple[Given, list[Array], Any]]) -> dict[str, Array]:
        of = [PointwiseLogLikelihood(self.nested.model, g.point, self.observed) for g, *_ in drawn]
        pairs = zip(of, drawn, strict=True)
        parts = [function(given.prior.predictor(u)[None]) for function, (given, u, _) in pairs]
        return {
            name: np.concatenate([part[name] for part in parts])[None] for name in self.observed
        }

    def loo(
        self, name: str | None = None, *, groups: Array | None = None, ahead: int | None = None
    ) -> ELPDDataLOO:
        """Return the expected log predictive density, leaving out one observation at a time.

        Given θ, the density of an observation is integrated under its cavity, the Gaussian defined
        by the other sites. Importance weights therefore concern θ only: they do not fail where an
        observation determines its own latent.

        Parameters
        ----------
        name : str, optional
            The observed variable, of one predictor; by default the only one.
        groups : array_like, optional
            The label of a group for each observation. Observations of a group, such as a patient,
            are left out together, and have one joint density.
        ahead : int, optional
            For observations in the order of time: predict the next ``ahead`` from all before,
            from half of the series on, in steps of ``ahead``.

        Returns
        -------
        ELPDDataLOO
            For ``az.compare``: ``elpd_i`` has the pointwise values, along ``block`` with the
            labels of groups or the first of the steps ahead, and ``pareto_k`` the k̂ of their
            ratios over θ. ``p`` is NaN for blocks.
        """
        sites = [s for s in self.nested.model.sites if s.name in self.observed and s.shape[0] == 1]
        chosen = [site for site in sites if name in (None, site.name)]
        if len(chosen) != 1:
            raise AugmentationError(
                f"name: expected one of the observed variables of one predictor, "
                f"{[site.name for site in sites]}, got {name!r}"
            )
        shape = self.observed[chosen[0].name].shape
        return leave_one_out(self.nested, chosen[0], self._labels, shape, groups, ahead)

    def exact(self, draws: int = DEFAULT_DRAWS, *, chains: int = 4, **kwargs: Any) -> xr.DataTree:
        """Return exact draws: :func:`pymc_augconj.sample` from draws of this approximation.

        Parameters
        ----------
        draws : int
            Draws of each chain.
        chains : int
            Number of chains; each starts at a different draw of this approximation.
        **kwargs
            For :func:`pymc_augconj.sample`. ``tune`` is 50 by default: chains must learn the
            scales of their moves, but need not find the posterior.

        Returns
        -------
        DataTree
        """
        tree = self.sample(chains, random_seed=kwargs.get("random_seed"))
        starts = tree["posterior"].to_dataset()
        free = [rv.name for rv in self.model.free_RVs if rv.name in starts]
        options = {"tune": _TUNE, "random_seed": self.random_seed, **kwargs}
        return type(self).sampler(
            draws,
            model=self.model,
            chains=chains,
            initvals=[{name: starts[name].values[0, k] for name in free} for k in range(chains)],
            **options,
        )

    # -- certificate ------------------------------------------------------------------------------

    @cached_property
    def pareto_k(self) -> float:
        """k̂ of the importance ratios of θ, the latents integrated out; computed when first read.

        The ratios are p(y, θ)/q(θ) at 200 draws of θ from the continuous density q that
        :meth:`sample` draws from; p(y, θ) = p(θ) Z_s(θ) E[p(y | η)/sites(η)] is estimated at each
        by 16 draws of the latents from their Gaussian given θ, made of the same normal numbers at
        every θ. Below 0.7 importance sampling would give the same posterior of θ. With so many
        latents that 16 draws do not estimate p(y, θ), k̂ is large for any q: a large value does
        not prove an error. It says nothing about the latents given θ.
        """
        density, (draws, pairs) = self.nested.density, _CERTIFICATE
        assert density is not None
        rng = np.random.default_rng(0)
        z, log_density = density.certified(rng, draws)
        log_joint = self.nested.log_joint(rng, z, pairs, common=True)
        return pareto_k(log_joint - log_density)

    def log_ratios(self, draws: int, pairs: int, rng: Generator) -> tuple[Array, Array, int]:
        """Return estimates of log p(y, θ)/q(θ) at draws of θ from the proposals of the density.

        The mean of their exponentials is p(y). The second result has the interpolated density over
        its integral in place of p(y, θ), with mean one; the third is the integral's sample size.
        """
        density = self.nested.density
        assert density is not None  # without hyperparameters there is no mixture
        z = density.propose(rng, draws)
        log_q = density.log_proposal(z)
        known = density.log_density(z) - density.log_mass - log_q
        return self.nested.log_joint(rng, z, pairs) - log_q, known, len(density.sample)

    def _rows(self) -> list[tuple[str, str]]:
        theta = [
            f"{name} = {np.array2string(mean, precision=4)} ± "
            f"{np.array2string(np.sqrt(var), precision=3)}"
            for name, (mean, var) in self._moments_of_theta.items()
            if mean.size <= 8
        ]
        known = self.diagnostics
        skewness = (
            f"adds {known['correction']:.4f} ± {known['correction_sd']:.4f} over θ to log p(y | θ)"
            if "correction" in known
            else "not corrected for"
        )
        return [
            ("log evidence", f"{self.log_evidence:.4f} (approximate, integrated)"),
            ("skewness", skewness),
            ("latents", ", ".join(self.names)),
            ("hyperparameters", ", ".join(theta)),
            ("Pareto k of θ", f"{self.pareto_k:.2f}"),
        ]
