"""Checks of a parsed model against PyMC's log density.

=================  ============================================================
``checks``         the comparison
``densities``      PyMC's own log densities as graphs, and warnings of their faults
``propriety``      refuses flat coefficients whose posterior is improper
``whole_density``  PyMC's log density of a whole model, for comparison with a chain
=================  ============================================================
"""
