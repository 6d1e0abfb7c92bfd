"""From a PyMC model to a :class:`~pymc_augconj.model.LatentGaussianModel`.

Only this folder and ``distributions`` read PyTensor graphs.

===============  ===================================================================
``checks``       comparison of the parsed model with PyMC's own log density
``graph``        graphs to functions of PyMC's point; affinity, rewriting
``latents``      Gaussian latent variables and their priors
``observed``     observed variables and their likelihoods
``prediction``   predictors at new inputs; from latents back to the user's variables
``predictors``   offset(θ) + Σ A(θ) u as functions of the point
``processes``    Gaussian processes at other inputs
``recognizer``   recognition of a model, by all parts in turn
``roles``        the role of each variable
===============  ===================================================================
"""
