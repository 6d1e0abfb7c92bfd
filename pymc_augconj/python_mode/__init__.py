"""Executing PyTensor graphs without compiling them.

===============  ====================================================================
``arrays``       operations on whole arrays as Python functions
``elementary``   elementary functions for compiled loops over rows
``mode``         the rewrites and the mode of PyTensor's for it
``operations``   one operation of a graph as a Python function
``registers``    registers of a tape as arrays, for formulas of NumPy
``tape``         instructions over a file of registers, from a graph or a formula of NumPy
``tape_kernel``  the loops that run these
===============  ====================================================================
"""

from .mode import EXCLUDED, WRONG, complex_mode, python_mode, untraced, without_compilation

__all__ = [
    "EXCLUDED",
    "WRONG",
    "complex_mode",
    "python_mode",
    "untraced",
    "without_compilation",
]
