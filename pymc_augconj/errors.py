"""The errors a user can meet; each says which variable, why, and what to do instead.

All of them are :class:`ValueError`, so code that guards against bad input in general keeps
working, and all share :class:`AugmentationError`, so that the package's own can be told apart.
"""

from __future__ import annotations

__all__ = [
    "AugmentationError",
    "DataError",
    "NotAffineError",
    "NotPositiveDefiniteError",
    "NotSuperGaussianError",
    "RecognitionError",
    "UnknownLikelihoodError",
]


class AugmentationError(ValueError):
    """Base of every error of the package."""


class RecognitionError(AugmentationError):
    """The model cannot be read as a latent Gaussian model, or reading it went wrong."""


class NotAffineError(RecognitionError):
    """A predictor is not affine in the Gaussian latent variables."""


class UnknownLikelihoodError(RecognitionError):
    """No augmentation is known for an observed variable."""


class DataError(AugmentationError):
    """An observation or an input has a value that its likelihood or kernel cannot take."""


class NotPositiveDefiniteError(AugmentationError):
    """A covariance matrix has no Cholesky factor, even with the jitter that was tried."""


class NotSuperGaussianError(AugmentationError):
    """A φ is not completely monotone with φ(0) = 1, so that no auxiliary variable exists."""
