"""Recognition checks itself against PyMC's log density.

=============  ==================================
``checks``     the comparison
``densities``  PyMC's own log densities as graphs
=============  ==================================
"""
