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
        The kind of each latent block's map to the predictors.
    factors : tuple of str
        Observed variables and potentials that depend on hyperparameters alone.
    start : mapping
        PyMC's default initial point.
    probes : tuple of mapping
        Test points: other values of the hyperparameters, at which the structure was examined.
    predictors : mapping
        Names of the predictors of observed variables with several, by the variable's name.
    alternates : tuple of str
        Gaussian variables that cannot be latents together with the model's latents.
    """

    model: LatentGaussianModel
    kinds: tuple[str, ...]
    factors: tuple[str, ...] = ()
    start: Mapping[str, np.ndarray] = field(default_factory=dict)
    probes: tuple[Mapping[str, np.ndarray], ...] = ()
    predictors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    alternates: tuple[str, ...] = ()

    def require_proper(self) -> None:
        """Raise a RecognitionError if flat coefficients have an improper posterior.

        A model of part of the data, or of new inputs, need not have a proper one.
        """
        check_proper(self.model, (self.start, *self.probes))
