"""Observed variables and their likelihoods.

==================  ==========================================================
``censoring``       PyMC's ``Censored``
``custom``          ``pm.CustomDist`` with a log density of |y − f|
``data``            refusing data that no engine could use
``errors``          messages where there is no augmentation
``generic``         any distribution, through PyMC's own log density
``indices``         axes and indices next to the predictor
``link_probe``      finding a link numerically
``links``           peeling the link off a parameter
``match``           matching observed variables to likelihoods
``observed_graph``  what is matched, with its graphs
``row_parameters``  parameters of a density: one number, or one per observation
``rows``            densities of single observations, for any number of rows
``super_gaussian``  super-Gaussian likelihoods stated by log φ
==================  ==========================================================
"""
