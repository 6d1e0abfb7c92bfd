"""Likelihoods: one file each, with its formulas and the pattern by which it is recognised.

``base.py`` is the contract, ``registry.py`` finds the entries, ``polya_gamma_atom.py`` is a density
that two likelihoods share; every other file is one likelihood. To add one, copy
``bernoulli_logit.py`` and add one line to the contract test.
"""
