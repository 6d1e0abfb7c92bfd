"""Integrals over the predictors of one observation.

=====================  ==================================================================
``cubature``           expectations under many joint normal distributions of a few predictors
``expectation``        expectations under many normal distributions, to a stated accuracy
``nodes``              fixed nodes: Gauss–Legendre, and of independent standard normal numbers
``mesh``               modes of tilted distributions and panels that cover them
``panels``             integrals over panels, bisected until they have converged
``product_rule``       expectations of the log of a sum of exponentials in two dimensions
``quasi_monte_carlo``  expectations under many joint normal distributions, on fixed points
``quantile_shift``     the Numba loops behind the variance of quantile propagation
``tilted``             moments of tilted distributions for any log density
=====================  ==================================================================
"""
