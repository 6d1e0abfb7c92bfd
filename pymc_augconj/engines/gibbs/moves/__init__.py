"""The moves of the Gibbs step, functions of ``(rng, chain, state)``, each of which is exact.

=================  ========================================================================
``by_factor``      the effects of one factor after another
``collapsed``      hyperparameters given ω, the latents of a part integrated out
``given_latents``  hyperparameters given the latents, ω integrated out
``latents``        ω, the latents of a part, and what depends on no observation
=================  ========================================================================
"""
