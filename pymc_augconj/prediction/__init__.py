"""Predictions at new inputs, as arrays.

===============  ========================================================================
``mixtures``     predictive distributions of y as mixtures over the predictors' posterior
``moments``      mean and variance of y given η; draws of processes at new inputs
===============  ========================================================================
"""
