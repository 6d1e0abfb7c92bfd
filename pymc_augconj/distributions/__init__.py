"""Distributions that PyMC lacks and the package augments; a map for the newcomer.

=====================  =============================================================================
``super_gaussian``     any likelihood exp(log c + g f) φ(α − β f + γ f²), given only its log φ
``matern_noise``       real observations whose density is a Matérn function of the residual
``bayesian_svm``       the support vector machine's hinge loss as a pseudo-likelihood
``formula``            an elementwise graph, detached from the model it was written in
``normalizer``         1/∫ φ(e²) de, as a graph
``draws``              residuals with the density φ(e²), by numerical inversion
``conditions``         what a φ must fulfil, and refusals that say where it does not
=====================  =============================================================================

Each is a distribution for any PyMC tool: ``logp``, NUTS, prior and posterior predictive. This room
imports PyMC; the room ``likelihoods`` holds their augmentations, as NumPy.
"""
