"""Recognising a model, and checking what was read against PyMC by brute force."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pymc as pm
import pytest

from pymc_augconj.engines.gibbs import GibbsSampler
from pymc_augconj.engines.plan import make_plan
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.recognize import Recognition, python_mode, recognize

SPREAD = 0.4  # standard deviations of the random points around PyMC's initial point
N_POINTS = 3
RELATIVE_TOLERANCE = 1e-6


@dataclass
class Reading:
    """A model, what recognition made of it, and a sampler that knows its coordinates."""

    pymc_model: pm.Model
    recognition: Recognition
    sampler: GibbsSampler = field(init=False)

    def __post_init__(self):
        r = self.recognition
        self.sampler = GibbsSampler(r.model, make_plan(r.model), r.start, r.probes)

    @property
    def lgm(self) -> LatentGaussianModel:
        return self.recognition.model

    @property
    def kinds(self) -> dict[str, str]:
        """How each latent enters the predictors, by its name."""
        blocks = self.lgm.blocks
        return {b.name: kind for b, kind in zip(blocks, self.recognition.kinds, strict=True)}

    @property
    def roles(self) -> dict[str, str]:
        return {h.name: h.role for h in self.lgm.hyperparameters}

    @property
    def latents(self) -> list[str]:
        return [block.name for block in self.lgm.blocks]

    @property
    def likelihoods(self) -> dict[str, str]:
        return {s.name: f"{s.likelihood.name} {s.likelihood.link}" for s in self.lgm.sites}

    def points(self, n_points: int = N_POINTS) -> list[dict[str, np.ndarray]]:
        """Random points around PyMC's initial one; integers stay where they are."""
        rng = np.random.default_rng(7)
        return [
            {
                name: value + SPREAD * rng.standard_normal(value.shape)
                if value.dtype.kind == "f"
                else value
                for name, value in self.recognition.start.items()
            }
            for _ in range(n_points)
        ]

    def innovations(self, point) -> tuple[list, list]:
        """The prior of every block and its innovation at ``point``."""
        prior = self.sampler.priors.at(point).factorized()
        return prior, self.sampler.innovations(point, prior)

    def log_density(self, point) -> float:
        """The model's log density as the waist tells it."""
        prior, innovations = self.innovations(point)
        eta = prior.predictor(innovations)
        total = float(self.lgm.log_prior(point))
        for block, u in zip(prior.blocks, innovations, strict=True):
            total += block.log_density(block.unscale(u))
        for site in self.lgm.sites:
            y, params = site.y(point), site.params(point)
            total += site.likelihood.log_density(y, site.select(eta), params).sum()
        values = {
            f"latent:{b.name}": (
                u if b.whitened else np.asarray(point[b.value_name], dtype=float).ravel()
            )
            for b, u in zip(self.lgm.blocks, innovations, strict=True)
        }
        for variable in self.lgm.forward:
            total += float(variable.log_density({**point, **values}))
        return total

    def verify(self) -> Reading:
        """Check the reading against PyMC's own graph and log density at random points."""
        with_mode = self.pymc_model.compile_logp
        theirs = with_mode(mode=python_mode())
        assert self.lgm.value_names == tuple(v.name for v in self.pymc_model.value_vars)
        for point in self.points():
            prior, innovations = self.innovations(point)
            named = dict(zip(self.latents, innovations, strict=True))
            affine = prior.offset + sum(
                A(point).apply(u) for A, u in zip(self.lgm.maps, innovations, strict=True)
            )
            np.testing.assert_allclose(self.lgm.predictor(point, named), affine, atol=1e-8)
            np.testing.assert_allclose(self.log_density(point), theirs(point), rtol=1e-6, atol=1e-6)
        return self


@pytest.fixture
def read() -> Callable[..., Reading]:
    """Recognise a model and verify the reading: ``read(model).lgm``."""

    def read_model(model: pm.Model, **kwargs) -> Reading:
        return Reading(model, recognize(model, **kwargs)).verify()

    return read_model


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20_261_121)
