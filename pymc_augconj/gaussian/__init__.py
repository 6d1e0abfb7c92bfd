"""Conditioning a Gaussian on sites: the linear algebra of every engine.

The predictors η (length N) have prior N(m, K); observation i contributes the site
exp(hᵢ ηᵢ − ½ λᵢ ηᵢ²). From these come the posterior's moments, exact draws, the log normaliser
and its gradients. Nothing here knows a likelihood or an engine. Symbols and shapes are those of the
notation table in CONTRIBUTING.md.

================  ================================================================================
``observations``  the N × N form: one Cholesky factorisation of C = K + Λ⁻¹
``sites``         the layout of stacked sites of P predictors, and their diagonalisation
``weights``       the precision of D latent weights, η = Φ v
================  ================================================================================
"""
