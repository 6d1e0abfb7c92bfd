"""What recognition found in a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pymc_augconj.model import LatentGaussianModel

__all__ = ["Recognition"]


@dataclass(frozen=True)
class Recognition:
    """A PyMC model, read.

    Attributes
    ----------
    model : LatentGaussianModel
        What the engines work on.
    kinds : tuple of str
        How each latent block enters the predictors.
    factors : tuple of str
        Observed variables and potentials that depend on hyperparameters alone.
    start : mapping
        PyMC's default initial point.
    probes : tuple of mapping
        Other values of the hyperparameters, at which structure is examined.
    """

    model: LatentGaussianModel
    kinds: tuple[str, ...]
    factors: tuple[str, ...] = ()
    start: Mapping[str, np.ndarray] = field(default_factory=dict)
    probes: tuple[Mapping[str, np.ndarray], ...] = ()
