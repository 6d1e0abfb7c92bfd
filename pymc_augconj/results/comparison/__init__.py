"""Several fits of one model side by side.

===========  ======================================================
``compare``  one table: cost, convergence, agreement, leave-one-out
``fits``     fits brought to the same variables, shapes and labels
``plots``    ArviZ's figures of several fits
===========  ======================================================
"""
