"""Comparisons with peers, by ``make bench DATA=<folder>``; never part of the test run.

====================  =======================================================================
``harness.py``        rows, the table, the JSON file, and fresh processes with empty caches
``problems.py``       the data sets and the PyMC models on them
``sampling.py``       one timed run of either sampler, inside a fresh process
``fixed_kernel.py``   effective samples a second against NUTS, kernel fixed
``learned_kernel.py`` the same with the kernel learned
``small_models.py``   small models against NUTS, end to end and sampling alone
``small_problems.py`` these models, on simulated data
``step_time.py``      one step against one Cholesky factorisation
``structured.py``     random walks and maps: growth of a step, and against NUTS
``crossed.py``        crossed and nested effects: a step, and against NUTS
``table2.py``         four likelihoods, each with its closed form and by its φ alone
``gpflow_dense.py``   dense variational fits against GPflow's VGP
``gpflow_sparse.py``  sparse fits by minibatches against GPflow's SVGP
``chunks.py``         data in chunks on two workers against one process
``prediction.py``     predictions from draws against PyMC's own
``cold_start.py``     seconds to the first draw where nothing is compiled
``peers/``            standard problems by a dozen other packages: ``make peers``
====================  =======================================================================

What is equal on both sides of a ratio: the model, the machine and the moment (one run of this
program), two cores, BLAS on one thread, a fresh process with empty PyTensor and Numba caches,
and a clock that starts at the sampler's call and so includes compilation, but not imports. NUTS
is nutpie on the whitened model, PyMC's default form.
"""
