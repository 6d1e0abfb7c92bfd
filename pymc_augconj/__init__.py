"""Automatic augmented conjugacy for PyMC.

Auxiliary variables make a Gaussian process, or any other linear-Gaussian latent, conditionally
conjugate under many non-Gaussian likelihoods. This package adds them to the user's unchanged PyMC
model, uses Gaussian sites for all other likelihoods, and samples the model exactly.
"""

from .api.augment import augment
from .api.bin_points import BinnedPoints, bin_points
from .api.evidence import LogEvidence, log_evidence
from .api.fit import fit
from .api.fit_bambi import fit_bambi
from .api.native_step import AugmentedGibbs
from .api.plot_fit import plot_fit
from .api.predict import predict
from .api.recognize import advise, recognize
from .api.sample import sample, warm_up
from .api.sparsify import sparsify
from .api.update import update
from .distributions.classes import BayesianSVM, LogisticSoftmax, MaternNoise, RobustMax
from .distributions.maps import CAR, ICAR, Leroux, MaternField
from .distributions.sparse_normal import Vecchia
from .distributions.super_gaussian import SuperGaussian
from .errors import (
    AugmentationError,
    DataError,
    NotAffineError,
    NotPositiveDefiniteError,
    NotSuperGaussianError,
    RecognitionError,
    UncertainEvidenceError,
    UnknownLikelihoodError,
)
from .likelihoods.base import DensityLikelihood, Likelihood
from .likelihoods.contract import MultiDensity, MultiLikelihood, Traits
from .likelihoods.pattern import MultiPattern, Pattern, PredictorInput
from .likelihoods.registry import register, unregister
from .python_mode import without_compilation
from .results.approximation.approximation import Approximation
from .results.approximation.nested import NestedApproximation
from .results.comparison.compare import compare
from .results.comparison.plots import plot_compare

__version__ = "1.0.0rc1"

__all__ = [
    "CAR",
    "ICAR",
    "Approximation",
    "AugmentationError",
    "AugmentedGibbs",
    "BayesianSVM",
    "BinnedPoints",
    "DataError",
    "DensityLikelihood",
    "Leroux",
    "Likelihood",
    "LogEvidence",
    "LogisticSoftmax",
    "MaternField",
    "MaternNoise",
    "MultiDensity",
    "MultiLikelihood",
    "MultiPattern",
    "NestedApproximation",
    "NotAffineError",
    "NotPositiveDefiniteError",
    "NotSuperGaussianError",
    "Pattern",
    "PredictorInput",
    "RecognitionError",
    "RobustMax",
    "SuperGaussian",
    "Traits",
    "UncertainEvidenceError",
    "UnknownLikelihoodError",
    "Vecchia",
    "__version__",
    "advise",
    "augment",
    "bin_points",
    "compare",
    "fit",
    "fit_bambi",
    "log_evidence",
    "plot_compare",
    "plot_fit",
    "predict",
    "recognize",
    "register",
    "sample",
    "sparsify",
    "unregister",
    "update",
    "warm_up",
    "without_compilation",
]
