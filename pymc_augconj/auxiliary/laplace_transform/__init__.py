"""A positive distribution known only by its Laplace transform φ, and its exponential tilts.

=========================  =====================================================================
``complete_monotonicity``  check that φ is the transform of a distribution on [0, ∞)
``distribution``           scale, support, atom and moments from φ; known families
``inversion``              methods of inversion for each tilt of a batch; log densities
``kernels``                Numba loops: sums over the nodes of an inversion, draws from a table
``quantiles``              draws, quantiles and distribution function by inversion
``table_sampler``          many draws from the tilts of one φ, by a table, or of its multiples
=========================  =====================================================================
"""
