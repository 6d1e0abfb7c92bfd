"""Which variable plays which part.

=============  ===============================================
``choice``     which Gaussian variables are integrated out
``forward``    free variables that nothing observed depends on
``structure``  which variables depend on which
=============  ===============================================
"""
