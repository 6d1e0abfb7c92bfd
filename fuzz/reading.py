"""The package's log density of a model at any point, put together from what it read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from pymc.model import Model

import pymc_augconj as pac
from pymc_augconj.engines.gibbs.held_sites import HeldSites
from pymc_augconj.engines.gibbs.sampler import GibbsSampler
from pymc_augconj.engines.gibbs.state import PointTarget, Update
from pymc_augconj.plan import held_names, make_plan
from pymc_augconj.recognition.recognizer import read_model

__all__ = ["REST", "Reading"]

Array = NDArray[np.float64]
Point = Mapping[str, Array]

# Compiling a function takes longer than all calls of it here.
_INTERPRETED_CALLS = 10**6

#: What the terms of all other variables together are called.
REST = "hyperparameters"


class Reading:
    """A model as the package reads it.

    Parameters
    ----------
    model : pymc.Model

    Attributes
    ----------
    lgm : LatentGaussianModel
    start : dict
        Where a chain starts.

    Raises
    ------
    AugmentationError
        If the model is refused.
    """

    def __init__(self, model: Model):
        recognition = read_model(model, first_calls=_INTERPRETED_CALLS)
        self.lgm = recognition.model
        self.start = dict(recognition.start)
        at = recognition.start, recognition.probes
        self._held = False
        try:
            self._sampler = GibbsSampler(self.lgm, make_plan(self.lgm), *at)
        except pac.AugmentationError:
            # A latent enters predictors that are drawn one after the other.
            self._held, names = True, held_names(self.lgm, "held")
            sites, plan = HeldSites(self.lgm, names, ()), make_plan(self.lgm, names)
            self._sampler = GibbsSampler(self.lgm, plan, *at, sites=sites)
        rv_of = {value.name: rv.name for rv, value in model.rvs_to_values.items()}
        self._name_of = {b.name: rv_of[b.value_name] for b in self.lgm.blocks}

    @property
    def can_sample(self) -> bool:
        """Whether there is a sampler without held sites."""
        if self._held:
            return False
        try:
            self.lgm.require_augmentation()
        except pac.AugmentationError:
            return False
        return True

    def steps(self, rng: np.random.Generator, count: int) -> Iterator[tuple[dict, float]]:
        """Yield the points of a short chain, and what the sampler says their log density is."""
        updates: dict[str, Update] = defaultdict(lambda: _metropolis)
        point = self._sampler.dispersed(rng, self.start)
        for _ in range(count):
            point, info = self._sampler.step(rng, point, updates)
            yield point, info.log_density

    @property
    def latent_names(self) -> list[str]:
        """The latents' entries of the point."""
        return [block.value_name for block in self.lgm.blocks]

    @property
    def likelihoods(self) -> list[str]:
        """Distribution and link of the observed variables."""
        return [f"{s.likelihood.name}, {s.likelihood.link}" for s in self.lgm.sites]

    def log_densities(self, point: Point) -> dict[str, Array]:
        """Return the log densities by PyMC's names: of observations singly, of others as sums.

        Raises
        ------
        NotPositiveDefiniteError
            If a covariance has no Cholesky factor, or needs jitter, which the sampler reports.
        """
        prior = self._sampler.priors.at(point).factorized()
        if prior.jitter > 0.0:
            raise pac.NotPositiveDefiniteError("a covariance needs jitter")
        innovations = self._sampler.chain.innovations(point)
        eta = prior.predictor(innovations)
        found: dict[str, Array] = {REST: np.atleast_1d(np.asarray(self.lgm.log_prior(point)))}
        with np.errstate(all="ignore"):
            for site in self.lgm.sites:
                terms = site.likelihood.log_density(
                    site.y(point), site.select(eta), site.params(point)
                )
                if site.is_prior:
                    # PyMC's has the Jacobian of a transform, which the block's density has here.
                    found[REST] = found[REST] + np.sum(np.broadcast_to(terms, (site.size,)))
                    continue
                found[site.name] = np.ravel(np.broadcast_to(terms, (site.size,)))
            for at, u in zip(prior.blocks, innovations, strict=True):
                v = point[at.block.value_name].ravel() if at.block.whitened else at.unscale(u)
                # The constant of a density that is known by its Hessian is among the rest.
                is_rest = at.block.entries is not None or at.block.is_flat
                name = REST if is_rest else self._name_of[at.block.name]
                found[name] = found.get(name, 0.0) + np.atleast_1d(at.log_density(v))
        values = self._sampler.chain.latent_values(point, prior.blocks)
        for variable in self.lgm.forward:
            found[variable.name] = np.atleast_1d(variable.log_density({**point, **values}))
        return found


def _metropolis(target: PointTarget, start: Array, rng: np.random.Generator) -> Array:
    """One step of a random walk: where the hyperparameters go matters little here."""
    proposed = start + 0.5 * rng.standard_normal(start.size)
    return proposed if np.log(rng.random()) < target(proposed) - target(start) else start
