"""Likelihoods: formulas, and their spellings in PyMC.

To add one, copy ``bernoulli_logit.py`` and add one line to the contract test.

=======================  =========================================================================
``base``                 likelihoods of one predictor
``bernoulli_logit``      Bernoulli with a logit link, by Pólya–Gamma
``bernoulli_probit``     Bernoulli with a probit link, by a truncated normal
``contract``             the contract with P predictors; one, lifted to it, with its observations
``generic``              any likelihood known by its log density; potentials; bounded priors
``heteroscedastic``      normal with a predictor of the precision: bounded, or log-linear
``laplace``              Laplace, symmetric or not, and the support vector machine
``logistic``             logistic, by Pólya–Gamma
``logistic_softmax``     classes with the logistic-softmax link, by thinning and Pólya–Gamma
``matern_noise``         Matérn noise, as normal of random precision
``mixture``              mixtures of others, by allocations
``multivariate_normal``  vectors of normal and of Student-t observations
``normal``               normal and log-normal, which need no auxiliary variable
``pattern``              spellings of a likelihood in a PyMC model
``poisson_log``          Poisson with a log link, by its density
``poisson_sigmoid``      Poisson of a bounded rate, by thinning and Pólya–Gamma
``poisson_square``       Poisson with a square link, by its density
``powers_of_sigmoid``    binomial and negative binomial with a logit link, by Pólya–Gamma
``registry``             the registered likelihoods by name
``robust_max``           classes by the largest predictor, by their density
``softmax``              categorical and multinomial, class by class by Pólya–Gamma
``student_t``            Student-t and Cauchy, as normal of random precision
``super_gaussian``       any super-Gaussian, known by log φ
``symmetric_noise``      common part of likelihoods of y = η + e that depend on |e|
=======================  =========================================================================
"""
