"""Recognition: the only room that reads PyTensor graphs.

``recognizer.py`` is the way through, and the rest serves one of these parts of it:

* which variable plays which part: ``choice.py``, ``structure.py``, ``blocks.py``, and what
  is drawn forward: ``forward.py``; Gaussian variables and their innovations: ``latents.py``
* matching likelihoods: ``sites.py``, ``links.py``, ``probe.py``, ``refusals.py``; those stated by a
  formula: ``super_gaussian.py``, ``custom.py``; densities of PyMC's, row by row: ``generic.py``,
  ``derive.py``, ``rows.py``, ``row_parameters.py``, with what censored and masked observations
  need of them: ``censoring.py``, ``complements.py``, ``indices.py``
* predictors: ``affine.py``, ``predictors.py``, ``designs.py``, ``random_mean.py``
* refusing bad data: ``data.py``; the check against PyMC: ``densities.py``, ``checks.py``
* processes at other inputs: ``process.py`` by ``stationary.py`` (formulas in ``profiles.py`` and
  ``slopes.py``) or ``covariance_graph.py``; ``foreign.py``, ``minibatch.py``, ``input_data.py``,
  and for predictions ``new_inputs.py``, ``old_draws.py``, ``latent_draws.py``, ``evaluate.py``
* graphs to functions, and back to the model's variables: ``rewrite.py``, ``constants.py``,
  ``compile.py``, ``interpret.py``, ``numpy_calls.py``, ``space.py``, ``variables.py``
* the table that is printed: ``report.py``
"""
