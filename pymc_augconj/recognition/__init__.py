"""From a PyMC model to a :class:`~pymc_augconj.model.LatentGaussianModel`.

Only this folder and ``distributions`` read PyTensor graphs.

===============  ===================================================================
``checks``       comparison of what was read with PyMC's own log density
``graph``        graphs to functions of PyMC's point; affinity, rewriting
``latents``      Gaussian latent variables and their priors
``observed``     observed variables and their likelihoods
``prediction``   predictors at new inputs; from latents back to the user's variables
``predictors``   offset(θ) + Σ A(θ) u as functions of the point
``processes``    Gaussian processes at other inputs
``recognition``  the record of what was found
``recognizer``   the way through all parts
``roles``        which variable plays which part
===============  ===================================================================
"""
