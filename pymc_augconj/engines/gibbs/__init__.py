"""The Gibbs sampler.

==================  =======================================================
``chain``           what moves know of a chain, and coordinates of its latents
``choice``          whether sites are held where there is an auxiliary variable too
``elliptical``      slices along an ellipse of two draws of a Gaussian distribution
``evidence_check``  the log evidence by another factorisation
``factors``         effects of one factor after another, where all at once cost too much
``held_sites``      choosing the sites of densities without an auxiliary variable
``levels``          parameters that move together with the level of a predictor
``moves``           the moves of a step
``native``          many steps in one call of a compiled loop
``observed``        observed variables, and how the site of each is handled
``parts``           the parts into which the latents are divided, one Gaussian move each
``pooled``          observations with one predictor as one observation
``sampler``         one step: the moves in the order that makes them exact
``site_terms``      the sites of a part given ω, at any hyperparameters
``state``           the state that moves hand on, and what a step tells about itself
``targets``         the log density that a move hands to its update
``tilted``          Gaussian latents times what held sites leave of the densities
``trajectory``      Hamiltonian trajectories around a Gaussian distribution
==================  =======================================================
"""
