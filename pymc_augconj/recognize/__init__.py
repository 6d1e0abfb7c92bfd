"""Recognition: the only room that reads PyTensor graphs.

``recognizer.py`` is the way through. It uses ``choice.py`` and ``structure.py`` (which variable
plays which part), ``latents.py`` (Gaussian variables and their innovations), ``sites.py``,
``links.py`` and ``probe.py`` (matching likelihoods), ``affine.py``, ``predictors.py`` and
``designs.py`` (predictors), ``blocks.py`` (priors and roles), ``forward.py`` (what is drawn
forward), ``data.py`` (refusing bad data), ``checks.py`` (the check against PyMC), ``rewrite.py``,
``virtual_machine.py``, ``compile.py`` and ``space.py`` (graphs to functions) and ``report.py`` (the
table).
"""

from .recognizer import recognize
from .report import Recognition
from .virtual_machine import python_mode

__all__ = ["Recognition", "python_mode", "recognize"]
