"""Gaussian processes at arbitrary inputs.

================  =========================================================
``covariance``    covariance functions, by formulas where stationary
``input_data``    ``pm.Data`` and variables of other models that graphs depend on
``other_graphs``  a model in linear time, or of all data for ``pm.Minibatch``
``other_rows``    a model with other rows of its data
``process``       a ``pm.gp.Latent`` for the sparse engines, and through inducing inputs
================  =========================================================
"""
