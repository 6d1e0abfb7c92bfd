"""Nested approximations: site approximations of the latents, hyperparameters integrated over.

==============  ==============================================================================
``surface``     log p(θ) + log Z(θ) with its sites, its mode, and the coordinates z about it
``density``     the points z at which θ is tried, and the density over θ between them
``importance``  draws of θ and of the latents given θ, and their importance ratios
``fit``         the engine
==============  ==============================================================================
"""
