"""Distributions that PyMC lacks and the package augments.

Each works with any PyMC tool: ``logp``, NUTS, prior and posterior predictive. Their augmentations,
as NumPy, are in ``likelihoods``.

======================  ====================================================================
``auxiliary_variable``  the distributions of ω as PyMC distributions
``classes``             a class by other links than the softmax, or by a hinge loss
``formula``             an elementwise formula, detached from the model it was written in
``matern_noise``        real observations whose density is a Matérn function of the residual
``normalizer``          1/∫ φ(e²) de as a graph, and conditions on φ
``super_gaussian``      any likelihood exp(log c + g f) φ(α − β f + γ f²), given only log φ
======================  ====================================================================
"""
