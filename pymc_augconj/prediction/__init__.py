"""Predictions at new inputs, as arrays.

===============  ========================================================================
``conditional``  a Gaussian process at new inputs, given draws at the old ones
``mixtures``     predictive distributions of y as mixtures over the predictors' posterior
``moments``      mean and variance of y given η, for likelihoods without formulas
===============  ========================================================================
"""
