"""Nested approximations: site approximations of the latents, hyperparameters integrated over.

==============  ==============================================================================
``density``     the points z at which θ is tried, and the density over θ between them
``importance``  draws of θ and of the latents given θ, and their importance ratios
``fit``         the engine; log p(θ) + log Z(θ) with its sites, and its mode
==============  ==============================================================================
"""
