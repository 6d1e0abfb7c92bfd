"""The joint Gaussian prior of the latents, and conditioning it on sites.

=====================  =====================================================================
``base``               the contract of the prior of a block
``by_copies``          conditioning independent outputs of a process, which share their design
``by_filter``          conditioning Markov processes on their sites by a Kalman filter
``by_gram``            conditioning independent latents, the observations summed out
``by_observations``    conditioning through the covariance of distinct predictors
``by_precision``       conditioning structured latents through their sparse precision
``by_weights``         conditioning through the precision of all whitened latents
``cache``              values kept until the entries that they depend on change
``choice``             choosing the cheapest solver, and others where rounding leaves it no digits
``components``         sets of latents that one Gaussian move draws together
``dense``              a prior with any covariance matrix, perhaps given by its Cholesky factor
``derivatives``        derivatives of the log evidence, and sums of such by entry of the point
``diagonal``           priors of independent latents
``gram_pattern``       the sparsity pattern of a Gram matrix, and the rows summed in each entry
``intrinsic``          a prior given by its precision matrix, with a sum-to-zero constraint
``joint``              the prior of all blocks and of the predictors, at one θ
``markov``             a Markov process of one input, in linear time
``pivots``             a prior given by its precision matrix, and the pivots of an elimination
``posterior``          the contract of the Gaussian posterior given a set of sites
``precision``          a prior given by its precision matrix
``precision_factor``   the factor of their posterior precision, and its moments
``precision_pattern``  the precision of structured latents given sites: sparse, with a border
``registry``           the kinds of prior
``rows``               merging of predictors that are equal for all latents
``solver``             the contract of a solver, which conditions latents on sites
=====================  =====================================================================
"""
