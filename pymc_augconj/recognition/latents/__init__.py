"""Gaussian latent variables.

=================  ===================================================================
``blocks``         latent blocks as the model record holds them
``flat``           coefficients whose prior is not normal, as flat latents
``innovations``    a model in the innovations of its Gaussian variables
``markov``         processes whose covariance function makes them Markov
``normal``         finding Gaussian variables by the names of their distributions
``precision``      the precision matrix of a Gaussian variable, from its log density
``quadratic``      variables that are Gaussian because their log density is quadratic
``sparse_normal``  normal vectors with a sparse precision that is given
``walks``          the precision matrix of a random walk, by its formula
=================  ===================================================================
"""
