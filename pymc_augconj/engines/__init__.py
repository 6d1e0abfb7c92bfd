"""Inference algorithms, NumPy in and NumPy out.

===================  ============================================================
``base``             contract of the fitting engines: problem, reports, result
``ep``               expectation and quantile propagation
``gibbs``            the Gibbs sampler
``hyperparameters``  L-BFGS over hyperparameters
``nested``           site approximations, hyperparameters integrated over a design
``options``          options of the fitting methods and their checks
``registry``         the fitting engines by name; a new one is one line
``sparse``           fits through inducing points, on minibatches or all data
``variational``      coordinate ascent and the variational Gaussian approximation
===================  ============================================================
"""
