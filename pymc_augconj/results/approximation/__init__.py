"""A Gaussian approximation of the posterior, stored as its sites and θ.

=================  ===========================================================
``approximation``  the class that ``pac.fit`` returns
``fitted_model``   the latents, densities and a fingerprint of the model at θ
``leave_one_out``  marginal densities; leave-one-out cross-validation by cavities
``model_check``    check that a fit, or draws, belong to a model
``nested``         mixtures of approximations over hyperparameters
``sparse``         approximations through inducing points; that made of any engine's result
``storage``        saving and loading
``summary``        the fields of all approximations, and their printed summary
=================  ===========================================================
"""
