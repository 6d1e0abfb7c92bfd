"""Likelihoods: one file each, with its formulas and how it is spelled in PyMC.

To add one, copy ``bernoulli_logit.py`` and add one line to the contract test.

==========================  ======================================================================
``asymmetric_laplace``      quantile regression, by an inverse Gaussian
``base``                    likelihoods of one predictor, as they are written
``bayesian_svm``            the support vector machine, a pseudo-likelihood
``bernoulli_logit``         Bernoulli with a logit link, by Pólya–Gamma
``bernoulli_probit``        Bernoulli with a probit link, by a truncated normal
``binomial_logit``          binomial with a logit link, by Pólya–Gamma
``bounded``                 the prior of a latent between bounds
``cauchy``                  Cauchy, as normal of random precision
``contract``                the contract with P predictors, to which formulas of one are lifted
``density``                 a likelihood with its observations, for integration over one predictor
``generic``                 any likelihood, censored or not, known by its log density
``heteroscedastic``         normal of a bounded precision, by thinning and Pólya–Gamma
``heteroscedastic_log``     normal of a log standard deviation, by its density
``joint``                   writing ω into a model, for ``pac.augment``
``laplace``                 Laplace, as normal of random variance
``log_normal``              log-normal, which needs no auxiliary variable
``logistic``                logistic, by Pólya–Gamma
``logistic_softmax``        classes with the logistic-softmax link, by thinning and Pólya–Gamma
``matern_noise``            Matérn noise, as normal of random precision
``mixture``                 mixtures of others, by allocations
``multivariate_normal``     vectors of normal observations, which need no auxiliary variable
``multivariate_student_t``  vectors of Student-t observations, by a gamma precision
``negative_binomial``       negative binomial with real α, by Pólya–Gamma
``normal``                  normal, which needs no auxiliary variable
``pattern``                 how a likelihood looks in a PyMC model
``poisson_log``             Poisson with a log link, by its density
``poisson_sigmoid``         Poisson of a bounded rate, by thinning and Pólya–Gamma
``poisson_square``          Poisson with a square link, by its density
``powers_of_sigmoid``       shared by the likelihoods with a logit link
``potential``               a factor written by hand, as ``pm.Potential``
``registry``                the registered likelihoods by name
``robust_max``              classes by the largest predictor, by their density
``softmax``                 categorical and multinomial, class by class by Pólya–Gamma
``student_t``               Student-t, as normal of random precision
``super_gaussian``          any super-Gaussian, known by log φ
``symmetric_noise``         shared by the likelihoods of y = η + e that depend on |e|
``thinning``                what likelihoods share that are augmented by thinning
==========================  ======================================================================
"""
