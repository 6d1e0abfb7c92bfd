"""Variational fits that move one site for each observation.

============  ========================================================
``ascent``    the loop that increases the bound, and the engine made of a site rule
``bound``     the evidence lower bound as a function of the sites
``cavi``      coordinate ascent on the augmented model
``gradient``  the gradient of a converged bound by hyperparameters
``vgp``       the variational Gaussian approximation
============  ========================================================
"""
