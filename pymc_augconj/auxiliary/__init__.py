"""Exact draws, moments and densities of the auxiliary variables.

Nothing here knows a likelihood or a model. Each distribution offers functions that broadcast over
its parameters: ``random_<name>(rng, …)`` for independent draws, ``mean_<name>`` and
``logpdf_<name>(x, …)``. Gamma draws need no file: ``rng.standard_gamma`` is exact and fast. Nothing
is imported here, so that a user compiles and loads only what a model needs.

=======================================  ==========================================================
``checks``                               error messages for arguments out of range
``generalized_inverse_gaussian``         GIG(p, a, b), for Matérn noise
``generalized_inverse_gaussian_kernel``  the Numba loop behind it
``inverse_gaussian``                     IG(mean, shape), for Laplace noise
``laplace_transform``                    distributions known only by their Laplace transform φ
``poisson``                              counts of any mean, for thinning
``polya_gamma``                          PG(h, c), for the logistic family
``truncated_normal``                     N(mean, 1) cut at zero, for the probit
=======================================  ==========================================================
"""
