"""Predictors as functions of the point.

================  =================================================================
``coefficients``  products with a map; maps that are sums of fixed maps
``designs``       the linear map A(θ) of a block, by evaluating it on a few vectors
``predictors``    the stacked predictors
================  =================================================================
"""
