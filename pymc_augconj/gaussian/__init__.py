"""Conditioning a Gaussian on sites: the linear algebra of every engine.

The predictors η (length N) have prior N(m, K); observation i contributes the site
exp(hᵢ ηᵢ − ½ λᵢ ηᵢ²). Symbols and shapes are those of the notation table in CONTRIBUTING.md.

================  ================================================================================
``observations``  the N × N form: one Cholesky factorisation of C = K + Λ⁻¹
``sites``         the layout of stacked sites of P predictors, diagonalised; the weights' precision
================  ================================================================================
"""
