"""The errors of the package; messages name the variable, the reason and an alternative.

All are :class:`ValueError`, so that code that guards against bad input keeps working, and all are
:class:`AugmentationError`, which tells them from other errors.
"""

from __future__ import annotations


class AugmentationError(ValueError):
    """Base of every error of the package."""


class RecognitionError(AugmentationError):
    """The model cannot be read as a latent Gaussian model, or reading it went wrong."""


class NotAffineError(RecognitionError):
    """A predictor is not affine in the Gaussian latent variables."""


class UnknownLikelihoodError(RecognitionError):
    """No augmentation is known for the distribution of an observed variable."""


class DataError(AugmentationError):
    """An observation or an input has a value that its likelihood or kernel cannot take."""


class NotPositiveDefiniteError(AugmentationError):
    """A covariance matrix has no Cholesky factor, even with jitter."""


class UncertainEvidenceError(NotPositiveDefiniteError):
    """Rounding leaves no digit of a log evidence in any way of computing it."""


class NotSuperGaussianError(AugmentationError):
    """A φ is not completely monotone with φ(0) = 1, so that no auxiliary variable exists."""
