"""Recognition checks itself against PyMC's log density.

=================  ============================================================
``checks``         the comparison
``densities``      PyMC's own log densities as graphs
``whole_density``  PyMC's log density of a whole model, to compare a chain with
=================  ============================================================
"""
