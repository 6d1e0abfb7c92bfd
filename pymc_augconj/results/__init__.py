"""What a fit gives back: DataTrees for ArviZ, tables and pictures that set fits side by side.

The only room with xarray and ArviZ.

=================  ============================================================================
``fits.py``        several fits brought to the same variables, shapes and labels
``compare.py``     one table: cost, convergence, agreement with a reference, leave-one-out
``plots.py``       ArviZ's pictures of the same fits
``entries.py``     the scalar entries that a picture shows
=================  ============================================================================
"""
