"""Recognition checks itself against PyMC's log density.

=================  ====================================================
``checks``         the comparison, when a model is read
``densities``      PyMC's own log densities as graphs
``whole_density``  the log density of a whole model, as a sampler moves
=================  ====================================================
"""
