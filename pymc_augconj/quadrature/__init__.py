"""Integrals over the predictors of one observation.

=====================  ==================================================================
``expectation``        expectations under normal distributions; fixed nodes for many predictors
``mesh``               modes of tilted distributions and panels that cover them
``quantile_shift``     the Numba loops behind the variance of quantile propagation
``tilted``             moments of tilted distributions for any log density
=====================  ==================================================================
"""
