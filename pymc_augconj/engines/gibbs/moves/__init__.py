"""The moves of the Gibbs step, functions of ``(rng, chain, state)``, each of which is exact.

=================  ========================================================================
``column_kernel``  the compiled loop over scales of single latents
``given_latents``  hyperparameters given the latents, ω integrated out; scales of single latents
``latents``        ω, the latents of a part, and hyperparameters with these integrated out
``ridges``         latents against what multiplies them, where predictors stay the same
=================  ========================================================================
"""
