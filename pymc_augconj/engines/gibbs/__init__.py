"""The Gibbs sampler.

================  =======================================================
``conditioning``  exact draws of the latents given sites, in either space
``sampler``       one step: the moves in the order that makes them exact
``targets``       the log density that a move hands to its update
================  =======================================================
"""
