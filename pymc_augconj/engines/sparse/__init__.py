"""Fits through inducing points, and the model that is sampled through them.

=============  ===================================================================
``chunks``     rows of data in chunks, and their sums where these are
``component``  predictors of some rows through inducing points, with derivatives
``expected``   a density expected over the residual of its predictor
``fit``        the bound on all the data, and the result: sites and θ
``inducing``   processes at inducing inputs; inducing inputs by k-means
``model``      a recognised model in components whose weights are independent
``rows``       sums over rows of the data; rows in memory, on several threads
``sites``      observations of some rows: their bound and target sites
``steps``      rates of stochastic steps, Adam, the check of convergence
``svi``        stochastic variational inference
``weights``    a recognised model in the weights of inducing points, and their posterior
=============  ===================================================================
"""
