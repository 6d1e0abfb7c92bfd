"""The Gibbs step without Python: many steps in one call of a compiled loop, for any model.

===================  ========================================================================
``columns``          scales of single latents, and the latents that they scale
``column_matrices``  their design, factors and predictors
``column_steps``     the loop of models with these
``compilation``      decorators of compiled functions, and records as their arguments
``density``          the log density of hyperparameters
``entries``          vectors that are updated by entry, and designs of rows
``factors``          steps of one factor after another, for normal observations
``fixed``            a chain's steps where nothing is learned and all sites are held
``held``             held sites, and elliptical slices; the loop of ``fixed``
``kernel``           the loop
``loop``             a chain's steps by it, from point to point
``precisions``       latents that are not independent, or share values with other blocks
``problem``          a model as the arrays that the loop reads
``rows``             the rows of a model: designs on the tape, sites, and sums over them
``row_tapes``        log densities of held sites
``slices``           updates of hyperparameters, and what tuning learns
``work``             arrays that the loop overwrites
===================  ========================================================================
"""
