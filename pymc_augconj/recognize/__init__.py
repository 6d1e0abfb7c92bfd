"""Recognition: the only room that reads PyTensor graphs.

``recognizer.py`` is the way through. It uses ``choice.py`` and ``structure.py`` (which variable
plays which part), ``latents.py`` (Gaussian variables and their innovations), ``sites.py``,
``links.py`` and ``probe.py`` (matching likelihoods), ``generic.py``, ``derive.py``, ``rows.py`` and
``row_parameters.py`` (densities of PyMC's, row by row), ``censoring.py``, ``complements.py`` and
``indices.py`` (what these need of censored and of masked observations), ``super_gaussian.py`` and
``custom.py`` (likelihoods stated by a formula), ``affine.py``, ``predictors.py`` and ``designs.py``
(predictors),
``blocks.py`` (priors and roles), ``forward.py`` (what is drawn forward), ``data.py`` (refusing bad
data), ``densities.py`` and ``checks.py`` (the check against PyMC), ``rewrite.py``, ``compile.py``,
``interpret.py``, ``numpy_calls.py``, ``space.py`` and ``variables.py`` (graphs to functions, and
back to the model's variables) and ``report.py`` (the table).
"""

from ..python_mode import python_mode
from .recognizer import recognize
from .report import Recognition

__all__ = ["Recognition", "python_mode", "recognize"]
