"""Reading and evaluating PyTensor graphs.

=================  ==================================================================
``affine``         whether a predictor is affine in the latents, and its coefficients
``dependence``     the index of a model: variables, parents, names; from them to PyMC's point
``derive``         PyMC's log density and distribution function as graphs; log(1 − F)
``functions``      graphs as functions of PyMC's point
``interpreter``    execution of a graph, one NumPy call for each operation; whole numbers
``rewrite``        simplification to one spelling; guards against rounding
``rounding``       bounds on the rounding of a graph's results
=================  ==================================================================
"""
