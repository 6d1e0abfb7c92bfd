"""The joint Gaussian prior of the latents, and conditioning it on sites.

=====================  =====================================================================
``affine``             the posterior given sites as an affine map of standard normals
``base``               what the prior of a block must answer, whatever its structure
``by_copies``          conditioning outputs of a process, which share their design
``by_gram``            conditioning independent latents, the observations summed out
``by_observations``    conditioning through the covariance of distinct predictors
``by_precision``       conditioning structured latents through their sparse precision
``by_weights``         conditioning through the precision of all whitened latents
``cache``              values kept until the entries that they depend on change
``certified``          conditioning in whichever space the log evidence has digits
``components``         which latents one Gaussian move draws together
``dense``              a prior with any covariance matrix
``derivatives``        sums of derivatives by entry of the point
``diagonal``           priors of independent latents
``evidence``           the log evidence and its gradient by hyperparameters
``factor``             a prior known by the Cholesky factor of its covariance
``gram_pattern``       where a Gram matrix has entries, and which rows are summed in each
``intrinsic``          a prior known by its precision matrix, with a sum-to-zero constraint
``joint``              the prior of all blocks and of the predictors, at one θ
``posterior``          the Gaussian posterior that a set of sites stands for
``precision``          a prior known by its precision matrix
``precision_design``   the predictors of structured latents at one θ
``precision_factor``   the factor of their posterior precision, and its moments
``precision_pattern``  the precision of structured latents given sites: sparse, with a border
``registry``           the kinds of prior
``rows``               predictors that are equal whatever the latents are
``space``              the spaces of conditioning, and choosing the cheapest
=====================  =====================================================================
"""
