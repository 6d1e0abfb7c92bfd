"""The joint Gaussian prior of the latents, and conditioning it on sites.

=====================  =====================================================================
``base``               the contract of the prior of a block
``by_filter``          conditioning Markov processes on their sites by a Kalman filter
``by_gram``            conditioning independent latents, the observations summed out
``by_grid``            conditioning a process on a grid through eigenvectors of small matrices
``by_neighbours``      conditioning a process given by neighbours by an incomplete factor
``by_observations``    conditioning through the covariance of distinct predictors
``by_precision``       conditioning structured latents through their sparse precision
``by_weights``         conditioning through the precision of whitened latents; by outputs
``choice``             choosing the cheapest solver, and others where rounding leaves it no digits
``components``         sets of latents that one Gaussian move draws together
``dense``              priors with any covariance, or a Kronecker product; independent latents
``derivatives``        derivatives of the log evidence, and sums of such by entry of the point
``joint``              the kinds of prior; the prior of all blocks and predictors at one θ
``markov``             a Markov process of one input, in linear time
``markov_values``      the rows that take values of Markov processes; stretches moved apart
``posterior``          the contracts of a Gaussian posterior given sites, and of its solver
``precision``          priors given by their precision matrix, or by pivots of its elimination
``precision_pattern``  the precision of structured latents given sites: sparse, with a border
``rows``               merging of predictors that are equal for all latents
=====================  =====================================================================
"""
