"""Gaussian processes at arbitrary inputs.

================  =========================================================
``covariance``    covariance functions, by formulas where stationary
``other_graphs``  a model in linear time, or of all its data; the ``pm.Data`` of graphs
``other_rows``    a model with other rows of its data
``process``       a ``pm.gp.Latent`` for the sparse engines, and through inducing inputs
================  =========================================================
"""
