"""The roles of the variables.

===================  =====================================================
``choice``           which Gaussian variables are integrated out
``drawable``         whether a variable can be drawn from its distribution
``entries``          vectors whose entries are independent given everything else
``errors``           messages where there is no latent variable
``forward``          free variables that nothing observed depends on
``hyperparameters``  the roles of the hyperparameters
``structure``        which variables depend on which
===================  =====================================================
"""
