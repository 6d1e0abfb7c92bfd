"""Exact draws, moments and densities of the auxiliary variables.

These modules do not depend on likelihoods or models. Each distribution has functions that broadcast
over its parameters: ``random_<name>(rng, …)`` for independent draws, ``mean_<name>`` and
``logpdf_<name>(x, …)``. Gamma draws need no file: ``rng.standard_gamma`` is exact and fast. This
module imports nothing, so that a model compiles and loads only the distributions that it needs.

=======================================  ==========================================================
``generalized_inverse_gaussian``         GIG(−ν, a, b), for Matérn noise; IG for Laplace noise
``generalized_inverse_gaussian_kernel``  the Numba loop behind it
``laplace_transform``                    distributions known only by their Laplace transform φ
``poisson``                              counts of any mean, for thinning
``polya_gamma``                          PG(h, c), for the logistic family
``truncated_normal``                     N(mean, 1) cut at zero, for the probit
=======================================  ==========================================================
"""
