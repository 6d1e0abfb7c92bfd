"""The roles of the variables.

===================  =====================================================
``choice``           which Gaussian variables are integrated out
``columns``          vectors each entry of which scales one latent
``entries``          vectors whose entries are independent given everything else
``errors``           messages where there is no latent variable
``forward``          free variables that nothing observed depends on
``structure``        roles, and which variables are drawn from their distributions
===================  =====================================================
"""
