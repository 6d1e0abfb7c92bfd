"""Results as DataTrees, tables and figures; the only folder with xarray and ArviZ.

==================  ========================================
``approximation``   Gaussian approximations of the posterior
``comparison``      several fits side by side
``draw_store``      draws in a Zarr store, written while they are sampled
``predictions``     predictions as a DataTree
==================  ========================================
"""
