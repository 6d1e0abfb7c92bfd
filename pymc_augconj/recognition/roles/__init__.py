"""The roles of the variables.

===================  =====================================================
``choice``           which Gaussian variables are integrated out
``entries``          vectors whose entries are independent given all other variables
``errors``           messages where there is no latent variable
``forward``          free variables that nothing observed depends on
``structure``        roles, and which variables are drawn from their distributions
===================  =====================================================
"""
