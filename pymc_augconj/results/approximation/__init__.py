"""A Gaussian approximation of the posterior, stored as its sites and θ.

=================  ===========================================================
``approximation``  the class that ``pac.fit`` returns
``assembly``       the approximation made of an engine's result
``data_check``     check that the model has the data of the fit
``fingerprint``    numbers that identify the fitted model
``latents``        the latents' prior at the fitted θ
``layout``         prior means and names of axes
``model_check``    check that a fit belongs to the model
``pointwise``      log likelihoods of single observations at draws
``sparse``         approximations through inducing points
``storage``        saving and loading
``summary``        the printed summary
=================  ===========================================================
"""
