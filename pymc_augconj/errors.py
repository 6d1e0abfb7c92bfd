"""The errors of the package; messages name the variable, the reason and an alternative.

All classes are :class:`ValueError`, so that code that guards against bad input keeps working, and
all are :class:`AugmentationError`, which tells them from other errors.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

_GUIDE = "https://github.com/pymc-augconj/pymc-augconj/blob/main/docs/troubleshooting.md"


class AugmentationError(ValueError):
    """Base of every error of the package; a note names the section of the guide about it."""

    section = "the-model-is-refused"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.add_note(f"See {_GUIDE}#{self.section}")


class RecognitionError(AugmentationError):
    """The model cannot be read as a latent Gaussian model, or reading it went wrong."""


class NotAffineError(RecognitionError):
    """A predictor is not affine in the Gaussian latent variables."""

    section = "a-predictor-is-not-affine"


class UnknownLikelihoodError(RecognitionError):
    """No augmentation is known for the distribution of an observed variable."""

    section = "the-likelihood-is-not-known"


class DataError(AugmentationError):
    """An observation or an input has a value that its likelihood or kernel cannot take."""

    section = "data-have-values-that-the-likelihood-cannot-take"


class NotPositiveDefiniteError(AugmentationError):
    """A covariance matrix has no Cholesky factor, even with jitter."""

    section = "a-covariance-has-no-cholesky-factor"


class UncertainEvidenceError(NotPositiveDefiniteError):
    """Rounding leaves no digit of a log evidence in any way of computing it."""

    section = "rounding-leaves-no-digits"


class NotSuperGaussianError(AugmentationError):
    """A φ is not completely monotone with φ(0) = 1, so that no auxiliary variable exists."""

    section = "a-density-is-not-super-gaussian"


def refuse(name: str, values: ArrayLike, good: ArrayLike, expected: str) -> None:
    """Raise ValueError for the first of ``values`` at which ``good``, of their shape, is false.

    ``name`` is the argument's name, and ``expected`` completes "expected …".
    """
    values, good = np.asarray(values), np.asarray(good)
    if good.all():
        return
    index = np.unravel_index(int(np.argmin(good)), good.shape)
    where = f"[{', '.join(str(int(i)) for i in index)}]" if index else ""
    raise ValueError(f"expected {expected}, got {name}{where} = {values[index]}")
