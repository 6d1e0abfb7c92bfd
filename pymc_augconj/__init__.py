"""Automatic augmented conjugacy for PyMC.

A Gaussian process, or any other linear-Gaussian latent, under a non-Gaussian likelihood becomes
conditionally conjugate when auxiliary variables are added. This package adds them to the user's
own, unchanged PyMC model, and samples it exactly.
"""

from .augment import augment
from .distributions.bayesian_svm import BayesianSVM
from .distributions.matern_noise import MaternNoise
from .distributions.super_gaussian import SuperGaussian
from .errors import (
    AugmentationError,
    DataError,
    NotAffineError,
    NotPositiveDefiniteError,
    NotSuperGaussianError,
    RecognitionError,
    UnknownLikelihoodError,
)
from .fit import fit
from .predict import predict
from .recognize import recognize
from .results.approximation import Approximation
from .results.compare import compare
from .results.plots import plot_compare
from .sample import sample
from .step import AugmentedGibbs

__all__ = [
    "Approximation",
    "AugmentationError",
    "AugmentedGibbs",
    "BayesianSVM",
    "DataError",
    "MaternNoise",
    "NotAffineError",
    "NotPositiveDefiniteError",
    "NotSuperGaussianError",
    "RecognitionError",
    "SuperGaussian",
    "UnknownLikelihoodError",
    "augment",
    "compare",
    "fit",
    "plot_compare",
    "predict",
    "recognize",
    "sample",
]
