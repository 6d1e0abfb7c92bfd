"""Checks of a parsed model against PyMC's log density.

=================  ============================================================
``checks``         the comparison, at once and with a running chain
``densities``      PyMC's own log densities as graphs, and warnings of their faults
``propriety``      refuses flat coefficients whose posterior is improper
=================  ============================================================
"""
