"""Work on several threads, processes and machines.

===============  ==============================================================
``client``       the executor for the user's ``client``
``dask``         work on the workers of a Dask cluster
``dask_arrays``  parts of Dask arrays
``executor``     executors: this thread, threads, processes; settings of the process
===============  ==============================================================
"""
