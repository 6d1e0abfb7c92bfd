"""The Pólya–Gamma distribution PG(h, c).

================  =============================================================
``distribution``  draws, moments, Laplace transform and density
``kernels``       Numba loops: thinning at small h, saddlepoint at large h
================  =============================================================
"""
