"""Gaussian latent variables.

=============  =====================================================================
``blocks``     latent blocks as the model record holds them
``normal``     finding Gaussian variables and writing the model in their innovations
``precision``  the precision matrix of a Gaussian variable, from its log density
``quadratic``  variables that are Gaussian because their log density is quadratic
=============  =====================================================================
"""
