"""Gaussian processes at arbitrary inputs.

====================  =========================================================
``copies``            models with other graphs of the same variables
``covariance_graph``  any covariance function, through its graph
``input_data``        ``pm.Data`` and variables of other models that graphs depend on
``linear_time``       the PyMC model in which Markov processes take linear time
``minibatch``         from a model of ``pm.Minibatch`` data to one of all data
``other_rows``        a model with other rows of its data
``process``           a ``pm.gp.Latent`` for the sparse engines
``profiles``          stationary kernels as functions of the squared distance
``stationary``        stationary covariances by formulas
``through_inducing``  the PyMC model in which a process acts through inducing inputs
====================  =========================================================
"""
