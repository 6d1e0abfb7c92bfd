"""The Gibbs sampler.

==================  =======================================================
``choice``          whether sites are held where there is an auxiliary variable too
``conditioning``    exact draws of the latents given sites
``elliptical``      slices along an ellipse of two draws of a Gaussian distribution
``evidence_check``  the log evidence by another factorisation
``held_sampler``    one step where some sites are held
``held_sites``      choosing the sites of densities without an auxiliary variable
``levels``          parameters that move together with the level of a predictor
``parts``           the parts into which the latents are divided, one Gaussian move each
``sampler``         one step: the moves in the order that makes them exact
``site_terms``      the sites of a part given ω, at any hyperparameters
``targets``         the log density that a move hands to its update
``trajectory``      Hamiltonian trajectories around a Gaussian distribution
==================  =======================================================
"""
