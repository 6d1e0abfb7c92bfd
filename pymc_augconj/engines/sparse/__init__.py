"""Fits through inducing points.

=================  ===================================================================
``adam``           stochastic gradient ascent with a step size for every coordinate
``batch``          a minibatch in parts, on several threads
``chunk_sums``     what the rows of a chunk of the data add to the sums of a fit
``chunked``        the bound on data in chunks, of which only sums are seen
``chunked_batch``  minibatches of data in chunks, drawn where these are
``convergence``    convergence check for SVI: the improvement over the last iterations
``design``         predictors through inducing points
``expected``       a density expected over the residual of its predictor
``few_rows``       rows of the data, few at a time
``fit``            the bound on all data at once
``gradient``       derivatives with respect to θ and inducing inputs
``inducing``       inducing inputs by k-means; rates of natural-gradient steps
``model``          a recognised model through inducing points
``outcome``        the result of a sparse fit: sites and θ
``posterior``      q(w) of the weights
``separate``       several predictors, with weights that are independent
``sites``          the observations of a minibatch: their bound and target sites
``svi``            stochastic variational inference
``weights``        a recognised model in the weights of its inducing points, for samplers
=================  ===================================================================
"""
