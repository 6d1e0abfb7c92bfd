"""Linear algebra in place, on Fortran-ordered arrays.

=====================  =======================================================================
``banded``             Cholesky factors of banded matrices, and their inverses within the band
``banded_kernels``     its loop
``blas``               products with symmetric and triangular matrices
``bordered``           Cholesky factors of sparse matrices with a dense border
``bordered_kernels``   its loops
``cholesky``           Cholesky factor of a covariance, with a ladder of jitters
``linear_map``         the linear map A from latents to predictors
``rounding``           estimates of the rounding error of a log determinant
``sparse``             Cholesky factors of sparse matrices, and inverses where they have entries
``sparse_kernels``     its loops
``triangular_factor``  solving with a triangular factor
``unlocked``           triangular products and solves that let other threads run
=====================  =======================================================================
"""
