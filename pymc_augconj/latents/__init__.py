"""The joint Gaussian prior of the latents and of the predictors.

===============  =======================================================
``dense``        products with a block's covariance, scale and map
``derivatives``  sums of derivatives by entry of the point
``evidence``     the log evidence and its gradient by hyperparameters
``joint``        the prior of all blocks and of the predictors, at one θ
``posterior``    the Gaussian posterior that a set of sites stands for
===============  =======================================================
"""
