"""Gaussian latent variables.

=================  ===================================================================
``innovations``    a model in the innovations of its Gaussian variables
``markov``         processes whose covariance function makes them Markov
``normal``           Gaussian variables by the names of their distributions; flat stand-ins
``precision``      the precision matrix of a Gaussian variable, from its log density
``quadratic``      variables that are Gaussian because their log density is quadratic
``separable``      processes on a grid whose covariance is a product over its axes
=================  ===================================================================
"""
