"""The roles of the variables.

===================  =====================================================
``choice``           which Gaussian variables are integrated out
``entries``          vectors whose entries are independent given all other variables
``structure``        roles, and which variables are drawn; those that nothing observed needs
===================  =====================================================
"""
