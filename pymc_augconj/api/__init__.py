"""The public functions: the step method for PyMC's samplers, fits, predictions and tables.

=========================  =======================================================================
``advise``                 ``pac.advise``: the cost and the errors of each engine on a model
``alternation``            Gaussian variables that multiply the latents, drawn in turn with these
``augment``                ``pac.augment``: a copy of the model in which ω is a free variable
``background``             sampling in a thread, while the caller continues
``bin_points``             ``pac.bin_points``: events in time or space as counts on a grid
``chains``                 the chains of ``pac.sample``: interrupts, tasks of a cluster
``checkpoints``            saved states of a chain, and a chain that resumes from one
``chunks``                 arrays of ``fit(data=…)`` in chunks, and predictions at Dask arrays
``evidence``               ``pac.log_evidence``: the marginal likelihood with its standard error
``fit``                    ``pac.fit``: a Gaussian approximation of the posterior
``fit_bambi``              ``pac.fit_bambi``: ``pac.sample`` for models written with bambi
``native_step``            the step of ``pac.sample``, in blocks by a compiled loop; recorder
``pilot``                  the expected time of sampling a model, from short runs
``plot_fit``               ``pac.plot_fit``: data, mean and bands over one or two inputs
``predict``                ``pac.predict``: predictions from draws or from an approximation
``predict_approximation``  analytic predictions from an approximation
``predict_draws``          predictions from posterior draws, also of a series' next steps
``refusals``               hyperparameter values refused because of rounding
``recognize``              ``pac.recognize``: parse a model, and show how it will be sampled
``report``                 tables of a parsed model, and of the moves that will sample it
``sample``                 ``pac.sample``: ``pm.sample`` with the Gibbs step; ``pac.warm_up``
``sparse_step``            the Gibbs step through inducing points, log densities at its draws
``sparsify``               ``pac.sparsify``: a model through inducing points, for any sampler
``step``                   ``pac.AugmentedGibbs``: the step method for ``pm.sample``
``step_choices``           variables, updates and sweeps of the step method
``stored``                 chains whose draws are in a Zarr store
``update``                 ``pac.update``: reweighted draws of a posterior given other data
``updates``                slices, elliptical slices and NUTS for the hyperparameters of one move
=========================  =======================================================================
"""
