"""Observed variables and their likelihoods.

===================  =====================================================================
``affine_parts``     the affine predictors through which graphs depend on the latents
``errors``           messages where there is no augmentation, or no latent variable
``generic``          any distribution, through PyMC's own log density
``links``            separation of links and powers from a parameter
``match``            matching observed variables to likelihoods; super-Gaussian ones
``observed_graph``   what is observed, as flat graphs; vectors as single entries; checks of data
``patterns``         matching the patterns of likelihoods; mixtures of these
``potentials``       ``pm.Potential`` and other priors as observations without data
``row_reader``       graphs of N observations as functions of rows, and their parameters
``rows``             densities of single observations, for any number of rows
===================  =====================================================================
"""
