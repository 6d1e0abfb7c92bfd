"""The public functions: the step method for PyMC's samplers, fits, predictions and tables.

=========================  =======================================================================
``augment``                ``pac.augment``: a copy of the model in which ω is a free variable
``bin_points``             ``pac.bin_points``: events in time or space as counts on a grid
``chains``                 the chains of ``pac.sample``: interrupts, threads, tasks of a cluster
``checkpoints``            saved states of a chain, and a chain that resumes from one
``chunks``                 arrays of ``fit(data=…)`` in chunks, and predictions at Dask arrays
``evidence``               ``pac.log_evidence``: the marginal likelihood with its standard error
``fit``                    ``pac.fit``: a Gaussian approximation of the posterior
``fit_bambi``              ``pac.fit_bambi``: ``pac.sample`` for models written with bambi
``native_step``            ``pac.AugmentedGibbs``: the step method for ``pm.sample``; recorder
``plot_fit``               ``pac.plot_fit``: data, mean and bands over one or two inputs
``predict``                ``pac.predict``: predictions from draws or from an approximation
``predict_from``           predictions from posterior draws, analytic ones from an approximation
``recognize``              ``pac.recognize``: how a model is sampled; ``pac.advise``: engines
``report``                 tables of a parsed model, and of the moves that will sample it
``sample``                 ``pac.sample``: ``pm.sample`` with the Gibbs step; ``pac.warm_up``
``sparsify``               ``pac.sparsify``: a model through inducing points; its Gibbs step
``step``                   the step method without the compiled loop
``step_choices``           variables, updates, sweeps and refused values of the step method
``stored``                 chains whose draws are in a Zarr store
``update``                 ``pac.update``: reweighted draws of a posterior given other data
``updates``                slices, elliptical slices and NUTS for the hyperparameters of one move
=========================  =======================================================================
"""
