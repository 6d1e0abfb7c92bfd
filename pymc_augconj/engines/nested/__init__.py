"""Nested approximations: site approximations of the latents, hyperparameters integrated over.

==============  ==============================================================================
``design``      points z at which θ is tried: a lattice, or scattered ones
``surface``     log p(θ) + log Z(θ) with its sites, its mode, and the coordinates z about it
``density``     the continuous density over θ between the points
``importance``  draws of θ and of the latents given θ, and their importance ratios
``fit``         the engine
==============  ==============================================================================
"""
