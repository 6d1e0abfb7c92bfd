"""From graphs of innovations back to graphs of the model's own variables."""

from __future__ import annotations

from collections.abc import Sequence

import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pymc_augconj.recognition.graph.rewrite import substitute
from pymc_augconj.recognition.latents.innovations import GaussianVariable

__all__ = ["in_variables"]


def in_variables(graphs: Sequence[Variable], latents: Sequence[GaussianVariable]) -> list[Variable]:
    """Return the graphs with every innovation replaced by value − mean, or by chol(K) v."""
    replacements = {}
    for latent in latents:
        flat = latent.flat()
        if latent.mean is not None:
            flat -= latent.mean.ravel()
        flat = pt.specify_shape(flat.astype("float64"), latent.input.type.shape)
        replacements[latent.input] = flat
    return substitute(graphs, replacements)
