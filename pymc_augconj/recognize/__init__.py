"""Recognition: the only room that reads PyTensor graphs.

``recognizer.py`` is the way through; it uses ``structure.py`` (which variable plays which part),
``latents.py`` (Gaussian variables and their innovations), ``sites.py`` and ``links.py`` (matching
likelihoods), ``affine.py`` and ``designs.py`` (predictors), ``checks.py`` (the check against
PyMC), ``compile.py`` (graphs to functions) and ``report.py`` (the table).
"""

from .compile import python_mode
from .recognizer import recognize
from .report import Recognition

__all__ = ["Recognition", "python_mode", "recognize"]
