"""Predictors as functions of the point.

================  =================================================================
``coefficients``  products with a map; maps that are sums of fixed maps
``maps``          maps of each structure, at a point and on a tape
``designs``       the linear map A(θ) of a block, by evaluating it on a few vectors
``predictors``    the stacked predictors
================  =================================================================
"""
