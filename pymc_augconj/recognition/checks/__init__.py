"""Checks of a parsed model against PyMC's log density.

=================  ============================================================
``checks``         the comparison, at once and with a running chain
``densities``      PyMC's own log densities, warnings of their faults; improper posteriors
=================  ============================================================
"""
