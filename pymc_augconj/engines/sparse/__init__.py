"""Fits through inducing points, and the model that is sampled through them.

=============  ===================================================================
``chunks``     rows of data in chunks, and their sums where these are
``component``  predictors of some rows through inducing points, with derivatives
``fit``        the bound on all the data, and the result: sites and θ
``inducing``   inducing inputs, processes there, and the posterior of their weights
``model``      a recognised model in components whose weights are independent
``rows``       sums over rows of the data; rows in memory, on several threads
``svi``        stochastic variational inference: rates, Adam, the check of convergence
``weights``    a recognised model in the weights of inducing points, for samplers
=============  ===================================================================
"""
