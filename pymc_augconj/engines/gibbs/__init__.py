"""The Gibbs sampler.

===============  =======================================================
``chain``        a chain's model and parts, and coordinates of its latents
``choice``       whether sites are held where there is an auxiliary variable too
``coordinates``  coordinates in which hyperparameters move
``elliptical``   elliptical slices, Hamiltonian trajectories, slices of independent entries
``factors``      effects of one factor after another, or all by conjugate gradients
``followed``     held sites as functions of parameters of their density
``held_sites``   held sites, as tuning chooses them
``moves``        the moves of a step
``native``       many steps in one call of a compiled loop
``observed``     observed variables, and how the site of each is handled
``parts``        the parts into which the latents are divided, one Gaussian move each
``pooled``       observations with one predictor as fewer observations
``sampler``      one step: the moves in the order that makes them exact
``site_terms``   the sites of a part given ω, as a sum of terms
``state``        the state that moves hand on, and densities for the updates
``tilted``       Gaussian latents times the ratio of densities to held sites
===============  =======================================================
"""
