"""Elliptical slice sampling of hyperparameters, jointly; about 1.5 evaluations per step."""

from __future__ import annotations

import math

import numpy as np

from pymc_augconj.engines.gibbs.elliptical import elliptical_slice
from pymc_augconj.engines.gibbs.targets import Target
from pymc_augconj.typing import Array

from .updates import SliceUpdate

__all__ = ["EllipticalUpdate", "MixedUpdate"]

# Degrees of freedom of the t distribution, whose heavy tails let ellipses cover the target.
_DEGREES_OF_FREEDOM = 3.0

# Elliptical slices of several scalars in a call of a MixedUpdate, and the part of its calls that
# have a slice along an axis.
_ELLIPSES, _ALONG_AXES = 2, 0.25


class EllipticalUpdate(SliceUpdate):
    """Generalised elliptical slice sampling around a t distribution learned during tuning.

    With μ and A the mean and a root of the covariance of the values seen in the last window, and
    x = μ + A z, the target is T(z) times a residual, where T is a multivariate t distribution with
    ν degrees of freedom, a scale mixture of normals. Given the scale, drawn from its conditional
    distribution, z moves along an ellipse. Until the first estimate of μ and A, coordinates are
    updated one by one as in :class:`.SliceUpdate`.

    Measured on a normal target in 2 and 13 dimensions: 1.2 and 1.4 evaluations per step with 1.0
    and 0.8 effective samples; slices along the axes take 3 evaluations per dimension.

    References
    ----------
    Nishihara, Murray & Adams (2014), Parallel MCMC with generalized elliptical slice sampling.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._inverse, self._inverted = np.empty((0, 0)), None

    @property
    def schedule(self) -> tuple[int, int]:
        """See :class:`.SliceUpdate`."""
        return 1, 0

    def __call__(self, target: Target, start: Array, rng: np.random.Generator, tune: bool) -> Array:
        """Return the next value."""
        centre, axes = self.state["centre"], self.state["axes"]
        if axes is None or centre is None:
            return super().__call__(target, start, rng, tune)
        if self._inverted is not axes:
            self._inverse, self._inverted = np.linalg.inv(axes), axes
        z = self._inverse @ (start - centre)
        shape = 0.5 * (_DEGREES_OF_FREEDOM + self.size)
        scale = 0.5 * (_DEGREES_OF_FREEDOM + z @ z) / rng.gamma(shape)
        fresh = math.sqrt(scale) * rng.standard_normal(self.size)

        def residual(cos: float, sin: float) -> float:
            if sin == 0.0:
                at, x = z, start
            else:
                at = cos * z + sin * fresh
                x = centre + axes @ at
            return target(x) + shape * math.log1p(at @ at / _DEGREES_OF_FREEDOM)

        cos, sin, _, _ = elliptical_slice(rng, residual, residual(1.0, 0.0))
        moved = start if sin == 0.0 else centre + axes @ (cos * z + sin * fresh)
        if tune:
            self._learn(moved)
        return moved


class MixedUpdate(EllipticalUpdate):
    """Elliptical slices, in a part of the calls followed by a slice along one of the axes.

    Ellipses take hardly more evaluations for several scalars than for one, but may not reach where
    tails are heavier than theirs in one direction; slices along the axes do. Which axis, and
    whether, is drawn without regard to the values.
    """

    @property
    def schedule(self) -> tuple[int, int]:
        """See :class:`.SliceUpdate`."""
        return min(_ELLIPSES, self.size), 1

    def __call__(self, target: Target, start: Array, rng: np.random.Generator, tune: bool) -> Array:
        """Return the next value."""
        if self.state["axes"] is None:
            return super().__call__(target, start, rng, tune)
        for _ in range(min(_ELLIPSES, self.size)):
            start = super().__call__(target, start, rng, tune)
        return self._along_one_axis(target, start, rng) if rng.random() < _ALONG_AXES else start
