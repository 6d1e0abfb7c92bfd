"""Parts of the user's model that predictions and results need.

================  ===================================================
``evaluate``      functions of the model that results need
``latent_draws``  from latents to the user's variables; predictors at new inputs from draws
``new_inputs``    the predictors of an observed variable at new inputs
``transitions``   the next values of a time series; Markov or grid processes at new inputs
================  ===================================================
"""
