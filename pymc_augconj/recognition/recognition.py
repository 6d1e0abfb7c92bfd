"""The result of recognition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pymc_augconj.model import LatentGaussianModel

from .checks.propriety import check_proper


@dataclass(frozen=True)
class Recognition:
    """A recognised PyMC model.

    Attributes
    ----------
    model : LatentGaussianModel
        The model for the engines.
    kinds : tuple of str
        How each latent block enters the predictors.
    factors : tuple of str
        Observed variables and potentials that depend on hyperparameters alone.
    start : mapping
        PyMC's default initial point.
    probes : tuple of mapping
        Other values of the hyperparameters, at which the structure was examined.
    predictors : mapping
        What the predictors of observed variables with several are called, by the variable's name.
    alternates : tuple of str
        Gaussian variables that are no latents beside those of the model.
    """

    model: LatentGaussianModel
    kinds: tuple[str, ...]
    factors: tuple[str, ...] = ()
    start: Mapping[str, np.ndarray] = field(default_factory=dict)
    probes: tuple[Mapping[str, np.ndarray], ...] = ()
    predictors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    alternates: tuple[str, ...] = ()

    def require_proper(self) -> None:
        """Raise a RecognitionError if the data leave flat coefficients without a proper posterior.

        A model that holds part of the data, or new inputs to predict at, need not have one.
        """
        check_proper(self.model, (self.start, *self.probes))
