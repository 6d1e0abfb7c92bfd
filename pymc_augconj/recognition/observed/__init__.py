"""Observed variables and their likelihoods.

===================  =====================================================================
``affine_parts``     the affine predictors through which graphs depend on the latents
``data``             checks of data and inputs
``errors``           messages where there is no augmentation
``generic``          any distribution, through PyMC's own log density
``links``            separation of links and powers from a parameter
``match``            matching observed variables to likelihoods
``mixtures``         mixtures whose components have augmentations
``observed_graph``   observed variables and potentials as flat graphs
``patterns``         matching the patterns of likelihoods
``potentials``       reading ``pm.Potential`` as a density
``priors``           priors that are not normal, as observations without data
``row_reader``       graphs of N observations as functions of rows, and their parameters
``rows``             densities of single observations, for any number of rows
``super_gaussian``   super-Gaussian likelihoods, stated by log φ or |y − f|
``vector_outcomes``  vectors of dependent observations, as single entries
===================  =====================================================================
"""
