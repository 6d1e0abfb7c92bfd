"""Predictors as functions of the point.

================  =================================================================
``coefficients``  maps that are sums of fixed maps, found from their graph
``designs``       the linear map A(θ) of a block, by evaluating it on a few vectors
``predictors``    the stacked predictors
``products``      products of a vector with such a map; maps whose rows have a single entry
================  =================================================================
"""
