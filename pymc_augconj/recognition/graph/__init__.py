"""Reading and evaluating PyTensor graphs.

=================  ==================================================================
``affine``         whether a predictor is affine in the latents, and its coefficients
``affine_ops``     operations that are affine in some of their arguments
``complements``    log(1 − F) in forms that keep their digits
``constants``      constants in a graph
``dependence``     which random variables a graph depends on
``derive``         PyMC's log density and distribution function as graphs
``functions``      graphs as functions of PyMC's point
``guards``         probabilities that are kept from being exactly 0 or 1
``interpreter``    execution of a graph, one NumPy call for each operation
``names``          what users call variables and distributions in messages
``rewrite``        simplification, so that different spellings look alike
``rounding``       bounds on the rounding of a graph's results
``signs``          whether the sign of a graph depends on some of its inputs
``space``          from random variables to PyMC's point
``whole_numbers``  constant whole numbers that overflow
=================  ==================================================================
"""
