"""Linear algebra in place, on Fortran-ordered arrays.

=======================  =======================================================================
``dense``                symmetric and triangular matrices: products, solutions, rounding errors
``elimination``          orders of elimination of sparse matrices, and their costs
``factors``              Cholesky factors of banded and sparse matrices, with borders and updates
``linear_map``           the linear map A from latents to predictors
``log_determinant``      log determinants of a family of sparse matrices, interpolated
``sparse``               patterns of symmetric matrices, and their orders of elimination
``sparse_kernels``       loops of ``sparse`` and ``factors``
``state_space``          Cholesky factors of covariances of Markov processes, in linear time
``state_space_kernels``  loops of ``state_space``
``state_space_of_two``   those for states of two entries
``supernodes``           elimination of columns with the same rows together
``vecchia``              Vecchia's approximation: order, neighbours, precision
``vecchia_kernels``      loops of ``vecchia``
=======================  =======================================================================
"""
