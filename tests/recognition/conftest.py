"""Recognising a model, and checking what was read against PyMC by brute force."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pymc as pm
import pytest
from numpy.exceptions import AxisError

from pymc_augconj.api.recognize import recognize
from pymc_augconj.engines.gibbs.sampler import GibbsSampler
from pymc_augconj.errors import RecognitionError
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.plan import make_plan
from pymc_augconj.point import Argument, Point
from pymc_augconj.python_mode import python_mode
from pymc_augconj.recognition.checks.checks import WholeDensity
from pymc_augconj.recognition.recognizer import Recognition
from tests.modes import AS_WRITTEN

SPREAD = 0.4  # standard deviations of the random points around PyMC's initial point
N_POINTS = 3
RELATIVE_STEP = 1e-6


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
    def forms(self) -> dict[str, str]:
        return {b.name: b.form for b in self.lgm.blocks}

    @property
    def roles(self) -> dict[str, str]:
        """The role of each hyperparameter, by its name."""
        return {h.name: h.role for h in self.lgm.hyperparameters}

    @property
    def likelihoods(self) -> dict[str, str]:
        """Likelihood and link of each site, by its name."""
        return {s.name: f"{s.likelihood.name}, {s.likelihood.link}" for s in self.lgm.sites}

    @property
    def forward(self) -> list[str]:
        return [variable.name for variable in self.lgm.forward]

    def points(self, n_points: int = N_POINTS) -> list[dict[str, np.ndarray]]:
        """Random points around PyMC's initial one; integers stay where they are."""
        rng = np.random.default_rng(7)
        return [
            {
                name: np.asarray(value + SPREAD * rng.standard_normal(value.shape))
                if value.dtype.kind == "f"
                else value
                for name, value in self.recognition.start.items()
            }
            for _ in range(n_points)
        ]

    def innovations(self, point: Point) -> tuple[LatentPrior, dict[str, np.ndarray]]:
        """Return the prior at ``point``, and every block's innovation by its name."""
        prior = self.sampler.priors.at(point).factorized()
        found = self.sampler.chain.innovations(point)
        return prior, {b.name: u for b, u in zip(self.lgm.blocks, found, strict=True)}

    def latent_values(self, point: Point) -> dict[str, np.ndarray]:
        """Return ``point`` with the entries that prior means and forward variables read."""
        _, innovations = self.innovations(point)
        return {
            **point,
            **{
                Argument("value", b.name): innovations[b.name]
                if b.whitened
                else point[b.value_name].ravel()
                for b in self.lgm.blocks
            },
        }

    def log_density(self, point: Point) -> float:
        """Return the model's log density as the model record gives it."""
        prior, innovations = self.innovations(point)
        eta = prior.predictor(list(innovations.values()))
        total = float(self.lgm.log_prior(point))
        for block in prior.blocks:
            total += block.log_density(block.unscale(innovations[block.block.name]))
        for site in self.lgm.sites:
            y, params = site.y(point), site.params(point)
            total += site.likelihood.log_density(y, site.select(eta), params).sum()
        values = self.latent_values(point)
        return total + sum(float(v.log_density(values)) for v in self.lgm.forward)

    def verify(self) -> Reading:
        """Check predictors and the log density against PyMC's own graph at random points."""
        assert self.lgm.n_rows == sum(np.prod(s.shape) for s in self.lgm.sites)
        points = self.points()
        for point in points:
            prior, innovations = self.innovations(point)
            affine = prior.offset.copy()
            for A, u in zip(self.lgm.maps, innovations.values(), strict=True):
                affine += A(point).apply(u)
            np.testing.assert_allclose(self.lgm.predictor(point, innovations), affine, atol=1e-8)
        ours = [self.log_density(point) for point in points]
        # Not every operation can be executed as PyMC writes it.
        with suppress(AxisError):
            as_written = self.pymc_model.compile_logp(mode=AS_WRITTEN)
            if np.allclose(ours, list(map(as_written, points)), rtol=1e-6, atol=1e-6):
                return self
        # And some formulas, log(1 − Φ) say, lose digits unless PyTensor rewrites them.
        stable = self.pymc_model.compile_logp(mode=python_mode())
        np.testing.assert_allclose(ours, list(map(stable, points)), rtol=1e-6, atol=1e-6)
        return self


@pytest.fixture
def read() -> Callable[..., Reading]:
    """Recognise a model and verify the reading: ``read(model).lgm``."""

    def read_model(model: pm.Model, **kwargs) -> Reading:
        return Reading(model, recognize(model, **kwargs)).verify()

    return read_model


@pytest.fixture
def numerical_gradient() -> Callable:
    """Central differences of a function of a point, by the entries named."""

    def gradient(function: Callable[[Point], float], point: Point, names) -> dict[str, np.ndarray]:
        found = {}
        for name in names:
            slopes = np.empty(point[name].shape)
            for i in np.ndindex(slopes.shape):
                step = RELATIVE_STEP * (1.0 + abs(point[name][i]))
                values = []
                for sign in (1.0, -1.0):
                    moved = np.array(point[name])
                    moved[i] += sign * step
                    values.append(function({**point, name: moved}))
                slopes[i] = (values[0] - values[1]) / (2.0 * step)
            found[name] = slopes
        return found

    return gradient


def assert_log_density_is_that_of_pymc(step, model):
    """Compare at points far from the start; a negative control is a thousandth of a nat off."""
    start, whole = step.recognition.start, WholeDensity(model)
    rng = np.random.default_rng(3)
    for _ in range(3):
        point = {name: np.asarray(v + rng.normal(size=v.shape)) for name, v in start.items()}
        sampler = step.make_sampler(point)
        ours = sampler.chain.log_density(point)
        whole.check(point, ours, sampler, "at a point")
        with pytest.raises(RecognitionError, match="log density that PyMC gives"):
            whole.check(point, ours + 1e-3, sampler, "at a point")
