"""Recognition checks itself against PyMC's log density.

=================  ============================================================
``checks``         the comparison
``densities``      PyMC's own log densities as graphs
``propriety``      refuses flat coefficients whose posterior is improper
``upstream``       warnings of faults that make PyMC's log density a wrong one
``whole_density``  PyMC's log density of a whole model, to compare a chain with
=================  ============================================================
"""
