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

A law that nobody has a name for, known only by its Laplace transform φ, and all its tilts:

==================================  ===============================================================
``complete_monotonicity``           is φ the transform of a law on [0, ∞) at all
``laplace_law``                     scale, support, atom and moments from φ
``inverse_laplace``                 draws, quantiles and distribution function by inversion
``tilted_density``                  the log density, by inversion at the saddlepoint
``tilted_sampler``                  many draws from one φ, by a table of its log density
``residual_law``                    what φ says of a residual e: the law with density ∝ φ(e²)
==================================  ===============================================================

Below them, ``tilted_sites`` gives each tilt the method of inversion that suits it, and
``narrow_law`` holds the two for tilts with a small coefficient of variation.

``polya_gamma_kernels`` holds the Numba loops behind ``random_polya_gamma``; ``arguments`` words
the refusals. ``inverse_laplace_kernels`` and ``tilted_sampler_kernels`` are Numba loops as well.
Gamma draws need no file: ``rng.standard_gamma`` is exact and fast.

Nothing is imported here, so that a user compiles and loads only the laws that a model needs.
"""
