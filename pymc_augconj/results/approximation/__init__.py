"""A Gaussian approximation of the posterior, stored as its sites and θ.

=================  ===========================================================
``approximation``  the class that ``pac.fit`` returns
``assembly``       from an engine's result to an approximation
``data_check``     whether the model's data are still those of the fit
``fingerprint``    numbers that identify the fitted model
``latents``        the latents' prior at the fitted θ
``layout``         prior means and names of axes
``model_check``    whether a fit belongs to this model
``pointwise``      log likelihoods of single observations at draws
``sparse``         approximations through inducing points
``storage``        saving and loading
``summary``        the printed summary
=================  ===========================================================
"""
