"""Gaussian latent variables.

==========  =====================================================================
``blocks``  latent blocks as the model record holds them
``normal``  finding Gaussian variables and writing the model in their innovations
==========  =====================================================================
"""
