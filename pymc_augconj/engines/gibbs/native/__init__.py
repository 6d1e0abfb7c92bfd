"""The Gibbs step without Python: many steps in one call of a compiled loop, for any model.

===========  ==========================================================================
``density``  the log density of hyperparameters
``kernel``   the loop
``loop``     a chain's steps by it, from point to point
``problem``  a model as the arrays that the loop reads
``rows``     the rows of a model: designs on the tape, and sites
``sums``     sums over observations as polynomials of registers
===========  ==========================================================================
"""
