"""The Pólya–Gamma distribution PG(h, c).

================  =============================================================
``atom``          the density where h may be zero: the mass of an atom at ω = 0
``distribution``  draws, moments, Laplace transform and density
``kernels``       Numba loops: thinning at small h, saddlepoint at large h
================  =============================================================
"""
