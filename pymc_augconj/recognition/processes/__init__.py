"""Gaussian processes at any inputs.

====================  =========================================================
``covariance_graph``  any covariance function, through its graph
``foreign``           processes that belong to another model
``input_data``        the ``pm.Data`` that variables are made of
``minibatch``         a model of ``pm.Minibatch`` data as the model of all data
``process``           a ``pm.gp.Latent`` as sparse engines need it
``profiles``          stationary kernels as functions of the squared distance
``slopes``            derivatives of a few scalars by entries of the point
``stationary``        stationary covariances by formulas
====================  =========================================================
"""
