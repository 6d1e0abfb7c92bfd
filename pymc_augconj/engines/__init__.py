"""Engines: NumPy in, NumPy out.

``latent_prior.py`` holds the prior of the latents at one θ, ``conditioning.py`` conditions it on
sites, ``evidence.py`` differentiates the log evidence; each engine (``gibbs.py`` and its
neighbours) is a rule that updates sites. ``plan.py`` says which hyperparameter is updated how.
"""
