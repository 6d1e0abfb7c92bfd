"""Linear algebra in place, on Fortran-ordered arrays.

=======================  =======================================================================
``blas``                 products with symmetric and triangular matrices
``cholesky``             Cholesky factor of a covariance, with a ladder of jitters
``factors``              Cholesky factors of banded and sparse matrices, with borders and updates
``linear_map``           the linear map A from latents to predictors
``rounding``             estimates of the rounding error of a log determinant
``sparse``               patterns of symmetric matrices, and their orders of elimination
``sparse_kernels``       loops of ``sparse`` and ``factors``
``state_space``          Cholesky factors of covariances of Markov processes, in linear time
``state_space_kernels``  loops of ``state_space``
``triangular_factor``    solving with a triangular factor
``unlocked``             triangular products and solves that let other threads run
=======================  =======================================================================
"""
