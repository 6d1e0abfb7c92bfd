"""Expectation propagation (EP) and quantile propagation (QP).

================  ==========================================================================
``fit``           EP and QP as fitting engines
``objective``     one state of EP: cavities, tilted moments, targets, evidence; records of a run
``solve``         EP by sweeps, and by the double loop and Newton's method where these fail; QP
``sweeps``        parallel sweeps with adaptive damping and extrapolation, and sequential ones
================  ==========================================================================
"""
