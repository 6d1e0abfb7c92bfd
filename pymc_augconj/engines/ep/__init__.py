"""Expectation propagation (EP) and quantile propagation (QP).

================  ==========================================================================
``double_loop``   the double loop of Opper and Winther, where parallel EP fails
``fit``           EP and QP as fitting engines
``newton``        Newton's method on the moment mismatch
``objective``     one state of EP: cavities, tilted moments, targets, evidence and its gradient
``quantile``      QP: sites that match in the L2 Wasserstein distance
``record``        state, diagnostics and history of a run
``sites``         the Gaussian prior and the sites that EP works on
``solve``         EP: sites that match the moments of their tilted distributions
``sweeps``        parallel sweeps with adaptive damping and extrapolation, and sequential ones
================  ==========================================================================
"""
