"""Work on several threads, processes and machines.

===============  ==============================================================
``client``       the executor for the user's ``client``
``dask``         work on the workers of a Dask cluster
``dask_arrays``  parts of Dask arrays
``executor``     independent pieces of work: here, on threads, on processes
``settings``     settings of the whole process, shared between concurrent calls
===============  ==============================================================
"""
