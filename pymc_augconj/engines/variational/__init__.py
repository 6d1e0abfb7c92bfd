"""Variational fits that move one site for each observation.

============  ========================================================
``ascent``    the loop: increase the bound until the sites stand still
``bound``     the evidence lower bound as a function of the sites
``cavi``      coordinate ascent on the augmented model
``fit``       the engine made of a site rule
``gradient``  the gradient of a converged bound by hyperparameters
``vgp``       the variational Gaussian approximation
============  ========================================================
"""
