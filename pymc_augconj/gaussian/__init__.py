"""Conditioning a Gaussian on sites: the room every engine does its linear algebra in.

The predictors η (length N) have prior N(m, K); observation i contributes the site
exp(hᵢ ηᵢ − ½ λᵢ ηᵢ²). From these come the posterior's moments, exact draws, the log normaliser
and its gradients, and the prediction at new inputs. Nothing here knows a likelihood or an engine.

============================  ====================================================================
module                        what it holds
============================  ====================================================================
:mod:`.observation_space`     the N × N form: one Cholesky factorisation of C = K + Λ⁻¹
:mod:`.weight_space`          the D × D form for η = m + Φ v, D ≪ N; also takes negative λ
:mod:`.cholesky`              a covariance's Cholesky factor, with a ladder of jitters
:mod:`.released_cholesky`     a Cholesky factorisation that other threads can run beside
:mod:`.quadrature`            Gauss–Hermite expectations under N(mean, var)
:mod:`.triangular`            BLAS products that touch half a matrix and never copy one
============================  ====================================================================

Both forms are used the same way::

    factor = observation_space.factorize(K, lam, work=work)   # once per (K, λ)
    posterior = observation_space.condition(factor, m, h)     # mean, alpha, log_normalizer, …
    eta = observation_space.draw_eta(factor, h, eta0, eps)    # exact draw

===========  ==============================================  ==========
name         meaning                                         shape
===========  ==============================================  ==========
``m, K``     prior mean and covariance of η                  (N,) (N, N)
``h, lam``   linear coefficients and precisions of sites     (N,)
``chol_K``   lower Cholesky factor, K = L Lᵀ                 (N, N)
``Phi``      whitened design, η = m + Φ v, v ~ N(0, I)       (N, D)
``alpha``    α = K⁻¹(μ − m) = ∂ log Z/∂m, μ posterior mean   (N,)
===========  ==============================================  ==========
"""
