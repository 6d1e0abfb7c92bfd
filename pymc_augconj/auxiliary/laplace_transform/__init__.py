"""A positive distribution known only by its Laplace transform φ, and its exponential tilts.

=========================  =================================================================
``complete_monotonicity``  check that φ is the transform of a distribution on [0, ∞)
``density``                the log density, by inversion at the saddlepoint
``distribution``           scale, support, atom and moments from φ; residuals of density φ(e²)
``inversion``              methods of inversion, and their choice for each tilt of a batch
``kernels``                Numba loops: sums over the nodes of an inversion
``known_families``         known distributions with a closed form, and finding them
``quantiles``              draws, quantiles and distribution function by inversion
``scale_families``         samplers for a φ whose hyperparameters change
``table_kernels``          the Numba loop behind ``table_sampler``
``table_sampler``          many draws from the tilts of one φ, by a table of its log density
=========================  =================================================================
"""
