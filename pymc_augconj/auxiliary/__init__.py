"""Exact draws, moments and densities of the auxiliary variables; a map for the newcomer.

A likelihood that is not Gaussian becomes Gaussian once an auxiliary variable ω is given; this room
knows the laws of those ω and nothing else: no likelihood, no model, no graph. One law a file:

==================================  ===============================================================
``polya_gamma``                     PG(h, c), for the logistic family; exact for every real h and c
``inverse_gaussian``                IG(mean, shape), for Laplace noise; the mean may be infinite
``truncated_normal``                N(mean, 1) cut at zero, for the probit
``generalized_inverse_gaussian``    GIG(p, a, b), for Matérn noise
==================================  ===============================================================

Each file offers the same five functions, broadcasting over its parameters:

* ``random_<law>(rng, …)``: independent draws, all randomness from the generator passed in;
* ``mean_<law>``, ``var_<law>``: the first two moments;
* ``log_laplace_<law>(…, t)``: log E exp(−t ω), by which tests tie a law to its likelihood;
* ``logpdf_<law>(x, …)``: the log density.

``polya_gamma_kernels`` holds the Numba loops behind ``random_polya_gamma``; ``arguments`` words
the refusals. Gamma draws need no file: ``rng.standard_gamma`` is exact and fast.

Nothing is imported here, so that a user compiles and loads only the laws that a model needs.
"""
