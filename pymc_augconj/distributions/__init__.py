"""Distributions that PyMC lacks and the package augments.

Each works with every PyMC function: ``logp``, NUTS, prior and posterior predictive. Their
augmentations are NumPy functions in ``likelihoods``.

======================  ====================================================================
``auxiliary_variable``  the distributions of ω as PyMC distributions
``classes``             other links than the softmax, a hinge loss; Matérn noise
``formula``             an elementwise formula, detached from its model
``maps``                areas whose values resemble their neighbours'; a Matérn field
``normalizer``          1/∫ φ(e²) de as a graph, and conditions on φ
``sparse_normal``       a normal vector with a sparse precision matrix; Vecchia's approximation
``super_gaussian``      every likelihood exp(log c + g f) φ(α − β f + γ f²), stated by log φ
======================  ====================================================================
"""
