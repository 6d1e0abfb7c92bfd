"""The Gibbs sampler.

================  =======================================================
``conditioning``  exact draws of the latents given sites, in either space
``elliptical``    slices along an ellipse of two draws of a Gaussian distribution
``held_sampler``  one step where some sites are held
``held_sites``    choosing the sites of densities without an auxiliary variable
``sampler``       one step: the moves in the order that makes them exact
``targets``       the log density that a move hands to its update
================  =======================================================
"""
