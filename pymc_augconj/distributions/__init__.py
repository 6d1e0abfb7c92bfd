"""Distributions that PyMC lacks and the package augments.

Each works with any PyMC tool: ``logp``, NUTS, prior and posterior predictive. Their augmentations,
as NumPy, are in ``likelihoods``.

======================  ====================================================================
``auxiliary_variable``  the distributions of ω as PyMC distributions
``classes``             a class by other links than the softmax, or by a hinge loss
``formula``             an elementwise formula, detached from the model it was written in
``maps``                priors of areas, near those of their neighbours
``matern_field``        a Matérn field on a lattice or a triangulation
``matern_noise``        real observations whose density is a Matérn function of the residual
``normalizer``          1/∫ φ(e²) de as a graph, and conditions on φ
``precision_ops``       operations of graphs on a precision matrix given by its entries
``sparse_normal``       a normal vector with a sparse precision matrix
``super_gaussian``      any likelihood exp(log c + g f) φ(α − β f + γ f²), given only log φ
``vecchia``             Vecchia's approximation of a Gaussian process
======================  ====================================================================
"""
