"""A fuzzer: random PyMC models, each read by the package and compared with PyMC.

Run it by ``make fuzz N=2000 SEED=0`` (log densities), ``make fuzz N=200 SEED=0 ARGS=--moments`` or
``make fuzz N=400 SEED=0 ARGS=--chains``.

``source``
    A program's text, and the random choices that make it.
``hyperparameters``, ``latents``, ``predictors``, ``likelihoods``, ``grammar``
    What programs are made of, up to a whole model.
``interpreter``, ``reference``
    PyMC's log density without compiling it, with the error that rounding leaves in it.
``reading``
    The package's log density, from what it read, and a few of its steps.
``comparison``
    One model's outcome.
``chains``
    The states of a chain in models of wild scales.
``importance``, ``moments``
    Posterior moments of small models by importance sampling, and by the sampler.
"""
